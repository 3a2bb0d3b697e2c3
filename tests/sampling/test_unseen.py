"""Labels without a train document: drawn into pools, so that their rows learn what they are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xc_core.classifiers import LabelTable, TableConfig
from xc_core.data.labels import LabelMatrix
from xc_core.losses import LossConfig
from xc_core.sampling import NEGATIVES, NegativesConfig, OrderConfig
from xc_core.sampling.order import RandomOrder
from xc_core.shapes import F32
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.loop import Plan, fit

SEEN, UNSEEN, DOCS, WIDTH = 12, 3, 120, 16
TRUTH = LabelMatrix.from_pairs(np.arange(DOCS), np.arange(DOCS) % SEEN, (DOCS, SEEN + UNSEEN))


def pool(unseen: int, step: int = 0) -> tuple[list[int], bool]:
    source = NEGATIVES["in-batch"](NegativesConfig(positives=0, unseen=unseen), TRUTH, 3)
    made = source.pool(np.arange(5), step)
    drawn = [label for label in made.labels_U.tolist() if label >= SEEN]
    at = np.flatnonzero(made.labels_U >= SEEN)
    return drawn, bool(made.chosen_BU[:, at].any() or made.known_BU[:, at].any())


def test_as_many_are_drawn_as_asked_for_and_there_are() -> None:
    assert pool(0) == ([], False)
    assert pool(UNSEEN) == pool(100) == ([12, 13, 14], False)
    assert {len(pool(2, step)[0]) for step in range(20)} == {2}
    assert {label for step in range(20) for label in pool(2, step)[0]} == {12, 13, 14}
    assert pool(2, 7) == pool(2, 7)


def test_where_every_label_has_a_document_none_is_drawn() -> None:
    truth = LabelMatrix.from_pairs(np.arange(DOCS), np.arange(DOCS) % SEEN, (DOCS, SEEN))
    made = NEGATIVES["in-batch"](NegativesConfig(positives=0, unseen=128), truth, 0).pool(np.arange(4), 0)
    assert made.labels_U.tolist() == [0, 1, 2, 3]


def world() -> tuple[F32, F32]:
    """Documents near a common direction and a little near their label's; rows start as label texts lie, there too."""
    random = np.random.default_rng(1)
    own = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    common, labels = own[-1], own[: SEEN + UNSEEN]
    doc_ND = labels[np.arange(DOCS) % SEEN] * 0.5 + common + 0.05 * random.standard_normal((DOCS, WIDTH))
    rows_LD = labels * 0.5 + common
    return (doc_ND / np.linalg.norm(doc_ND, axis=1, keepdims=True)).astype(np.float32), (
        rows_LD / np.linalg.norm(rows_LD, axis=1, keepdims=True)
    )


@pytest.mark.parametrize("unseen", [0, 128])
def test_a_row_no_batch_holds_does_not_stand_among_the_best(unseen: int, tmp_path: object) -> None:
    doc_ND, rows_LD = world()
    config = NegativesConfig(positives=0, unseen=unseen)
    task = ClassifierTask(
        doc_ND,
        TRUTH,
        LabelTable(torch.from_numpy(rows_LD), TableConfig(lr=0.05)),
        RandomOrder(OrderConfig(kind="random", batch_size=24), DOCS, 0),
        NEGATIVES["in-batch"](config, TRUTH, 0),
        LossConfig(margin=0.6, negatives=5, positives=1).build(),
        0.0,
        0,
    )
    fit(task, Plan(epochs=40, warmup=0.0), Checkpoints(tmp_path / "none", "x"))  # type: ignore[operator]
    score_NL = doc_ND @ task.table.released(1.0).numpy().T
    second_N = np.sort(np.delete(score_NL, np.s_[SEEN:], axis=1), axis=1)[:, -2]
    above = (score_NL[:, SEEN:] > second_N[:, None]).mean()
    assert above > 0.9 if unseen == 0 else above < 0.6, above
