"""Random generators by root seed, purpose and place (epoch, step, ...); no other module makes generators.

A generator depends on these only, never on earlier draws. A run that resumes at step s therefore draws what an unbroken
run draws at step s, and a new use of randomness changes no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(root: int, purpose: str, *indices: int) -> int:
    """Return a 63-bit seed for ``purpose`` at ``indices`` (epoch, step, rank, ...) under the ``root`` seed."""
    text = "/".join([str(root), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(root: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a numpy generator for ``purpose`` at ``indices``."""
    return np.random.default_rng(derive(root, purpose, *indices))


def torch_generator(root: int, purpose: str, *indices: int, device: torch.device | None = None) -> torch.Generator:
    """Return a torch generator for ``purpose`` at ``indices`` that draws on ``device``, by default the CPU.

    Devices draw other numbers from the same seed.
    """
    import torch

    return torch.Generator(device or "cpu").manual_seed(derive(root, purpose, *indices))


def seed_torch(root: int, purpose: str, *indices: int) -> None:
    """Seed torch's global generator (weight initialisation and dropout use it) for ``purpose`` at ``indices``."""
    import torch

    torch.manual_seed(derive(root, purpose, *indices))


def drawn_again() -> Callable[[], AbstractContextManager[None]]:
    """Return a context that repeats what is drawn from torch's global generator of the CPU from now on.

    After it the generator is as it was before it.
    """
    import torch

    state = torch.get_rng_state()

    @contextmanager
    def again() -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            yield

    return again
