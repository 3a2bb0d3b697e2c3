"""Pooling functions against loops that read one text at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.encoders.heads import joined, projection_head, split
from xc_core.encoders.pooling import POOL, Pooling


def naive(kind: Pooling, tokens: list[list[float]]) -> list[float]:
    """Pool the real tokens of one text."""
    if kind is Pooling.MEAN:
        return [sum(column) / len(tokens) for column in zip(*tokens, strict=True)]
    return tokens[0] if kind is Pooling.CLS else tokens[-1]


@pytest.mark.parametrize("kind", Pooling)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_pooling_equals_a_loop_over_real_tokens(kind: Pooling, lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(len(lengths), 7, 3, generator=generator)
    mask = torch.arange(7)[None, :] < torch.tensor(lengths)[:, None]
    expected = [naive(kind, hidden[i, :n].tolist()) for i, n in enumerate(lengths)]
    found = POOL[kind](hidden, mask)
    assert torch.allclose(found, torch.tensor(expected), atol=1e-6)
    assert torch.equal(POOL[kind](hidden + 1e3 * ~mask[:, :, None], mask), found), "padding was read"


@pytest.mark.parametrize("kind", Pooling)
def test_a_text_without_tokens_pools_to_finite_numbers(kind: Pooling) -> None:
    pooled = POOL[kind](torch.randn(1, 3, 2), torch.zeros(1, 3, dtype=torch.bool))
    assert bool(torch.isfinite(pooled).all())


def test_every_kind_of_pooling_has_a_function() -> None:
    assert set(POOL) == set(Pooling)


def test_a_projection_is_an_orthogonal_map_and_none_is_the_identity() -> None:
    head = projection_head(6, 4)
    weight = next(head.parameters())
    assert weight.shape == (4, 6)
    assert torch.allclose(weight @ weight.T, torch.eye(4), atol=1e-6)
    assert len(list(head.parameters())) == 1, "no bias: a constant direction would be shared by all texts"
    vectors = torch.randn(2, 6)
    assert torch.equal(projection_head(6, 0)(vectors), vectors)


def test_the_vectors_of_two_heads_come_back_from_the_unit_vector_that_they_are_stored_as() -> None:
    first, second = torch.nn.functional.normalize(torch.randn(2, 5, 3), dim=2)
    stored = joined(first, second)
    torch.testing.assert_close(stored.norm(dim=1), torch.ones(5))
    for found, own in zip(split(stored, heads=2), (first, second), strict=True):
        torch.testing.assert_close(found, own)
    assert all(found is stored for found in split(stored, heads=1))
