"""Asset evaluation: the model judged on test documents.

Takes: the artefacts this stage reads.   Gives: the artefact evaluation.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from assets.metadata import Shown, read_json, table
from assets.station import station
from xc_core.artifacts import Manifest

_COLUMNS = ["P_at_1", "P_at_3", "P_at_5", "nDCG_at_5", "PSP_at_1", "PSP_at_3", "PSP_at_5", "R_at_10"]


def show(folder: Path, manifest: Manifest) -> Shown:
    """Show the metrics, the ablation, and some texts with their labels."""
    content = read_json(folder / "report.json")
    metrics = {name: value for name, value in content["metrics"].items() if value is not None}
    examples = "\n\n".join(
        f"**{row['text'][:200]}**\n\npredicted: "
        + ", ".join(f"{label['label']} {'✓' if label['true'] else '·'}" for label in row["predicted"])
        + f"\n\ntrue: {', '.join(row['true'])}"
        for row in read_json(folder / "examples.json")
    )
    shown = {"metrics": table(content["ablation"], _COLUMNS), "examples": dg.MetadataValue.md(examples)}
    return Shown(metadata={**shown, **metrics}, metrics=metrics, files=[folder / "report.json"])


evaluation = station("evaluation", kinds={"numpy"}, show=show)
