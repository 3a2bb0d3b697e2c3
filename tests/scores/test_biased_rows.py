"""The score ``biased_rows`` trains as M4 does, with the same settings, and knows how frequent a label is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.arrays import masked
from tests.scores.toy import unit
from tests.train.conftest import Broken
from xc_core.classifiers import TableConfig
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, DataError, DivergedError
from xc_core.losses import Bce
from xc_core.sampling import Documents, Importance, InBatch, Random, Stored
from xc_core.scores import BiasedRows, NewLabels, Query, Sample, ScoreData, base
from xc_core.scores.vectors import VectorScore
from xc_core.shapes import F32
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings, TableData, table_task
from xc_core.train.loop import Plan, fit

LABELS, DOCS = 12, 60
TEXTS, VECTORS = unit(LABELS, 1), unit(DOCS, 2)
TRUTH = masked(np.random.default_rng(0).random((DOCS, LABELS)) < 0.2)
FILTERS = masked(np.random.default_rng(3).random((DOCS, LABELS)) < 0.1)
SMALL = {"order": Random(batch_size=16), "epochs": 4, "rows": TableConfig(lr=0.05)}


def data(filters: LabelMatrix | None = FILTERS) -> ScoreData:
    return ScoreData(TRUTH, filters=filters, vectors=lambda: VECTORS, label_vectors=lambda: TEXTS)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"seed": 3, "negatives": InBatch(positives=1)},
        {"epochs": 1, "order": Random(batch_size=DOCS)},
        {"epochs": 2, "order": Random(batch_size=DOCS)},
        {"loss": Bce(), "negatives": Importance(positives=0, hard=2, uniform=4, search_in="rows"), "dropout": 0.0},
    ],
)
def test_it_trains_as_the_stage_classifier_does_with_the_same_settings(parts: dict[str, Any], tmp_path: Path) -> None:
    score = BiasedRows(**(SMALL | parts))
    names = ("order", "negatives", "loss", "bias", "warmup", "dropout", "seed")
    settings = ClassifierSettings(
        **{name: getattr(score, name) for name in names}, table=score.rows, epochs=score.epochs
    )
    task = table_task(settings, TableData(VECTORS, TEXTS, TEXTS, Documents(TRUTH, FILTERS)))
    fit(task, Plan(epochs=score.epochs, warmup=score.warmup), Checkpoints(tmp_path, "x"))
    rows = task.head.released().numpy()
    found, query = score.fit(data()), Query(unit(7, 5))
    every = np.tile(np.arange(LABELS, dtype=np.int32), (7, 1))
    np.testing.assert_array_equal(found.values(query, every), query_scores(rows, query))


def query_scores(rows_LD: F32, query: Query) -> F32:
    every = np.tile(np.arange(LABELS, dtype=np.int32), (len(query), 1))
    return VectorScore.build(rows_LD, None).values(query, every)


def test_a_value_is_the_product_with_the_row_of_a_label_and_its_bias_once() -> None:
    query = Query(unit(7, 5))
    rows_LD = np.random.default_rng(1).normal(size=(LABELS, query.doc_ND.shape[1] + 1)).astype(np.float32)
    expected = query.doc_ND @ rows_LD[:, :-1].T + rows_LD[:, -1]
    np.testing.assert_allclose(query_scores(rows_LD, query), expected, atol=1e-5)


def test_filtered_pairs_are_no_negatives() -> None:
    every, query = np.tile(np.arange(LABELS, dtype=np.int32), (7, 1)), Query(unit(7, 5))
    with_them, without = (BiasedRows(**SMALL).fit(data(own)).values(query, every) for own in (FILTERS, None))
    assert np.abs(with_them - without).max() > 1e-3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_training(value: float) -> None:
    """A step with such a loss changes nothing, so the score would be that of the label texts, without a word."""
    with pytest.raises(DivergedError, match=r"a loss of .* in step 0 of the score 'biased_rows'"):
        BiasedRows(**SMALL | {"loss": Broken(value)}).fit(data())


def test_documents_from_which_nothing_can_be_learnt_are_refused_and_cost_nothing() -> None:
    """Every document has every label. The rows would stay as they begin, so the score would be that of the texts."""
    truth = masked(np.ones((DOCS, LABELS)))
    every = ScoreData(truth, vectors=lambda: VECTORS, label_vectors=lambda: TEXTS)
    with pytest.raises(DataError, match="4 batches of the score 'biased_rows' in which no document has a label to"):
        BiasedRows(**SMALL).fit(every)
    assert BiasedRows(**SMALL).cost(Sample(every, every, (DOCS,))) == 0


def test_the_cost_grows_with_the_epochs_and_counts_every_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    trained = BiasedRows._trained
    monkeypatch.setattr(BiasedRows, "_trained", lambda *own: calls.append(own[2]) or trained(*own))
    half_a_second = SimpleNamespace(perf_counter=lambda: 0.5 * len(calls))
    monkeypatch.setattr(base, "time", half_a_second)
    sample = Sample(ScoreData(TRUTH), ScoreData(TRUTH.rows(np.arange(8))), (DOCS, 2 * DOCS))
    assert BiasedRows(**SMALL).cost(sample) == pytest.approx(4 * 0.5 * (1 + 2)), "epochs of two fits, one twice as long"
    assert calls == [1, 1]


def test_a_mistake_in_a_fit_that_is_timed_is_no_cost_of_0() -> None:
    every, few = ScoreData(TRUTH), ScoreData(TRUTH.rows(np.arange(8)))

    def fit(own: ScoreData) -> None:
        assert own is few, "a mistake"

    with pytest.raises(AssertionError, match="a mistake"):
        Sample(every, few, (DOCS,)).seconds(fit)


def test_stored_negatives_are_refused() -> None:
    with pytest.raises(ConfigError, match="that no stage stores"):
        BiasedRows(negatives=Stored())


@pytest.mark.parametrize("is_unit", [True, False])
def test_rows_of_new_labels_are_as_long_as_trained_ones(is_unit: bool) -> None:
    score, more = BiasedRows(**(SMALL | {"rows": TableConfig(lr=0.05, unit=is_unit)})), unit(3, 9)
    texts_LD = np.concatenate([TEXTS, more])
    new = NewLabels(LABELS, lambda: ["a", "b", "c"], texts_LD, np.zeros((LABELS + 3, TEXTS.shape[1]), np.float32))
    grown: Any = score.extended(score.fit(data()), new)
    lengths = np.linalg.norm(grown.vectors_LD[:, :-1], axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == is_unit


def test_labels_that_come_one_after_the_other_get_the_rows_that_they_would_get_together() -> None:
    """The map learns from trained rows only, not from those that an earlier addition predicted."""
    score, texts_LD = BiasedRows(**SMALL), np.concatenate([TEXTS, unit(4, 9)])
    fitted, rows_LD = score.fit(data()), np.zeros((LABELS + 4, TEXTS.shape[1]), np.float32)

    def grown(fitted: Any, before: int, after: int) -> Any:
        new = NewLabels(before, list, texts_LD[:after], rows_LD[:after], frozenset(range(LABELS, after)))
        return score.extended(fitted, new)

    together, first = grown(fitted, LABELS, LABELS + 4), grown(fitted, LABELS, LABELS + 1)
    np.testing.assert_allclose(grown(first, LABELS + 1, LABELS + 4).vectors_LD, together.vectors_LD, atol=1e-6)
