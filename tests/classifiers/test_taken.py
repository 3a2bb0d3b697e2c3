"""The step by hand: gradients of rows and documents equal autograd through the normalisation, to the bit."""

from __future__ import annotations

import pytest
import torch

from xc_core.classifiers import LabelTable, TableConfig
from xc_core.classifiers.taken import Taken


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("width", [6, 64, 384])
def test_gradients_by_hand_equal_autograd(width: int, unit: bool) -> None:
    random = torch.Generator().manual_seed(width)
    start, doc = torch.randn(50, width, generator=random), torch.randn(7, width, generator=random)
    start[4] = 0.0
    labels = torch.tensor([1, 4, 5, 9, 33])
    slope = torch.randn(7, 5, generator=random)
    table = LabelTable(start, TableConfig(unit=unit))
    taken = Taken.of(table, labels)
    rows, leaf = start[labels].requires_grad_(True), doc.clone().requires_grad_(True)
    scores = leaf @ table.vectors(rows).T
    by_rows, by_documents = torch.autograd.grad(scores, [rows, leaf], slope)
    assert torch.equal(taken.products(doc), scores.detach())
    assert torch.equal(taken.back_to_documents(slope), by_documents)
    assert torch.equal(taken.back_to_rows(slope, doc), by_rows)
