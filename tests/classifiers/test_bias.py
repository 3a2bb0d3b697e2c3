"""A bias per label: steps equal dense float64 autograd and loops, and a product with (x, 1) is a score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.arrays import masked
from tests.classifiers.test_table_head import BATCH, DOCS, LABELS, WIDTH, documents, pool
from tests.made import made
from tests.naive.table import Table
from xc_core.classifiers import BiasConfig, LabelTable, TableConfig, TableHead
from xc_core.losses import LOSSES, BatchLoss, Bce, DecoupledSoftmax, Loss
from xc_core.sampling import All, Documents, Pool
from xc_core.shapes import extended

TEMPERATURE, LR, BIAS_LR = 0.5, 0.1, 0.03
DEFAULT: Loss = Bce(temperature=TEMPERATURE, bias=1.0)


def head(loss: Loss = DEFAULT, block: int = 1000, *, unit: bool = True) -> TableHead:
    random = torch.Generator().manual_seed(1)
    rows, bias = torch.randn(LABELS, WIDTH, generator=random), torch.randn(LABELS, 1, generator=random)
    table = LabelTable(rows, TableConfig(unit=unit, lr=LR))
    return TableHead(table, loss.build(), loss.divisor, block, LabelTable(bias, TableConfig(unit=False, lr=BIAS_LR)))


def dense(loss: str, scores_BU: torch.Tensor, own: Pool) -> torch.Tensor:
    """Return the mean loss in float64, written out without masks or custom gradients."""
    z_BU, total = scores_BU / TEMPERATURE, torch.zeros((), dtype=torch.float64)
    weight_BU = ~own.known_BU if own.weight_BU is None else own.weight_BU
    counted = 0
    for i in range(DOCS):
        weight_U, positive = torch.from_numpy(np.asarray(weight_BU[i], np.float64)), np.flatnonzero(own.chosen_BU[i])
        if loss == "bce":
            z_U = z_BU[i] - 1.0
            total = (
                total + torch.log1p(torch.exp(-z_U[positive])).sum() + (weight_U * torch.log1p(torch.exp(z_U))).sum()
            )
            counted += 1
        elif len(positive):
            others = (weight_U * torch.exp(z_BU[i])).sum()
            for own_z in z_BU[i][positive]:
                total = total - torch.log(torch.exp(own_z) / (torch.exp(own_z) + others)) / len(positive)
            counted += 1
    return total / counted


LOSS: dict[str, Loss] = {"bce": DEFAULT, "decoupled-softmax": DecoupledSoftmax(temperature=TEMPERATURE)}


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("loss", LOSS)
@pytest.mark.parametrize("kind", ["all", "mixture", "importance"])
def test_steps_equal_dense_autograd_and_loops_over_rows(kind: str, loss: str, unit: bool) -> None:
    fast, docs = head(LOSS[loss], 7, unit=unit), documents()
    assert fast.bias is not None
    rows = Table(fast.table.rows_LD.tolist(), LR, 0.99)
    bias = Table(fast.bias.rows_LD.tolist(), BIAS_LR, 0.99)
    for step in range(4):
        own = pool(kind)
        w_UD = torch.tensor(rows.rows, dtype=torch.float64)[own.labels_U].requires_grad_(True)
        b_U1 = torch.tensor(bias.rows, dtype=torch.float64)[own.labels_U].requires_grad_(True)
        x_BD = docs.detach().double().requires_grad_(True)
        normal_UD = w_UD / w_UD.norm(dim=1, keepdim=True) if unit else w_UD
        mean = dense(loss, x_BD @ normal_UD.T + b_U1.T, own)
        g_w, g_b, g_x = torch.autograd.grad(mean, [w_UD, b_U1, x_BD])
        found = fast.descend(docs, own, BATCH, 1 - step / 4)
        assert float(found.loss / found.count) == pytest.approx(float(mean.detach()), rel=1e-5)
        assert found.gradient_BD is not None
        np.testing.assert_allclose(found.gradient_BD.numpy(), g_x.numpy(), rtol=1e-4, atol=1e-6)
        for table, gradient in ((rows, g_w), (bias, g_b)):
            table.update(own.labels_U.tolist(), gradient.tolist(), 1 - step / 4)
        np.testing.assert_allclose(fast.table.rows_LD.numpy(), rows.rows, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(fast.bias.rows_LD.numpy(), bias.rows, rtol=1e-3, atol=1e-4)


def test_only_labels_of_the_pool_get_another_row_or_bias() -> None:
    own, sample = head(), pool("importance")
    assert own.bias is not None
    before = {name: tensor.clone() for name, tensor in own.tensors().items()}
    own.descend(documents(), sample, BATCH, 1.0)
    still = np.setdiff1d(np.arange(LABELS), sample.labels_U)
    assert 0 < len(still) < LABELS
    for name, tensor in own.tensors().items():
        assert torch.equal(tensor[still], before[name][still]), name
    assert not torch.equal(own.bias.rows_LD, before["bias/rows"])


@pytest.mark.parametrize("unit", [True, False])
def test_a_product_with_a_released_row_and_its_bias_is_what_the_loss_reads(unit: bool) -> None:
    own, seen, docs = head(unit=unit), [], documents().detach()
    loss = own.loss

    def watched(scores: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(scores)
        return loss(scores, *rest)

    watched.separable = False  # type: ignore[attr-defined]
    own.loss = watched  # type: ignore[assignment]
    own.descend(docs, pool("all"), BATCH, None)
    wide = torch.from_numpy(extended(docs.numpy(), 1.0))
    scale = 1.0 if unit else TEMPERATURE
    torch.testing.assert_close(wide @ own.released().T * scale, seen[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(wide @ own.vectors().T, seen[0], rtol=1e-5, atol=1e-5)


def test_restored_state_trains_alike() -> None:
    one, other = head(), head()
    one.descend(documents(), pool("all"), BATCH, 1.0)
    other.load(one.tensors())
    for own in (one, other):
        own.descend(documents(), pool("importance"), BATCH, 0.5)
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def accuracy(kind: str, bias_lr: float) -> float:
    """Return how often rows rank the most frequent label first, on documents that say nothing about their labels.

    The document vectors have a mean of zero, so no direction in space is good for all of them.
    """
    random = np.random.default_rng(0)
    docs = random.standard_normal((400, WIDTH)).astype(np.float32)
    docs = np.concatenate([docs, -docs])
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    share = 0.35 / np.arange(1, LABELS + 1)
    own = random.random((len(docs), LABELS)) < share
    loss: BatchLoss = made(LOSSES, kind, temperature=0.5).build()
    bias = LabelTable(torch.zeros(LABELS, 1), TableConfig(unit=False, lr=bias_lr)) if bias_lr else None
    rows = LabelTable(torch.randn(LABELS, WIDTH, generator=torch.Generator().manual_seed(0)), TableConfig(lr=0.02))
    trained = TableHead(rows, loss, 0.5, bias=bias)
    source = All(positives=0).build(Documents(masked(own)), 0)
    for step in range(300):
        batch = random.choice(len(docs), 100, replace=False)
        trained.descend(torch.from_numpy(docs[batch]), source.pool(batch, step), batch, 1 - step / 300)
    vectors = trained.released()
    wide = torch.from_numpy(docs if bias is None else extended(docs, 1.0))
    return float((wide @ vectors.T).argmax(1).eq(0).float().mean())


@pytest.mark.parametrize("kind", ["bce", "decoupled-softmax"])
def test_a_bias_ranks_the_most_frequent_label_first_if_a_document_says_nothing(kind: str) -> None:
    assert accuracy(kind, 0.02) > 0.65
    assert accuracy(kind, 0.0) < 0.3


def test_a_bias_starts_from_the_share_of_the_documents_not_of_their_labels() -> None:
    truth = masked(np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]]))
    table = BiasConfig(lr=0.1, prior=2.0).build(truth, 0.5)
    assert table is not None
    np.testing.assert_allclose(table.rows_LD[:, 0], np.log([1, 1 / 3, 0.5 / 3]), rtol=1e-6)
