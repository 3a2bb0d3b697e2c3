"""Labels without train documents are drawn into pools, so that their rows are trained as negatives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arrays import unit
from xc_core.classifiers import TableConfig
from xc_core.data.labels import LabelMatrix
from xc_core.losses import Triplet
from xc_core.sampling import Documents, InBatch, Random
from xc_core.shapes import F32
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings, TableData, table_task
from xc_core.train.loop import Plan, fit

SEEN, UNSEEN, DOCS, WIDTH = 12, 3, 120, 16
TRUTH = LabelMatrix.from_pairs(np.arange(DOCS), np.arange(DOCS) % SEEN, (DOCS, SEEN + UNSEEN))


def pool(unseen: int, step: int = 0) -> tuple[list[int], bool]:
    source = InBatch(positives=0, unseen=unseen).build(Documents(TRUTH), 3)
    made = source.pool(np.arange(5), step)
    drawn = [label for label in made.labels_U.tolist() if label >= SEEN]
    at = np.flatnonzero(made.labels_U >= SEEN)
    return drawn, bool(made.chosen_BU[:, at].any() or made.known_BU[:, at].any())


def test_as_many_are_drawn_as_asked_for_or_as_exist() -> None:
    assert pool(0) == ([], False)
    assert pool(UNSEEN) == pool(100) == ([12, 13, 14], False)
    assert {len(pool(2, step)[0]) for step in range(20)} == {2}
    assert {label for step in range(20) for label in pool(2, step)[0]} == {12, 13, 14}
    assert pool(2, 7) == pool(2, 7)


def test_if_every_label_has_a_document_none_is_drawn() -> None:
    truth = LabelMatrix.from_pairs(np.arange(DOCS), np.arange(DOCS) % SEEN, (DOCS, SEEN))
    made = InBatch(positives=0, unseen=128).build(Documents(truth), 0).pool(np.arange(4), 0)
    assert made.labels_U.tolist() == [0, 1, 2, 3]


def test_with_first_labels_alone_a_label_that_is_nobodys_first_is_unseen() -> None:
    truth = LabelMatrix.from_pairs(np.array([0, 0, 1]), np.array([0, 2, 1]), (2, 4))
    made = InBatch(positives=1, first=True, unseen=5).build(Documents(truth), 0).pool(np.arange(2), 0)
    assert made.labels_U.tolist() == [0, 1, 2, 3]


def world() -> tuple[F32, F32]:
    """Return documents near a common direction and a little near their label's, and rows that start there too."""
    random = np.random.default_rng(1)
    own = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    common, labels = own[-1], own[: SEEN + UNSEEN]
    doc_ND = labels[np.arange(DOCS) % SEEN] * 0.5 + common + 0.05 * random.standard_normal((DOCS, WIDTH))
    return unit(doc_ND), unit(labels * 0.5 + common)


@pytest.mark.parametrize("unseen", [0, 128])
def test_a_row_that_no_batch_holds_is_not_ranked_among_the_best(unseen: int, tmp_path: object) -> None:
    doc_ND, rows_LD = world()
    settings = ClassifierSettings(
        order=Random(batch_size=24),
        negatives=InBatch(positives=0, unseen=unseen),
        loss=Triplet(margin=0.6, hardest=5, positives=1),
        table=TableConfig(lr=0.05),
    )
    task = table_task(settings, TableData(doc_ND, rows_LD, rows_LD, Documents(TRUTH)))
    fit(task, Plan(epochs=40, warmup=0.0), Checkpoints(tmp_path / "none", "x"))  # type: ignore[operator]
    score_NL = doc_ND @ task.head.released().numpy().T
    second_N = np.sort(np.delete(score_NL, np.s_[SEEN:], axis=1), axis=1)[:, -2]
    above = (score_NL[:, SEEN:] > second_N[:, None]).mean()
    assert above > 0.9 if unseen == 0 else above < 0.6, above
