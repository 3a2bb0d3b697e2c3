"""Modules whose weights are never allocated, to compare shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_DRAWS: Final = (nn.init.normal_, torch.Tensor.normal_)


class _NoDraws(TorchFunctionMode):
    """Leaves normal draws out: for a tensor without numbers torch first imports its compiler, for about a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def unallocated() -> Iterator[None]:
    """Build modules without allocating or drawing a number; torch's random numbers go on as if there were none."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), _NoDraws():
        yield
