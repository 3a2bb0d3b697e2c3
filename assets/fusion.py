"""Asset fusion: the score-fusion tree.

Takes: the artefacts this stage reads.   Gives: the artefact fusion.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from pathlib import Path

from assets.metadata import Shown, numbers, table
from assets.station import station
from xc_core.artifacts import Manifest


def show(folder: Path, manifest: Manifest) -> Shown:
    """Show each score, their sum and the tree on validation documents."""
    rows = manifest.facts["validation"]
    return Shown(metadata={"validation": table(rows, ["P_at_1", "P_at_5", "PSP_at_5"])}, metrics=numbers(rows))


fusion = station("fusion", kinds={"numpy"}, show=show)
