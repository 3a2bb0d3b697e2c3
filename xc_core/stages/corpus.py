"""Stage corpus: data/<dataset>/raw, in any public layout, to Parquet.

Takes: the raw folder.                    Gives: documents, labels, pairs, filters.
May import: data.ingest, stages.runner.   Never: changes the raw folder.
"""

from __future__ import annotations

from xc_core.data.ingest import ingest
from xc_core.progress import report
from xc_core.stages.runner import Context


def run(context: Context) -> None:
    """Ingest the dataset's raw folder."""
    ingest(context.workspace.raw(context.experiment.dataset), context.build, context.config)
    facts = context.build.facts
    rows = ", ".join(f"{facts['rows'][split]:,} {split}" for split in facts["rows"])
    report(f"corpus: {rows} documents, {facts['labels']:,} labels, {facts['filters']['pairs']:,} filter pairs")
    if facts["filters"]["source"] == "given" and not facts["filters"]["files"]:
        report("corpus: there are no filter files, so nothing is filtered")
    if facts["filters"]["source"] == "generate" and not facts["filters"]["pairs"]:
        report("corpus: no document has a label's uid, so nothing is filtered; --filters generate compares these")
