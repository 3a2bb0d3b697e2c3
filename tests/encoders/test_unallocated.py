"""Shapes are compared before any number is allocated or drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from xc_core.encoders import EncoderConfig, build_encoder, load_encoder, save_encoder
from xc_core.encoders.unallocated import unallocated


class Without(TorchDispatchMode):
    """Records operations on tensors without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(value, torch.Tensor) and value.is_meta for value in args):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_opening_a_bag_draws_nothing_for_the_comparison_of_shapes(tmp_path: Path) -> None:
    """Torch would import its compiler for that, which takes about a second."""
    save_encoder(build_encoder(EncoderConfig(name="bag", width=4), 7, seed=0), tmp_path)
    with Without() as without:
        load_encoder(tmp_path)
    assert without.seen, "the shapes are compared"
    assert not [name for name in without.seen if "normal" in name]


@pytest.mark.parametrize("draw", [nn.init.normal_, lambda tensor: tensor.normal_()])
def test_modules_have_their_shapes_and_random_numbers_go_on(draw: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with unallocated():
        table = nn.Embedding(5, 2)
        assert draw(table.weight.data) is not None
    assert table.weight.is_meta
    assert table.weight.shape == (5, 2)
    assert torch.equal(torch.rand(2), expected)
