"""The rule for new data: each cause is seen to fire and not to fire; the figures are those of slow twins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from tests.cli.conftest import Xc
from tests.cli.conftest import xc as xc
from tests.conftest import TOPICS, ToyWorld
from tests.stages.halves import open_corpus
from xc_core.chain import Workspace, changelog, run_stage
from xc_core.chain.dataset import DriftConfig
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST, digests
from xc_core.errors import ConfigError
from xc_core.infer.bundle import Model, open_predictor
from xc_core.lifecycle import drift_figures
from xc_core.lifecycle.add_labels import add_labels
from xc_core.lifecycle.drift import Answer, Figures, decide, read_record
from xc_core.lifecycle.drift_figures import auc, judged, two_sample_auc
from xc_core.lifecycle.update import update
from xc_core.shapes import F32

AFTER_ENCODER = ("embeddings", "clusters", "negatives", "classifier", "scores", "fusion", "evaluation", "model")
CALM = Figures(
    labels=100, unknown_labels=0, untrained_labels=10, documents_since_training=300, query_auc=0.75,
    documents_since_model=200, new_recall=75.0, test_recall=80.0, refreshed=False,
)  # fmt: skip
"""Every figure is at its limit."""


# the rule


@pytest.mark.parametrize("changes", [{}, {"untrained_labels": 0, "query_auc": 0.5, "new_recall": 90.0}])
def test_at_its_limits_and_below_them_a_model_needs_nothing(changes: dict[str, Any]) -> None:
    found = decide(replace(CALM, **changes), DriftConfig())
    assert (found.answer, found.reasons) == (Answer.NOTHING, ["all figures are within their limits"])


@pytest.mark.parametrize(("unknown", "labels"), [(0, "all labels are known"), (5, "unknown labels are within their")])
def test_labels_are_called_known_if_they_are(unknown: int, labels: str) -> None:
    figures = replace(CALM, unknown_labels=unknown, query_auc=None, new_recall=None)
    assert decide(figures, DriftConfig(unknown_labels=0.05)).reasons[0].startswith(labels)


@pytest.mark.parametrize(
    ("changes", "answer", "reason"),
    [
        ({"unknown_labels": 1}, "refresh", "1 of 100 labels (1.0%) are unknown to the model; the limit is 0.0%"),
        ({"unknown_labels": 1, "labels": 2_550}, "refresh",
         "1 of 2,550 labels (less than 0.1%) are unknown to the model; the limit is 0.0%"),
        ({"untrained_labels": 11}, "retrain", "11 of 100 labels (11.0%) have no trained row; the limit is 10.0%"),
        ({"query_auc": 0.76}, "retrain",
         "vectors of new documents can be told from older ones (AUC 0.76); the limit is 0.75"),
        ({"new_recall": 74.9}, "refresh",
         "recall@10 is 74.9 on new documents and 80.0 on test documents; the limit is 5 points less"),
        ({"new_recall": 74.9, "refreshed": True}, "retrain",
         "recall@10 is 74.9 on new documents and 80.0 on test documents; the limit is 5 points less"),
    ],
)  # fmt: skip
def test_each_cause_alone(changes: dict[str, Any], answer: str, reason: str) -> None:
    found = decide(replace(CALM, **changes), DriftConfig())
    assert (found.answer, found.reasons) == (answer, [reason])


def test_the_strongest_answer_wins_and_all_reasons_are_given() -> None:
    found = decide(replace(CALM, unknown_labels=5, query_auc=0.9, new_recall=10.0), DriftConfig())
    assert (found.answer, len(found.reasons)) == (Answer.RETRAIN, 3)


def test_a_refresh_that_would_be_refused_is_a_training() -> None:
    """Otherwise the schedule would start a refresh every night, which fails every night."""
    refused = replace(CALM, refused="1 test document that the kept rows learnt from")
    assert decide(refused, DriftConfig()).answer is Answer.NOTHING, "nothing asks for a refresh"
    found = decide(replace(refused, unknown_labels=1), DriftConfig())
    why = "a refresh is not possible: 1 test document that the kept rows learnt from"
    assert (found.answer, found.reasons[1:]) == (Answer.RETRAIN, [why])
    assert decide(replace(refused, query_auc=0.9), DriftConfig()).reasons[1:] == [], "a training has no such doubt"


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({"unknown_labels": 5}, {"unknown_labels": 0.05}),
        ({"untrained_labels": 60}, {"untrained_labels": 0.6}),
        ({"query_auc": 0.9}, {"query_auc": 0.9}),
        ({"new_recall": 10.0}, {"recall_drop": 70.0}),
    ],
)
def test_every_limit_is_a_setting(changes: dict[str, Any], limits: dict[str, float]) -> None:
    figures = replace(CALM, **changes)
    assert decide(figures, DriftConfig()).answer is not Answer.NOTHING
    assert decide(figures, DriftConfig(**limits)).answer is Answer.NOTHING


def test_what_was_not_measured_asks_for_nothing_and_a_missing_model_for_a_training() -> None:
    unmeasured = replace(CALM, query_auc=None, new_recall=None)
    few = replace(unmeasured, documents_since_training=49, documents_since_model=0)
    assert decide(few, DriftConfig()).reasons == ["all labels are known, and fewer than 50 documents are new"]
    for many in (replace(few, documents_since_training=50), replace(few, documents_since_model=50)):
        assert decide(many, DriftConfig()).reasons[0].endswith("fewer than 50 documents can be compared with new ones")
    unknown = replace(unmeasured, documents_since_model=None)
    assert "the changelog does not say" in decide(unknown, DriftConfig()).reasons[0]
    assert decide(replace(CALM, test_recall=None), DriftConfig()).answer is Answer.NOTHING
    assert decide(None, DriftConfig()).answer is Answer.RETRAIN


@pytest.mark.parametrize("wrong", [{"query_auc": 0.4}, {"untrained_labels": 1.1}, {"fewest": 1}, {"recall_drop": -1}])
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DriftConfig(**wrong)


# the two-sample test


def test_auc_is_the_share_of_pairs() -> None:
    random = np.random.default_rng(0)
    one, other = random.integers(0, 6, 40).astype(float), random.integers(0, 5, 30).astype(float)
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in one for b in other]
    assert auc(one, other) == pytest.approx(np.mean(pairs))


def test_two_samples_of_one_distribution_of_a_moved_and_of_a_wider_one() -> None:
    random = np.random.default_rng(0)

    def draw(move: float, spread: float) -> F32:
        return np.asarray(spread * random.standard_normal((2000, 30)) + move, np.float32)

    assert two_sample_auc(draw(0, 1), draw(0, 1)) == pytest.approx(0.5, abs=0.04)
    best = NormalDist().cdf(0.2 * np.sqrt(30) / np.sqrt(2))  # of two normal distributions that far apart: 0.78
    assert two_sample_auc(draw(0, 1), draw(0.2, 1)) == pytest.approx(best, abs=0.03)
    assert two_sample_auc(draw(0, 1), draw(1.0, 1)) > 0.99
    assert two_sample_auc(draw(0, 1), draw(0, 3)) == pytest.approx(0.5, abs=0.04), "only the mean is compared"
    assert two_sample_auc(draw(0, 1)[:6], draw(0, 1)[:4]) <= 1, "fewer rows than coordinates"


def test_the_classifier_is_fishers_with_half_of_the_covariance_shrunk() -> None:
    """scikit-learn's, on coordinates that vary by different amounts and together."""
    random = np.random.default_rng(1)
    mix_DD = random.standard_normal((12, 12)) * np.geomspace(0.1, 10, 12)
    one, other = (random.standard_normal((n, 12)) @ mix_DD + move for n, move in ((60, 0.0), (41, 1.0)))
    found = []
    for at in (0, 1):
        fitted, asked = (np.concatenate([one[half::2], other[half::2]]) for half in (at, 1 - at))
        of_one = np.arange(len(fitted)) < len(one) / 2
        scores = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5).fit(fitted, ~of_one).decision_function(asked)
        found.append(auc(scores[len(one) // 2 :], scores[: len(one) // 2]))
    assert two_sample_auc(one, other) == pytest.approx(np.mean(found))


# the figures, on the toy world


def documents(count: int, *, words: str = "", shift: int = 0) -> list[dict[str, Any]]:
    """Return new documents of the toy world, with other words or with the labels of other documents."""
    rows = ToyWorld.make(documents=400, tests=0).train[280 : 280 + count]  # the first 280 are in the toy world
    for number, row in enumerate(rows):
        row["uid"] = f"N{number}"
        row["content"] += f" {words}" if words else ""
        row["target_ind"] = sorted({(label + shift) % len(TOPICS) for label in row["target_ind"]})
    return rows


@pytest.fixture
def lenient(copied: Workspace, edit: Callable[[Workspace, Any], None]) -> Workspace:
    """The trained workspace with a higher limit: in the toy world each ten documents have other pairs of labels."""
    edit(copied, {"datasets/toy/drift/query_auc": 0.9})
    return copied


def updated(workspace: Workspace, folder: Path, rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    world = ToyWorld.make()
    update(workspace, ToyWorld(rows, [], world.labels + more).write(folder), "toy")


def test_a_new_model_needs_nothing(copied: Workspace) -> None:
    found = judged(copied, "toy", "ngame")
    assert found.verdict.answer is Answer.NOTHING
    assert found.figures is not None
    assert (found.figures.labels, found.figures.unknown_labels, found.figures.untrained_labels) == (10, 0, 0)
    assert (found.figures.documents_since_training, found.figures.query_auc, found.figures.new_recall) == (
        0,
        None,
        None,
    )
    assert read_record(copied, "toy", "ngame") == found
    assert found.holds(copied, "toy", "ngame")


def test_a_model_that_is_replaced_while_it_is_opened_is_opened_again(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are of the model that is asked."""
    folder, opened = copied.folder("model", "toy", "ngame"), list[Model]()

    def replaced(path: Path) -> Model:
        opened.append(Model.open(path))
        if len(opened) == 1:
            shutil.copytree(folder, folder.with_name("again"))
            folder.rename(folder.with_name("before"))
            folder.with_name("again").rename(folder)
        return opened[-1]

    monkeypatch.setattr(drift_figures, "Model", SimpleNamespace(open=replaced))
    judged(copied, "toy", "ngame")
    assert len(opened) == 2


def test_documents_like_the_old_ones_ask_for_nothing_and_the_recall_is_that_of_a_slow_twin(
    lenient: Workspace, tmp_path: Path
) -> None:
    updated(lenient, tmp_path / "same", documents(80), [])
    found = judged(lenient, "toy", "ngame")
    figures = found.figures
    assert figures is not None
    assert (figures.documents_since_training, figures.documents_since_model) == (80, 80)
    assert found.verdict.answer is Answer.NOTHING, found.line
    predictor = open_predictor(lenient.folder("model", "toy", "ngame"))
    corpus, recalls = open_corpus(lenient), []
    table, uids = corpus.table("documents"), corpus.table("labels")["uid"].to_list()
    for row, uid in enumerate(table["uid"].to_list()):
        if uid.startswith("N"):
            text = corpus.texts_of("documents", np.array([row]))[0]
            wanted = {uids[label] for label in corpus.labels.row(row)}
            answers = {one.uid for one in predictor.predict([text], 10)[0]}
            recalls.append(len(wanted & answers) / len(wanted))
    assert figures.new_recall == pytest.approx(100 * np.mean(recalls))


def test_documents_with_other_words_ask_for_a_training(lenient: Workspace, tmp_path: Path) -> None:
    words = " ".join(f"{topic}0" for topic in TOPICS[:3]) * 3
    updated(lenient, tmp_path / "drift", documents(80, words=words), [])
    drift = judged(lenient, "toy", "ngame")
    assert drift.figures is not None
    assert drift.figures.query_auc is not None
    assert drift.figures.query_auc > 0.9
    assert drift.verdict.answer is Answer.RETRAIN
    assert "AUC" in drift.line


def test_documents_with_other_labels_ask_for_a_refresh_after_which_the_model_knows_them(
    lenient: Workspace, tmp_path: Path
) -> None:
    updated(lenient, tmp_path / "other", documents(80, shift=5), [])
    found = judged(lenient, "toy", "ngame")
    assert found.figures is not None
    assert found.figures.new_recall is not None
    assert found.figures.test_recall is not None
    assert found.figures.new_recall < found.figures.test_recall - 5
    assert found.verdict.answer is Answer.REFRESH, found.line
    run_stage(lenient, "tokens", "toy")
    for stage in AFTER_ENCODER:
        run_stage(lenient, stage, "toy", "ngame", refresh=True)
    after = judged(lenient, "toy", "ngame").figures
    assert after is not None
    assert (after.documents_since_training, after.documents_since_model, after.new_recall) == (80, 0, None)
    assert after.refreshed


def test_rows_that_learnt_from_test_documents_cannot_be_refreshed(
    lenient: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated(lenient, tmp_path / "other", documents(80, shift=5), [])
    corpus = Corpus.open(lenient.folder("corpus", "toy"))
    learnt = LabelTables.open(lenient.folder("classifier", "toy", "ngame")).learnt()
    test = corpus.rows(TEST)[:1]
    learnt.record_M["digest"][0] = digests(corpus.uids(test))["high"][0]
    monkeypatch.setattr(LabelTables, "learnt", lambda _: learnt)
    found = judged(lenient, "toy", "ngame")
    assert found.verdict.answer is Answer.RETRAIN
    why = f"1 test document that the kept rows learnt from (the first: {corpus.uids(test)[0]})"
    assert found.verdict.reasons[-1] == f"a refresh is not possible: {why}"
    assert read_record(lenient, "toy", "ngame") == found


def test_labels_are_unknown_then_untrained(copied: Workspace, tmp_path: Path) -> None:
    more = [{"uid": f"M{number}", "title": f"meadow{number}", "content": ""} for number in range(2)]
    rows = documents(60)
    for number, row in enumerate(rows):
        row |= {"target_ind": [10 + number % 2], "target_rel": [1.0]}
    updated(copied, tmp_path / "labels", rows, more)
    unknown = judged(copied, "toy", "ngame")
    assert unknown.figures is not None
    assert (unknown.figures.unknown_labels, unknown.figures.untrained_labels) == (2, 2)
    assert unknown.figures.query_auc is not None
    assert unknown.figures.new_recall is None, "no new document has a label that the model knows"
    assert unknown.verdict.answer is Answer.RETRAIN, "2 of 12 are more than a tenth"
    assert not replace(unknown, corpus="another").holds(copied, "toy", "ngame")


def test_added_labels_are_known_but_not_trained_and_a_retraining_ends_it(
    xc: Xc, copied: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(copied.root))
    (tmp_path / "one.jsonl").write_text('{"uid": "M1", "text": "meadow"}\n')
    (tmp_path / "two.jsonl").write_text('{"uid": "M2", "text": "tunnel"}\n')
    add_labels(copied, tmp_path / "one.jsonl", "toy")
    ended = xc("drift", "--dataset", "toy", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["figures"]["unknown_labels"], found["figures"]["untrained_labels"]) == (0, 1)
    assert "new data: nothing: all labels are known" in xc("status", "--dataset", "toy").out
    add_labels(copied, tmp_path / "two.jsonl", "toy")
    assert "(of an earlier version: xc drift)" in xc("status", "--dataset", "toy").out
    ended = xc("drift", "--dataset", "toy", "--recipe", "ngame")
    assert ended.out == "toy / ngame: retrain: 2 of 12 labels (16.7%) have no trained row; the limit is 10.0%\n"
    run_stage(copied, "encoder", "toy", "ngame")
    for stage in AFTER_ENCODER:
        run_stage(copied, stage, "toy", "ngame")
    record = judged(copied, "toy", "ngame")
    assert record.verdict.answer is Answer.NOTHING
    assert record.figures is not None
    assert record.figures.untrained_labels == 0
    assert "new data: nothing" in xc("status", "--dataset", "toy").out
    shutil.rmtree(copied.folder("model", "toy", "ngame"))
    assert "new data:" not in xc("status", "--dataset", "toy").out, "there is no model to speak of"


def test_the_changelog_says_what_came_between_two_corpora(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of c were put back once, so there are two ways to b."""
    kinds = [("a", "labels", "b"), ("b", "update", "c"), ("c", "replace", "b")]
    found = [
        {
            "corpus": {"before": before, "after": after},
            "what": what,
            "documents": {"added": [f"{before}{after}"], "removed": []},
        }
        for before, what, after in kinds
    ]
    monkeypatch.setattr(changelog, "entries", lambda *_: found)
    added = {was: changelog.added_since(workspace, "toy", was, "b") for was in "abcz"}
    assert added == {"a": {"ab"}, "b": set(), "c": {"cb"}, "z": None}, "what came with c went again"
    monkeypatch.setattr(changelog, "entries", lambda *_: found[:2])
    ways = {way: changelog.only_labels(workspace, "toy", *way) for way in ("aa", "ab", "ac", "bc", "za")}
    assert ways == {"aa": True, "ab": True, "ac": False, "bc": False, "za": False}


def test_a_document_that_left_and_came_back_is_not_new(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of an older version were ingested and those of now again: a model of today learnt from what came back.

    A document that came, left and came again is new to a model from before.
    """
    steps = [("a", "b", ["new"], ["old"]), ("b", "c", ["later"], ["new"]), ("c", "d", ["old", "new"], [])]
    found = [
        {"corpus": {"before": was, "after": now}, "documents": {"added": added, "removed": removed}}
        for was, now, added, removed in steps
    ]
    monkeypatch.setattr(changelog, "entries", lambda *_: found)
    since = {was: changelog.added_since(workspace, "toy", was, "d") for was in "abcd"}
    assert since == {"a": {"new", "later"}, "b": {"later", "old"}, "c": {"old", "new"}, "d": set()}


def test_a_recipe_without_a_model_and_a_history_that_nobody_knows(workspace: Workspace, copied: Workspace) -> None:
    run_stage(workspace, "corpus", "toy")
    assert judged(workspace, "toy", "ngame").line == "retrain: there is no model yet"
    assert changelog.added_since(copied, "toy", "another corpus", open_corpus(copied).digest) is None
