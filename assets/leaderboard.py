"""Asset leaderboard: all evaluated recipes of a dataset in one table.

Takes: the artefacts this stage reads.   Gives: the artefact leaderboard.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from assets.metadata import Shown
from assets.station import station
from xc_core.artifacts import Manifest


def show(folder: Path, manifest: Manifest) -> Shown:
    """Show the table."""
    text = (folder / "leaderboard.md").read_text("utf-8")
    return Shown(metadata={"table": dg.MetadataValue.md(text)}, files=[folder / "leaderboard.md"])


leaderboard = station("leaderboard", kinds={"polars"}, show=show)
