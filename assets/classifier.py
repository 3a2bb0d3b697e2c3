"""Asset classifier: the label table (M3, M4).

Takes: the artefacts this stage reads.   Gives: the artefact classifier.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from pathlib import Path

from assets.metadata import Shown, read_json
from assets.station import station
from xc_core.artifacts import Manifest


def show(folder: Path, manifest: Manifest) -> Shown:
    """Show the last loss."""
    history = read_json(folder / "history.json")
    metrics = {"last_loss": float(history["losses"][-1])} if history["losses"] else {}
    return Shown(metadata=dict(metrics), metrics=metrics)


classifier = station("classifier", kinds={"pytorch"}, show=show)
