"""A step that scores some documents at a time equals the step on all at once, and needs less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.arrays import masked
from tests.bounded import bounded
from xc_core.classifiers import LabelTable, Shard, TableConfig, TableHead
from xc_core.data.labels import LabelMatrix
from xc_core.distributed import World
from xc_core.losses import BatchLoss, Bce, DecoupledSoftmax, Loss, Ordered, SupCon, Triplet
from xc_core.sampling import Documents, Frequency, InBatch, LabelPool, Negatives, Pool
from xc_core.shapes import spans

DOCS, LABELS, WIDTH = 13, 50, 6
BATCH = np.arange(DOCS)
LOSS: dict[str, Loss] = {
    "triplet": Triplet(margin=0.3, hardest=5, positives=2),
    "softmax": DecoupledSoftmax(temperature=0.2),
    "supcon": SupCon(temperature=0.2),
}
SOURCES: dict[str, Negatives] = {"in-batch": InBatch(positives=0), "drawn": Frequency(positives=1, draws=9)}


def truth() -> LabelMatrix:
    """Labels of all documents but one, which has none and so does not count."""
    has = np.random.default_rng(0).random((DOCS, LABELS)) < 0.1
    has[4] = False
    return masked(has)


def pool(kind: str) -> Pool:
    return SOURCES[kind].build(Documents(truth()), 0).pool(BATCH, 0)


def head(loss: Loss, cells: int, *, biased: bool = False, unit: bool = True) -> TableHead:
    random = torch.Generator().manual_seed(1)
    rows = LabelTable(torch.randn(LABELS, WIDTH, generator=random), TableConfig(unit=unit, weight_decay=0.01))
    bias = LabelTable(torch.randn(LABELS, 1, generator=random), TableConfig(unit=False)) if biased else None
    return TableHead(rows, loss.build(), loss.divisor, bias=bias, cells=cells)


def documents() -> torch.Tensor:
    vectors = torch.randn(DOCS, WIDTH, generator=torch.Generator().manual_seed(2))
    return torch.nn.functional.normalize(vectors, dim=1).requires_grad_(True)


class Watched:
    """A loss that notes how many documents it is called with."""

    def __init__(self, loss: BatchLoss) -> None:
        self.loss, self.separable = loss, loss.separable
        self.independent = getattr(loss, "independent", False)
        self.sizes: list[int] = []
        self.docs: list[int] = []

    def __call__(self, scores_BU: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        *_, sampled = rest
        assert sampled.docs_B.tolist() == sampled.host().docs_B.tolist()
        self.sizes.append(len(scores_BU))
        self.docs += sampled.docs_B.tolist()
        return self.loss(scores_BU, *rest)


def sizes(loss: Loss, cells: int, drawn: Pool) -> list[int]:
    """Return with how many documents the loss is called in a step, and check that it knows which these are."""
    own = head(loss, cells)
    watched = Watched(own.loss)
    own.loss = watched  # type: ignore[assignment]
    own.descend(documents(), drawn, BATCH, 1.0)
    assert watched.docs == BATCH.tolist()
    return watched.sizes


@pytest.mark.parametrize(("biased", "unit"), [(False, True), (True, False)])
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("loss", LOSS)
@pytest.mark.parametrize("at_once", [1, 5, 12])
def test_parts_equal_the_whole(loss: str, kind: str, biased: bool, unit: bool, at_once: int) -> None:
    drawn = pool(kind)
    steps = []
    for cells in (at_once * len(drawn.labels_U), 1 << 25):
        own = head(LOSS[loss], cells, biased=biased, unit=unit)
        steps.append((own.vectors, [own.descend(documents(), drawn, BATCH, 1.0) for _ in range(3)]))
    (rows, parts), (expected_rows, whole) = steps
    torch.testing.assert_close(rows(), expected_rows(), atol=1e-5, rtol=1e-5)
    for one, other in zip(parts, whole, strict=True):
        assert (float(one.loss), int(one.count)) == (pytest.approx(float(other.loss), rel=1e-5), int(other.count))
        assert int(one.count) > 0
        assert one.gradient_BD is not None
        torch.testing.assert_close(one.gradient_BD, other.gradient_BD, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", LOSS)
def test_only_as_many_documents_are_scored_together_as_fit(loss: str) -> None:
    drawn = pool("in-batch")
    width = len(drawn.labels_U)
    assert sizes(LOSS[loss], 5 * width, drawn) == [5, 5, 3]
    assert sizes(LOSS[loss], 5 * width - 1, drawn) == [4, 4, 4, 1]
    assert sizes(LOSS[loss], 1, drawn) == [1] * DOCS, "one document at least"
    assert sizes(LOSS[loss], DOCS * width, drawn) == [DOCS]


@pytest.mark.parametrize(("labels", "expected"), [(32_768, [1024]), (32_769, [1023, 1])])
def test_without_a_limit_of_its_own_a_step_scores_33_million_pairs_together(labels: int, expected: list[int]) -> None:
    table = LabelTable(torch.zeros(1, WIDTH), TableConfig())
    parts = TableHead(table, LOSS["triplet"].build())._parts(1024, labels)
    assert [part.stop - part.start for part in parts] == expected


class Echo(World):
    """A process that takes what it sends for what the others send."""

    def stacked(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor] * self.size)


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_with_different_numbers_of_labels_score_the_same_documents_together(rank: int) -> None:
    """They exchange the scores of each part."""
    labels = np.array([1, 2, 4, 6, 8])
    masks = np.tile(labels == 1, (DOCS, 1))
    shard = Shard(Echo(rank, 2), LABELS)
    rows = LabelTable(shard.of(torch.ones(LABELS, WIDTH)), TableConfig())  # type: ignore[arg-type, type-var]
    watched = Watched(LOSS["triplet"].build())
    own = TableHead(rows, watched, shard=shard, cells=5 * len(labels))  # type: ignore[arg-type]
    own.descend(documents(), LabelPool(labels, masks, masks), BATCH, 1.0)
    assert watched.sizes == [5, 5, 3]


@pytest.mark.parametrize(
    "loss",
    [DecoupledSoftmax(temperature=0.2, forward=0.5), Ordered(loss=LOSS["triplet"], q=6)],
    ids=["both", "ordered"],
)
def test_documents_that_are_compared_with_each_other_are_scored_together(loss: Loss) -> None:
    assert sizes(loss, 1, pool("in-batch")) == [DOCS]


def test_a_loss_that_adds_up_over_labels_is_cut_into_labels_alone() -> None:
    assert sizes(Bce(temperature=0.5), 1, pool("in-batch")) == [DOCS]


def test_parts_whose_documents_have_no_positive_change_nothing() -> None:
    nothing = LabelPool(np.arange(LABELS), np.zeros((DOCS, LABELS), bool), np.zeros((DOCS, LABELS), bool))
    own = head(LOSS["triplet"], LABELS)
    before = own.table.rows_LD.clone()
    found = own.descend(documents(), nothing, BATCH, 1.0)
    assert (float(found.loss), int(found.count)) == (0, 0)
    assert found.gradient_BD is not None
    assert not found.gradient_BD.any()
    assert torch.equal(own.table.rows_LD, before)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_part_of_a_pool_has_the_masks_of_its_documents(kind: str) -> None:
    whole = pool(kind)
    for part in spans(DOCS, 5):
        some = whole.documents(part)
        assert np.array_equal(some.labels_U, whole.labels_U)
        for name in ("chosen_BU", "known_BU", "weight_BU", "noise_BU"):
            mine, theirs = getattr(some, name), getattr(whole, name)
            assert (mine is None) == (theirs is None), name
            assert theirs is None or np.array_equal(mine, theirs[part]), name


def many_labels_each() -> Callable[[], None]:
    """256 documents of 200 labels each, none shared: 13 million scores, 240 MB if computed at once."""
    docs, each, width = 256, 200, 4
    own = LabelMatrix(np.arange(docs + 1) * each, np.arange(docs * each, dtype=np.int32), docs * each)
    loss = Triplet(margin=0.3, hardest=5, positives=3)
    table = LabelTable(torch.randn(docs * each, width, generator=torch.Generator().manual_seed(0)), TableConfig())
    step = TableHead(table, loss, loss.divisor, cells=1 << 21)
    batch = np.arange(docs)
    drawn = InBatch(positives=0).build(Documents(own), 0).pool(batch, 0)
    vectors = torch.randn(docs, width, generator=torch.Generator().manual_seed(1))

    def run() -> None:
        found = step.descend(vectors, drawn, batch, 1.0)
        assert len(drawn.labels_U) == docs * each
        assert found.loss > 0
        assert "chosen_BU" not in vars(drawn)

    return run


def test_documents_of_many_labels_each_need_no_more_memory_than_a_part() -> None:
    bounded(many_labels_each, 130)
