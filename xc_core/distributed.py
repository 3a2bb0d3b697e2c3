"""The only reader of a process group: how many processes train together and which one this is.

Takes: the environment of torchrun.  Gives: World.
May import: errors.                  Never: maths.

Training in several processes is not built yet (docs/decisions.md); a stage that trains calls ``alone`` and refuses
to start under torchrun with more than one process, rather than train N copies of the same model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from xc_core.errors import UsageError


@dataclass(frozen=True)
class World:
    """``size`` processes, of which this is number ``rank``."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> World:
        """Read RANK and WORLD_SIZE, as torchrun sets them; a plain process is rank 0 of 1."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def alone(what: str) -> None:
    """Raise UsageError where more than one process was started to do ``what``."""
    world = World.from_environment()
    if world.size > 1:
        raise UsageError(
            f"{world.size} processes started for {what}",
            expected="one process: training across processes is not built yet",
            do="start it without torchrun, or with --nproc-per-node=1",
        )
