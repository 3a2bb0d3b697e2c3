"""A device for tests without a GPU: it computes on the processor and refuses what a GPU step must not do.

Tensors of the device "card" are of another type than those of the processor. An operation that mixes both is an error,
as on a GPU; inside ``unread()`` so is every operation that waits for the device: a number that is read, a copy to the
processor, one from there that does not say ``non_blocking``, a number that is written at the places of an index, and
operations whose result has a size that depends on values (a mask as an index, nonzero).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from xc_core.devices import Device

CARD = Device("card:0")
aten = torch.ops.aten
_WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
}
_INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_COPIES = {aten.copy_.default, aten._to_copy.default}


class WaitError(Exception):
    """A step waits for the device."""


class MixedError(Exception):
    """An operation takes a tensor of the processor and one of the card."""


class _Backend(_DummyBackendModule):
    """What torch asks a device for autocast."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


_reading = {"allowed": True}


@contextmanager
def unread() -> Iterator[None]:
    """Refuse every operation that waits for the card, in all threads."""
    _reading["allowed"] = False
    try:
        yield
    finally:
        _reading["allowed"] = True


class CardTensor(torch.Tensor):
    """A tensor of the card; ``raw`` holds its values."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> CardTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=CARD.torch,
        )
        made.raw = raw
        return made

    def __setitem__(self, at: Any, value: Any) -> None:
        """On a GPU torch makes a number that is written at an index a tensor of the processor, and copies it."""
        indexes = any(isinstance(each, torch.Tensor) for each in (at if isinstance(at, tuple) else (at,)))
        if not _reading["allowed"] and indexes and not isinstance(value, torch.Tensor):
            raise WaitError(f"a number written at the places of an index: {value}")
        super().__setitem__(at, value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check(func, args, kwargs)
        to_processor = "device" in kwargs and torch.device(kwargs["device"] or CARD.torch).type == "cpu"
        raw_args, raw_kwargs = tree_map_only(CardTensor, lambda tensor: tensor.raw, (args, kwargs))
        if raw_kwargs.get("device") is not None:
            raw_kwargs["device"] = torch.device("cpu")
        found = func(*raw_args, **raw_kwargs)
        if to_processor or (func is aten.copy_.default and not isinstance(args[0], CardTensor)):
            return args[0] if func is aten.copy_.default else found
        wrapped = tree_map_only(torch.Tensor, CardTensor, found)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def check(func: Any, args: Any, kwargs: Any) -> None:
    """Raise the error of an operation that mixes devices or waits."""
    tensors = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    plain = [tensor for tensor in tensors if not isinstance(tensor, CardTensor) and tensor.dim()]
    if plain and func not in _COPIES:
        raise MixedError(f"{func} with tensors of the processor: {[tuple(tensor.shape) for tensor in plain]}")
    if _reading["allowed"]:
        return
    masks = func in _INDEXES and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    back = func is aten._to_copy.default and torch.device(kwargs.get("device") or CARD.torch).type == "cpu"
    back |= func is aten.copy_.default and not isinstance(args[0], CardTensor)
    if masks or back or _waits_there(func, args, kwargs) or func in _WAITS:
        raise WaitError(f"{func}")


def _waits_there(func: Any, args: Any, kwargs: Any) -> bool:
    """Return True for a copy from the processor that does not say ``non_blocking``: a GPU has it waited for."""
    if func is aten.copy_.default:
        blocks = not any(args[2:]) and not kwargs.get("non_blocking")
        return isinstance(args[0], CardTensor) and not isinstance(args[1], CardTensor) and blocks
    return func is aten._to_copy.default and not isinstance(args[0], CardTensor) and not kwargs.get("non_blocking")


@cache
def install() -> torch.library.Library:
    """Register the device; once per process."""
    _setup_privateuseone_for_python_backend("card", backend_module=_Backend())
    torch.__future__.set_swap_module_params_on_conversion(True)
    library = torch.library.Library("aten", "IMPL")
    made: dict[str, Callable[..., torch.Tensor]] = {
        "empty.memory_format": torch.empty,
        "empty_strided": torch.empty_strided,
        "arange": torch.arange,  # torch would make an empty tensor and resize it, and the wrapper would stay empty
        "arange.start": torch.arange,
        "arange.start_step": torch.arange,
    }
    for name, make in made.items():
        library.impl(name, _on_card(make), "PrivateUse1")
    return library


def _on_card(make: Callable[..., torch.Tensor]) -> Callable[..., CardTensor]:
    def run(*args: Any, dtype: torch.dtype | None = None, **_: Any) -> CardTensor:
        return CardTensor(make(*args, dtype=dtype))

    return run
