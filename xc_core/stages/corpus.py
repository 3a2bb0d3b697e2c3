"""Stage corpus: reads the raw folder of a dataset, in any public layout, into Parquet. It never changes the folder."""

from __future__ import annotations

from xc_core.chain.context import Context
from xc_core.data.ingest import IngestConfig, ingest


def run(context: Context[IngestConfig]) -> None:
    """Ingest the dataset's raw folder."""
    ingest(context.run.raw, context.build, context.settings)
    facts = context.build.facts
    rows = ", ".join(f"{facts['rows'][split]:,} {split}" for split in facts["rows"])
    context.report(f"corpus: {rows} documents, {facts['labels']:,} labels, {facts['filters']['pairs']:,} filter pairs")
    if facts["filters"]["source"] == "given" and not facts["filters"]["files"]:
        context.report("corpus: there are no filter files, so nothing is filtered")
    if facts["filters"]["source"] == "generate" and not facts["filters"]["pairs"]:
        context.report("corpus: no document has the uid of a label, so nothing is filtered (--filters generate)")
