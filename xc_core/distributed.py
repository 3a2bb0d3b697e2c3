"""How many processes train together and which one this is; no other module reads the process group.

Training in several processes is not supported yet (docs/decisions.md). A stage that trains calls ``alone``, which
refuses to start several processes under torchrun; otherwise each would train a copy of the same model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from xc_core.errors import UsageError


@dataclass(frozen=True)
class World:
    """A group of ``size`` processes; this one has number ``rank``."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> World:
        """Read RANK and WORLD_SIZE, which torchrun sets; without them this is process 0 of 1."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def alone(what: str) -> None:
    """Raise UsageError if more than one process was started for ``what``."""
    world = World.from_environment()
    if world.size > 1:
        raise UsageError(
            f"{world.size} processes started for {what}",
            expected="one process: training in several processes is not supported yet",
            do="start it without torchrun, or with --nproc-per-node=1",
        )
