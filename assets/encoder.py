"""Asset encoder: the trained encoder (M1).

Takes: the artefacts this stage reads.   Gives: the artefact encoder.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from pathlib import Path

from assets.metadata import Shown, read_json
from assets.station import station
from xc_core.artifacts import Manifest


def show(folder: Path, manifest: Manifest) -> Shown:
    """Show the last loss and the figures of the last refresh."""
    history = read_json(folder / "history.json")
    metrics = {"last_loss": float(history["losses"][-1])} if history["losses"] else {}
    last = history["refreshes"][-1] if history["refreshes"] else {}
    return Shown(metadata={**metrics, **last}, metrics=metrics)


encoder = station("encoder", kinds={"pytorch", "huggingface"}, show=show)
