"""The stage evaluation: figures of blocks of test documents are those of all at once; the names of confused labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.arrays import matrix
from tests.chain.toy import Edit
from tests.conftest import TOPICS, ToyWorld
from xc_core.chain import Workspace, run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.fusion import FittedFusion
from xc_core.fusion.dial import Dial
from xc_core.infer.bundle import open_predictor
from xc_core.metrics.calibration import calibration, in_words
from xc_core.metrics.confusions import Confusion
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.ranking import per_document, without
from xc_core.metrics.report import in_bins, report
from xc_core.shapes import PAD_ID, Shortlist
from xc_core.stages import evaluation
from xc_core.stages.evaluation import _label_shift_note, _learnt_from, _measure_blocks, _no_label_note

DOCUMENTS, LABELS, CANDIDATES = 23, 300, 150


def lists(seed: int) -> Shortlist:
    """Return a ranking of different labels for each document."""
    random = np.random.default_rng(seed)
    ids = np.stack([random.permutation(LABELS)[:CANDIDATES] for _ in range(DOCUMENTS)])
    return Shortlist.ranked(ids.astype(np.int32), random.random(ids.shape).astype(np.float32))


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_have_the_figures_of_the_whole(block: int) -> None:
    random = np.random.default_rng(0)
    truth = matrix([random.choice(LABELS, size, replace=False) for size in random.integers(0, 9, DOCUMENTS)], LABELS)
    rules = {"fusion": lists(1), "sum": lists(2)}
    filters = matrix([rules["fusion"].ids_NK[doc, [0, 40]].tolist() for doc in range(DOCUMENTS)], LABELS)
    weights_L = random.random(LABELS) + 0.5
    parts = [slice(at, min(at + block, DOCUMENTS)) for at in range(0, DOCUMENTS, block)]
    blocks = ((part, {name: short.rows(part) for name, short in rules.items()}) for part in parts)
    bins = dict(in_bins(random.integers(0, 40, LABELS)))
    short, figures = _measure_blocks(blocks, truth, filters, weights_L, bins)
    expected = without(rules["fusion"], filters)
    np.testing.assert_array_equal(short.ids_NK, expected.ids_NK[:, :100])
    np.testing.assert_array_equal(short.scores_NK, expected.scores_NK[:, :100])
    for name, ranked in rules.items():
        whole = per_document(without(ranked, filters), truth, weights_L, bins)
        for metric in whole.num:
            np.testing.assert_allclose(figures[name].num[metric], whole.num[metric], rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(figures[name].den[metric], whole.den[metric], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("default", [0.0, 1.0])
def test_the_calibration_is_that_of_the_served_probabilities(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch, lines: list[str], default: float
) -> None:
    """Every label of a test document as the packed model answers it, at the model's own position of the dial."""

    def turned(folder: Path, content: dict[str, Any]) -> Dial:
        weights = np.linspace(0, 3, len(TOPICS), dtype=np.float32)
        return replace(read(folder, content), reach=1.0, default=default, log_weight_L=weights)

    read = Dial.read
    monkeypatch.setattr(Dial, "read", turned)
    run_stage(copied, "evaluation", "toy", "ngame", force=True)
    tests = ToyWorld.make().test
    model = open_predictor(copied.folder("model", "toy", "ngame"))
    answers = model.predict([f"{row['title']} {row['content']}" for row in tests], len(TOPICS))
    probability = np.zeros((len(tests), len(TOPICS)), np.float32)
    for row, answer in enumerate(answers):
        probability[row, [label.label for label in answer]] = [label.probability for label in answer]
    positive = np.array([[label in row["target_ind"] for label in range(len(TOPICS))] for row in tests])
    found = Evaluation.open(copied.folder("evaluation", "toy", "ngame")).report["calibration"]
    expected = calibration(probability, positive, int(positive.sum()))
    assert found["error"] == pytest.approx(expected["error"], abs=0.1)
    for own, other in zip(found["thresholds"], expected["thresholds"], strict=True):
        assert own == pytest.approx(other, abs=0.5)
    assert found["thresholds"][4]["precision"] > 50
    assert f"evaluation: {in_words(found)}" in lines


def test_a_fusion_without_a_dial_is_evaluated_without_calibration(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FittedFusion, "probabilities", lambda *_: None)
    run_stage(copied, "evaluation", "toy", "ngame", force=True)
    assert Evaluation.open(copied.folder("evaluation", "toy", "ngame")).report["calibration"] is None


def test_the_labels_of_a_confusion_are_named_by_their_titles(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "confusions", lambda short, truth: [Confusion(named=3, missed=5, documents=7)])
    run_stage(copied, "evaluation", "toy", "ngame", force=True)
    found = Evaluation.open(copied.folder("evaluation", "toy", "ngame")).report["confusions"]
    assert found == [{"named": TOPICS[3], "missed": TOPICS[5], "documents": 7}]


def test_intervals_of_precision_end_where_no_document_of_the_dataset_is_better(trained: Workspace) -> None:
    found = Evaluation.open(trained.folder("evaluation", "toy", "ngame")).report["intervals"]
    most = int(trained.open(Corpus, "toy").labels.counts_N.max())
    assert found["P_at_5"][1] <= 100 * most / 5 < found["R_at_10"][1]


def test_intervals_are_drawn_by_the_seed_of_the_settings(
    copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int | None] = []
    monkeypatch.setattr(
        evaluation, "report", lambda *a, **named: seeds.append(named.get("seed")) or report(*a, **named)
    )
    edit(copied, {"experiments/toy_ngame/stages/evaluation/seed": 7})
    run_stage(copied, "evaluation", "toy", "ngame")
    assert seeds == [7]


@pytest.mark.parametrize(
    ("validation", "test", "noted"),
    [([0], [2, 2, 1], True), ([0], [1, 2], False), ([2], [2], False), ([], [2], False), ([0], [], False)],
)
def test_a_fusion_that_was_fitted_on_labels_of_another_kind_is_noted(
    validation: list[int], test: list[int], noted: bool
) -> None:
    """Label 2 has no train document. The fusion of validation documents with labels 0 and 1 ranks such labels last."""
    rows = {TRAIN: [0, 1], VALIDATION: validation, TEST: test}
    split = np.repeat(list(rows), [len(labels) for labels in rows.values()])
    labels = matrix([[label] for labels in rows.values() for label in labels], 3)
    corpus = SimpleNamespace(labels=labels, rows=lambda name: np.flatnonzero(split == name))
    note = _label_shift_note(corpus)  # type: ignore[arg-type]
    assert ("67% of the true labels of test documents have no train document, but only 0%" in note) == noted
    assert ("fusion.rule=sum" in note) == noted


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("held_out", [0, 3])
def test_a_fusion_is_fitted_if_its_rule_learns_and_there_are_documents_for_it(learns: bool, held_out: int) -> None:
    sizes = {TRAIN: 5, VALIDATION: held_out}
    corpus: Any = SimpleNamespace(
        rows=lambda split: np.arange(sizes[split]), num_labels=2, published_rows=lambda: np.arange(5 + held_out)
    )
    trained: Any = SimpleNamespace(history={}, rows_LD=None)
    tables: Any = SimpleNamespace(history={}, folds=[SimpleNamespace(refit=True)])
    fusion: Any = SimpleNamespace(rule=SimpleNamespace(learns=learns), turns=False, instead="")
    found = _learnt_from(corpus, trained, tables, fusion, ())
    assert found.fitted == (learns and held_out > 0)
    assert found.fitted_on == (5, held_out)


def test_documents_without_a_predicted_label_are_counted() -> None:
    ids = np.array([[3, PAD_ID], [PAD_ID, PAD_ID], [1, 2], [PAD_ID, PAD_ID]], np.int32)
    scores = np.where(ids == PAD_ID, -np.inf, 1.0).astype(np.float32)
    note = _no_label_note(Shortlist(ids, scores))
    assert note.startswith("2 of 4 test documents (50.0%) have no predicted label; ")
    assert _no_label_note(Shortlist(ids[::2], scores[::2])) == ""
