"""Texts are divided into as many passes as the cost of a pass on the encoder's device says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.devices import CPU, fetched
from xc_core.encoders import Encoder, EncoderConfig, Passes, build_encoder, embed_rows
from xc_core.encoders.packed import PackedBert
from xc_core.train.frozen import WithStates

SAVED = 64
"""Padded tokens that two passes save: eight texts have two words, eight have ten."""
ROWS = np.arange(16, dtype=np.int64)


@pytest.fixture
def two_lengths(tokenizer: TextTokenizer) -> TokenStore:
    return TokenStore.of_texts(["old river"] * 8 + ["violin " * 10] * 8, tokenizer)


@pytest.fixture
def encoder(bert: Path) -> Encoder:
    return build_encoder(EncoderConfig(name=str(bert), precision="fp32", frozen_layers=1), 17, 0)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The texts of each pass without gradients."""
    seen: list[int] = []
    frozen = PackedBert.frozen

    def noted(own: PackedBert, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        seen.append(len(ids_BT))
        return frozen(own, ids_BT, mask_BT)

    monkeypatch.setattr(PackedBert, "frozen", noted)
    return seen


@pytest.mark.parametrize(
    ("pass_cost", "expected"), [(SAVED - 1, [8, 8]), (SAVED + 1, [16]), (None, [16])], ids=["cheap", "dear", "card"]
)
def test_passes_are_divided_where_that_saves_padding(
    encoder: Encoder, two_lengths: TokenStore, sizes: list[int], tmp_path: Path, pass_cost: Any, expected: list[int]
) -> None:
    encoder.pass_cost = pass_cost
    assert [len(ids) for ids, _ in Passes.of(encoder, two_lengths, ROWS).batches] == expected
    embed_rows(encoder, two_lengths, ROWS, np.empty((16, encoder.width), np.float32), "texts")
    assert sizes == expected
    WithStates.of(encoder, two_lengths, ROWS, tmp_path, "texts")
    assert sizes == 2 * expected


def test_the_cost_of_a_pass_is_that_of_the_device(encoder: Encoder) -> None:
    assert encoder.pass_cost == CPU.pass_cost
    encoder.pass_cost = None
    assert encoder.on(CPU).pass_cost == CPU.pass_cost


@pytest.mark.parametrize("size", [0, 1, 3])
def test_the_vectors_of_a_pass_are_read_after_the_next_pass_was_begun(
    encoder: Encoder, two_lengths: TokenStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """So a card has work while the processor writes vectors and reads tokens."""
    steps: list[str] = []

    def noted(tensor: torch.Tensor) -> Any:
        number = len([step for step in steps if step.startswith("encode")])
        steps.append(f"encode {number}")
        return lambda: steps.append(f"read {number}") or tensor.numpy()

    monkeypatch.setattr("xc_core.encoders.embed.fetched", noted)
    encoder.tokens_per_pass = 1
    found = np.zeros((size, encoder.width), np.float32)
    embed_rows(encoder, two_lengths, ROWS[:size], found, "texts")
    behind = ["encode 0", "encode 1", "read 0", "encode 2", "read 1", "read 2"]
    assert steps == {0: [], 1: ["encode 0", "read 0"], 3: behind}[size]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)


def test_a_copy_is_read_when_it_is_asked_for() -> None:
    read = fetched(torch.arange(3.0))
    assert read().tolist() == [0, 1, 2]
