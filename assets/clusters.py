"""Asset clusters: balanced clusters of the train documents.

Takes: the artefacts this stage reads.   Gives: the artefact clusters.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from pathlib import Path

from assets.metadata import Shown
from assets.station import station
from xc_core.artifacts import Manifest


def show(folder: Path, manifest: Manifest) -> Shown:
    """Show both sides of Theorem 1."""
    figures = {f"theorem1_{name}": value for name, value in manifest.facts["theorem1"].items() if value is not None}
    return Shown(metadata=dict(figures), metrics=figures)


clusters = station("clusters", kinds={"numpy"}, show=show)
