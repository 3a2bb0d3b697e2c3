"""The only maker of random generators: (root seed, purpose, coordinates) -> generator.

Takes: integers and a purpose's name.  Gives: numpy and torch generators.
May import: nothing.                   Never: global random state.

A generator depends on its name and place only, never on how much randomness was drawn before, so a
run that resumes at step s draws what an unbroken run draws at step s, and adding a consumer of
randomness changes no other.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(root: int, purpose: str, *place: int) -> int:
    """Return a 63-bit seed for ``purpose`` at ``place`` (epoch, step, rank, ...) under the ``root`` seed."""
    text = "/".join([str(root), purpose, *map(str, place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(root: int, purpose: str, *place: int) -> np.random.Generator:
    """Return a numpy generator for ``purpose`` at ``place``."""
    return np.random.default_rng(derive(root, purpose, *place))


def torch_generator(root: int, purpose: str, *place: int) -> torch.Generator:
    """Return a CPU torch generator for ``purpose`` at ``place``."""
    import torch

    return torch.Generator().manual_seed(derive(root, purpose, *place))


def seed_torch(root: int, purpose: str, *place: int) -> None:
    """Seed torch's own state (dropout draws from it) for ``purpose`` at ``place``."""
    import torch

    torch.manual_seed(derive(root, purpose, *place))
