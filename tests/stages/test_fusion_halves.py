"""The fusion is fitted on documents that the scores in use have not seen: every feature is counted again from files.

All ten labels are candidates of every document, so the features of a document are those of labels 0 to 9 in order,
without what is filtered. The tests read what goes into the fit: features, what candidates are worth, which are labels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, write_lines
from tests.stages.halves import CHANGES, file, named_world, open_corpus, part_of_uid, prepared, seen
from xc_core.data.splits import VALIDATION
from xc_core.fusion import (
    FUSIONS,
    Fusion,
    FusionConfig,
    Lexical,
    Neighbours,
    Query,
    Sources,
    feature_table,
    load_fusion,
)
from xc_core.infer.score import Searchers
from xc_core.params import deep_merged
from xc_core.shapes import F32, I64, Bool
from xc_core.stages import Workspace, run_stage

LABELS = 10
FEATURES = ["label_text", "classifier", "frequency", "neighbours", "lexical", "label_words"]
FUSION = {"candidates": LABELS, "features": FEATURES, "add": ["classifier"]}


@dataclass(frozen=True)
class Fit:
    """What one fit of a rule was given, and what came of it."""

    features_NKF: F32
    worth_NK: F32
    filled_NK: Bool
    fusion: Fusion


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Everything before the classifier has run; of document n the label n modulo 10 is filtered."""
    world = named_world(part_of_uid(tmp_path_factory.mktemp("probe")))
    pairs = [f"{number} {number % LABELS}" for number in range(len(world.train))]
    return prepared(
        tmp_path_factory.mktemp("ready"), world, {}, lambda raw: write_lines(raw / "filter_labels_train.txt", pairs)
    )


def train_and_fit(workspace: Workspace, changes: dict[str, Any]) -> None:
    """Run the stages from the classifier to the fusion with these settings."""
    whole = deep_merged(deep_merged(TOY_CHANGES, CHANGES), changes)
    workspace.declare_experiment("toy", "ngame", "ngame", whole)
    for stage in ("classifier", "index", "fusion"):
        run_stage(workspace, stage, "toy", "ngame", force=stage == "fusion")


def fitted(workspace: Workspace, refit: bool, rows: int) -> list[Fit]:
    """Train and fit with these settings; return what the rule was fitted on, call by call."""
    fits: list[Fit] = []
    plain = FUSIONS["tree"]

    def spy(config: FusionConfig, features_NKF: F32, worth_NK: F32, filled_NK: Bool) -> Fusion:
        fusion = plain(config, features_NKF, worth_NK, filled_NK)
        fits.append(Fit(features_NKF, worth_NK, filled_NK, fusion))
        return fusion

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FUSIONS._parts, "tree", spy)
        train_and_fit(workspace, {"classifier": {"refit": refit}, "fusion": {**FUSION, "rows": rows}})
    return fits


def documents_of(workspace: Workspace, refit: bool, most: int) -> dict[str, I64]:
    """Return the documents to be fitted on, by the training whose scores they get."""
    corpus = open_corpus(workspace)
    if not refit:
        return {"": corpus.rows(VALIDATION)[:most]}
    halves = dict(zip(("held/0", "held/1"), corpus.validation_halves(), strict=True))
    if len(halves["held/0"]) >= most:
        del halves["held/1"]
    chosen = sorted(row for rows in halves.values() for row in rows.tolist())[:most]
    return {training: np.intersect1d(rows, chosen) for training, rows in halves.items()}


def expected_features(workspace: Workspace, training: str, rows: I64, *, refit: bool) -> F32:
    """Return the features of all labels (N x 10 x F), from the files of ``training`` and the documents it has seen."""
    corpus, known = open_corpus(workspace), seen(open_corpus(workspace), training, refit=refit)
    vectors = np.load(file(workspace, "embeddings", "documents.npy"))
    folder = file(workspace, "classifier", f"./{training}")
    truth = corpus.labels.rows(known)
    sources = Sources(
        np.load(file(workspace, "embeddings", "labels.npy")),
        np.load(folder / "rows.npy"),
        truth.frequency_L(),
        Neighbours.of(vectors[known], truth),
        None,
        Lexical.load(folder / "lexical"),
    )
    table = corpus.table("documents", rows)
    texts = [f"{title} {content}" for title, content in zip(table["title"], table["content"], strict=True)]
    ids_NK = np.tile(np.arange(LABELS, dtype=np.int32), (len(rows), 1))
    return feature_table(tuple(FEATURES), Query(vectors[rows], sources, texts), ids_NK)


def sizes(workspace: Workspace) -> tuple[int, int]:
    first, second = map(len, open_corpus(workspace).validation_halves())
    assert min(first, second) > 5
    return first, second


CASES = {
    "all of both halves": (True, lambda first, second: first + second),
    "a few of both halves": (True, lambda first, second: first + 2),
    "one half that is just enough": (True, lambda first, second: first),
    "without refit, a few": (False, lambda first, second: first + second - 3),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule_is_fitted_on_scores_of_what_has_not_seen_the_document(ready: Workspace, case: str) -> None:
    refit, most = CASES[case][0], CASES[case][1](*sizes(ready))
    whole = max(fitted(ready, refit, most), key=lambda fit: len(fit.filled_NK))
    documents = documents_of(ready, refit, most)
    assert sum(map(len, documents.values())) == len(whole.filled_NK) == most
    features = {
        row: own
        for training, rows in documents.items()
        for row, own in zip(rows.tolist(), expected_features(ready, training, rows, refit=refit), strict=True)
    }
    truth = open_corpus(ready).labels
    for at, row in enumerate(sorted(features)):
        kept = [label for label in range(LABELS) if label != row % LABELS]
        filled = whole.filled_NK[at]
        assert filled.sum() == len(kept), "what is filtered is no candidate, right or wrong"
        np.testing.assert_allclose(whole.features_NKF[at][filled], features[row][kept], rtol=1e-5, atol=1e-6)
        assert whole.worth_NK[at][filled].tolist() == np.isin(kept, truth.row(row)).astype(float).tolist()


def test_what_is_saved_was_fitted_on_all_documents_and_the_comparison_on_halves_of_them(ready: Workspace) -> None:
    first, second = sizes(ready)
    fits = fitted(ready, True, first + second)
    by_size = sorted(fits, key=lambda fit: len(fit.filled_NK))
    assert [len(fit.filled_NK) for fit in by_size] == [(first + second) // 2, (first + second + 1) // 2, first + second]
    saved = load_fusion(file(ready, "fusion", "fusion.json"))
    assert saved.tree is not None and by_size[-1].fusion.tree is not None
    assert saved.tree.to_dict() == by_size[-1].fusion.tree.to_dict()
    report = json.loads(file(ready, "fusion", "report.json").read_text("utf-8"))
    assert report["documents"] == first + second
    assert report["pairs"] == (first + second) * (LABELS - 1)


def test_the_comparison_ranks_what_a_search_found_alone(ready: Workspace) -> None:
    """With one candidate of one search, P@5 is a fifth at most; positives that no search found would make it more."""
    train_and_fit(
        ready,
        {
            "fusion": {"candidates": 1, "features": ["classifier"], "add": ["label_text", "classifier"]},
            "index": {"texts": False},
        },
    )
    figures = json.loads(file(ready, "fusion", "report.json").read_text("utf-8"))["validation"]
    assert figures.keys() == {"label_text", "classifier", "sum", "tree"}
    for name, own in figures.items():
        assert own["P_at_5"] == pytest.approx(own["P_at_1"] / 5), name
        assert 0 < own["P_at_5"] <= 20, name


@pytest.mark.parametrize("joined", [False, True])
def test_a_document_is_searched_in_the_rows_of_what_has_not_seen_it(
    joined: bool, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only candidate is the label whose row, or sum of row and text, is nearest."""
    found: list[I64] = []
    search = Searchers.candidates

    def spy(own: Searchers, query: Query, k: int) -> Any:
        found.append(search(own, query, k)[:, 0])
        return found[-1][:, None]

    monkeypatch.setattr(Searchers, "candidates", spy)
    alone = {"candidates": 1, "features": ["classifier"], "add": ["classifier"]}
    train_and_fit(ready, {"fusion": alone, "index": {"texts": False, "joined": joined}})
    vectors, texts = (np.load(file(ready, "embeddings", f"{side}.npy")) for side in ("documents", "labels"))
    best = {}
    for training in ("held/0", "held/1", ""):
        rows = np.load(file(ready, "classifier", f"./{training}/rows.npy"))
        best[training] = (vectors @ (rows + texts if joined else rows).T).argmax(1)
    halves = open_corpus(ready).validation_halves()
    for training, rows, own in zip(("held/0", "held/1"), halves, found, strict=True):
        assert own.tolist() == best[training][rows].tolist()
    mixed = np.concatenate(halves)
    assert np.concatenate(found).tolist() != best[""][mixed].tolist(), "what serves would have found others"
