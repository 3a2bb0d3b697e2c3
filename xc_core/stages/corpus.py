"""Stage corpus: reads the raw folder of a dataset, in any public layout, into Parquet. It never changes the folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xc_core.chain.context import Context
from xc_core.data.alike import alike_labels, codes
from xc_core.data.alike import sentence as alike_sentence
from xc_core.data.checks import accepted_sentence
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.data.nearness import nearness, sentence, warning
from xc_core.data.recut import recut as recut_corpus
from xc_core.visible import counted


def run(context: Context[IngestConfig]) -> None:
    """Ingest the dataset's raw folder; report equal label texts, and how near held-out documents are to train."""
    ingest(context.run.raw, context.build, context.settings)
    _describe(context)


def recut(context: Context[IngestConfig]) -> None:
    """Split the present artefact again: an ingest made it from the same files, with a split by uid."""
    recut_corpus(context.previous, context.build, context.settings)
    _describe(context)


def _describe(context: Context[IngestConfig]) -> None:
    """Add facts that need the whole corpus, and report on it."""
    facts = context.build.facts
    corpus = Corpus.unsealed(context.build.path)
    facts["nearness"], facts["alike_labels"] = nearness(corpus), alike_labels(corpus)
    rows = ", ".join(f"{facts['rows'][split]:,} {split}" for split in facts["rows"])
    pairs = counted(facts["filters"]["pairs"], "filter pair")
    context.report(f"corpus: {rows} documents, {counted(facts['labels'], 'label')}, {pairs}")
    if facts["filters"]["source"] == "given" and not facts["filters"]["files"]:
        context.report("corpus: there are no filter files, so nothing is filtered")
    if facts["filters"]["source"] == "generate" and not facts["filters"]["pairs"]:
        context.report("corpus: no document has the uid of a label, so nothing is filtered (--filters generate)")
    if test_only := facts["split"].get("labels_in_test_only"):
        how = "the last ones" if context.settings.split == "time" else "split off by a hash"
        context.report(
            f"corpus: {counted(test_only, 'label')} in test only, because the test rows are {how} and no other row has "
            "them; the model can find such labels only by their text"
        )
    if accepted := accepted_sentence(facts):
        context.report(f"corpus: accepted by the setting allow: {accepted}")
    if alike := facts["alike_labels"]:
        context.report(f"corpus: {alike_sentence(alike)}")
    if 2 * (count := codes(corpus)) > facts["labels"]:
        context.report(
            f"corpus: {count:,} of {counted(facts['labels'], 'label text')} have no letter, so scores of label texts "
            "are of little use; if the labels have names, make these their texts (labels.csv beside a table)"
        )
    for line in _validation_notes(facts, context.settings):
        context.report(f"corpus: {line}")


def _validation_notes(facts: Mapping[str, Any], settings: IngestConfig) -> list[str]:
    """Return what a user should know of the validation documents."""
    rows, split, near = facts["rows"], facts["split"], facts["nearness"]
    lines = []
    if count := split.get("families"):
        families = "1 family" if count == 1 else f"{count:,} families"
        lines.append(
            f"{split['documents']:,} train and validation documents are in {families} of at least two, the largest has "
            f"{split['largest']:,}; a family is held out as a whole"
        )
    share = rows["validation"] / (rows["train"] + rows["validation"])
    target = settings.validation_fraction
    if split.get("families") and not split["given"] and not target / 2 <= share <= 2 * target:
        lines.append(f"validation has {share:.0%} of the documents instead of {target:.0%}, because families are large")
    return [*lines, sentence(near), *warning(near, split["by"], given=split["given"])] if near else lines
