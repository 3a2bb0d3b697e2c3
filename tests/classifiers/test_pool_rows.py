"""The step by hand: gradients of rows and documents equal autograd through the normalisation, to the bit."""

from __future__ import annotations

import pytest
import torch

from xc_core.classifiers import LabelTable, TableConfig
from xc_core.classifiers.pool_rows import PoolRows


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("width", [6, 64, 384])
def test_gradients_by_hand_equal_autograd(width: int, unit: bool) -> None:
    random = torch.Generator().manual_seed(width)
    start, doc = torch.randn(50, width, generator=random), torch.randn(7, width, generator=random)
    start[4] = 0.0
    labels = torch.tensor([1, 4, 5, 9, 33])
    slope = torch.randn(7, 5, generator=random)
    table = LabelTable(start, TableConfig(unit=unit))
    pooled = PoolRows.of(table, labels)
    rows, leaf = start[labels].requires_grad_(True), doc.clone().requires_grad_(True)
    scores = leaf @ table.vectors(rows).T
    by_rows, by_documents = torch.autograd.grad(scores, [rows, leaf], slope)
    assert torch.equal(pooled.products(doc), scores.detach())
    assert torch.equal(pooled.back_to_documents(slope), by_documents)
    assert torch.equal(pooled.back_to_rows(slope, doc), by_rows)


@pytest.mark.parametrize("unit", [True, False])
def test_products_in_bf16_are_near_those_in_float32(unit: bool) -> None:
    random = torch.Generator().manual_seed(0)
    start, doc = torch.randn(50, 64, generator=random), torch.randn(7, 64, generator=random)
    labels, slope = torch.arange(20, 40), torch.randn(7, 20, generator=random)
    exact, rough = (LabelTable(start, TableConfig(unit=unit)) for _ in range(2))
    rough.product = torch.bfloat16
    one, other = PoolRows.of(exact, labels), PoolRows.of(rough, labels)
    for found, expected in (
        (other.products(doc), one.products(doc)),
        (other.back_to_documents(slope), one.back_to_documents(slope)),
        (other.back_to_rows(slope, doc), one.back_to_rows(slope, doc)),
    ):
        assert found.dtype == torch.float32
        assert not torch.equal(found, expected)
        assert float((found - expected).norm() / expected.norm()) < 0.01
