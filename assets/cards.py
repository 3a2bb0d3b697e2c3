"""The pool "gpu": as many stages at once as the machine has GPUs, each on a GPU of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xc_core.chain.registry import STAGES
from xc_core.environment import DEVICE
from xc_core.errors import BusyError
from xc_core.locks import locked

POOL: Final = "gpu"
"""Pool of the stages that compute on a GPU."""


def places() -> int:
    """Return the places of the pool: the number of GPUs, 1 without any; dagster.yaml cannot ask the machine."""
    from xc_core.devices import num_cards

    return max(num_cards(), 1)


@contextlib.contextmanager
def own_card(arguments: list[str], locks: Path) -> Iterator[None]:
    """Give ``xc run STAGE`` of a stage of the pool the first GPU that no other such process on this machine has.

    Any other stage computes on the CPU, so that it takes no memory from a training on a GPU. The choice is in
    XC_DEVICE, which the block and what it starts read. A device chosen by the user stays, and so does ``auto`` for a
    stage of the pool if the machine has no GPU, or if other work than the pool's has taken all.
    """
    stage = STAGES.get(arguments[1]) if arguments[:1] == ["run"] and len(arguments) > 1 else None
    if stage is None or os.environ.get(DEVICE, "auto") not in ("", "auto"):
        yield
        return
    if not stage.on_gpu:
        os.environ[DEVICE] = "cpu"
        yield
        return
    from xc_core.devices import num_cards

    with contextlib.ExitStack() as stack:
        for number in range(num_cards()):
            with contextlib.suppress(BusyError):
                stack.enter_context(locked(locks / f"cuda-{number}", f"work on GPU {number}"))
                os.environ[DEVICE] = f"cuda:{number}"
                break
        yield
