"""A step in blocks of labels equals the step on all at once, in loss, gradients and rows, and needs less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.arrays import masked
from xc_core.classifiers import LabelTable, TableConfig, TableHead, gradient_error, marks
from xc_core.data.labels import LabelMatrix
from xc_core.losses import Bce
from xc_core.sampling import All, Documents, Importance, LabelPool, Mixture, Negatives, Pool

DOCS, LABELS, WIDTH = 12, 50, 6
BATCH = np.arange(DOCS)


def truth(labels: int = LABELS) -> LabelMatrix:
    return masked(np.random.default_rng(0).random((DOCS, labels)) < 0.1)


SOURCES: dict[str, Negatives] = {
    "all": All(positives=0),
    "mixture": Mixture(positives=0, uniform=20),
    "importance": Importance(positives=0, hard=1, uniform=20),
}


def pool(kind: str) -> Pool:
    return SOURCES[kind].build(Documents(truth()), 0).pool(BATCH, 0)


def head(block: int, **config: Any) -> TableHead:
    rows = torch.randn(LABELS, WIDTH, generator=torch.Generator().manual_seed(1))
    loss = Bce(temperature=0.5, bias=1.0)
    return TableHead(LabelTable(rows, TableConfig(**config)), loss.build(), loss.divisor, block)


def documents() -> torch.Tensor:
    vectors = torch.randn(DOCS, WIDTH, generator=torch.Generator().manual_seed(2))
    return torch.nn.functional.normalize(vectors, dim=1).requires_grad_(True)


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("block", [1, 7, 49])
def test_blocks_equal_the_whole(kind: str, block: int, unit: bool) -> None:
    steps = []
    for size in (block, 1000):
        own = head(size, unit=unit)
        found = [own.descend(documents(), pool(kind), BATCH, 1.0) for _ in range(3)]
        steps.append((own.table.rows_LD, found))
    (rows, cut), (expected_rows, whole) = steps
    assert torch.allclose(rows, expected_rows, atol=1e-5)
    for one, other in zip(cut, whole, strict=True):
        assert (float(one.loss), one.count) == (pytest.approx(float(other.loss), rel=1e-5), other.count)
        assert one.gradient_BD is not None
        assert other.gradient_BD is not None
        assert torch.allclose(one.gradient_BD, other.gradient_BD, atol=1e-6)


def test_the_gradient_of_the_documents_is_that_of_the_mean_loss() -> None:
    own, docs, everyone = head(7), documents(), pool("all")
    rows = own.table.vectors(own.table.rows_LD)
    chosen, known = torch.from_numpy(everyone.chosen_BU), torch.from_numpy(everyone.known_BU)
    total, count = own.loss(docs @ rows.T, chosen, known)
    (expected,) = torch.autograd.grad(total / count, docs)
    found = own.descend(docs, everyone, BATCH, 1.0)
    assert float(found.loss) == pytest.approx(float(total.detach()), rel=1e-5)
    assert found.gradient_BD is not None
    assert torch.allclose(found.gradient_BD, expected, atol=1e-6)


def test_frozen_documents_get_no_gradient_and_rows_are_trained_alike() -> None:
    frozen, free = head(7), head(7)
    found = frozen.descend(documents().detach(), pool("all"), BATCH, 1.0)
    free.descend(documents(), pool("all"), BATCH, 1.0)
    assert found.gradient_BD is None
    assert torch.equal(frozen.table.rows_LD, free.table.rows_LD)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_are_searched_in_float32_whatever_they_are_stored_as(precision: str) -> None:
    """numpy and faiss have no bf16. Rows that are searched as they are stored are not copied."""
    own = head(7, unit=False, precision=precision)
    assert torch.equal(own.vectors(), own.table.rows_LD.float())
    assert own.vectors().dtype == torch.float32
    assert (own.vectors() is own.table.rows_LD) == (precision == "fp32")


def test_over_all_labels_no_matrix_is_wider_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    own, everyone = head(8), pool("all")
    loss = own.loss

    class Watched:
        separable = True

        def __call__(self, scores: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
            widths.append(scores.shape[1])
            return loss(scores, *rest)

    own.loss = Watched()  # type: ignore[assignment]
    own.descend(documents(), everyone, BATCH, 1.0)
    assert widths == [8, 8, 8, 8, 8, 8, 2]
    assert "chosen_BU" not in vars(everyone)
    assert "known_BU" not in vars(everyone)


def test_a_few_documents_can_be_overfitted_over_all_labels() -> None:
    own = head(16, unit=False, start="zero", lr=0.2)
    docs = documents().detach()
    for step in range(300):
        own.descend(docs, pool("all"), BATCH, 1 - step / 300)
    scores = docs @ own.released().T
    best = scores.topk(1).indices.numpy()
    has_label = truth().counts_N > 0
    assert truth().contains(BATCH[:, None], best)[has_label].all()


def uniform(labels: int, draws: int = 1) -> list[Any]:
    source = Importance(positives=0, hard=0, uniform=labels, draws=draws).build(Documents(truth()), 0)
    return [source.pool(BATCH, step) for step in range(40)]


EVERY_ROW = np.arange(LABELS)


def test_the_error_of_a_gradient_is_zero_for_all_labels_and_falls_with_more_of_them() -> None:
    own, docs = head(100), documents()
    before = own.table.rows_LD.clone()
    few, many, every = (gradient_error(own, docs, BATCH, uniform(n), pool("all"), EVERY_ROW) for n in (5, 25, LABELS))
    for name in ("documents", "batch", "rows"):
        assert getattr(few, name) > 2 * getattr(many, name) > 0
        assert getattr(every, name) == pytest.approx(0, abs=1e-10)
    assert torch.equal(own.table.rows_LD, before)


def test_the_errors_of_a_gradient_are_those_of_their_definition() -> None:
    """E |g_r - g|^2 / |g|^2, by loops over the draws."""
    own, docs, pools = head(100), documents(), uniform(10)[:5]
    found, labels = gradient_error(own, docs, BATCH, pools, pool("all"), EVERY_ROW), EVERY_ROW
    exact_BD, exact_LD = own.gradient(docs, pool("all"), BATCH), own.row_gradient(docs, pool("all"), BATCH, labels)
    for name, exact, drawn in (
        ("documents", exact_BD, [own.gradient(docs, each, BATCH) for each in pools]),
        ("batch", exact_BD.sum(0), [own.gradient(docs, each, BATCH).sum(0) for each in pools]),
        ("rows", exact_LD, [own.row_gradient(docs, each, BATCH, labels) for each in pools]),
    ):
        errors = [float((each - exact).norm() ** 2 / exact.norm() ** 2) for each in drawn]
        assert getattr(found, name) == pytest.approx(np.mean(errors), rel=1e-4), name


def test_more_draws_per_batch_lower_the_error_of_the_batch_and_of_the_rows_alone() -> None:
    """Documents that share a draw share its error, which then does not cancel in sums over the batch."""
    own, docs = head(100), documents()
    shared, single = (
        gradient_error(own, docs, BATCH, uniform(10, draws), pool("all"), EVERY_ROW) for draws in (1, len(BATCH))
    )
    assert single.documents == pytest.approx(shared.documents, rel=0.3)
    assert single.batch < 0.6 * shared.batch
    assert single.rows < 0.6 * shared.rows


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["all", "sample"])
def test_the_gradient_of_some_rows_is_that_of_autograd_over_the_whole_pool(kind: str, biased: bool) -> None:
    own, docs = head(7), documents().detach()
    if biased:
        own.bias = LabelTable(torch.arange(LABELS)[:, None] / LABELS, TableConfig(unit=False))
    used: Any = pool("all") if kind == "all" else uniform(20)[0]
    labels = np.array([0, 3, 4, 17, LABELS - 1])
    rows = own.table.rows_LD.clone().requires_grad_(True)
    scores = docs @ own.table.vectors(rows)[torch.from_numpy(used.labels_U)].T
    if own.bias is not None:
        scores = scores + own.bias.rows_LD[torch.from_numpy(used.labels_U), 0]
    total, count = own.loss(scores, *marks(used, BATCH, docs.device))
    (expected,) = torch.autograd.grad(total / count, [rows])
    found = own.row_gradient(docs, used, BATCH, labels)
    torch.testing.assert_close(found, expected[torch.from_numpy(labels)], atol=1e-6, rtol=1e-4)
    assert found.any()


def test_a_block_whose_loss_is_no_number_and_later_ones_update_nothing() -> None:
    rows_LD = torch.ones(40, 4)
    rows_LD[15] = torch.nan
    table = LabelTable(rows_LD, TableConfig(unit=False))
    chosen_BU = np.eye(2, 40, dtype=bool)
    found = TableHead(table, Bce(), block=10).descend(
        torch.ones(2, 4), LabelPool(np.arange(40), chosen_BU, chosen_BU), np.arange(2), 1.0
    )
    assert torch.isnan(found.loss)
    changed_L = (table.rows_LD != 1).any(1)
    assert changed_L.nonzero().squeeze(1).tolist() == [*range(10), 15]


class Nothing:
    """A loss that no document counts for; divided by their number its gradient is not a number."""

    separable = False

    def __call__(self, scores_BU: torch.Tensor, *masks: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return 0 * scores_BU.sum(), torch.zeros(())


def test_a_batch_in_which_no_document_counts_changes_nothing() -> None:
    own: Any = Nothing()
    table = LabelTable(torch.ones(4, 3), TableConfig(unit=False))
    found = TableHead(table, own).descend(
        torch.ones(DOCS, 3, requires_grad=True), All().build(Documents(truth(4)), 0).pool(BATCH, 0), BATCH, 1.0
    )
    assert found.gradient_BD is not None
    assert not found.gradient_BD.any()
    assert torch.equal(table.rows_LD, torch.ones(4, 3))
    assert not table.steps_L.any()
