"""The fusion is fitted on documents that the scores in use have not seen: every value is computed again from artefacts.

All ten labels are candidates of every document, so the values of a document are those of labels 0 to 9 in order,
without filtered pairs. The tests read what goes into the fit: values, targets, and which candidates are labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, write_lines
from tests.stages.halves import (
    CHANGES,
    HELD,
    named_world,
    open_corpus,
    open_embeddings,
    open_scores,
    part_of_uid,
    prepared,
    rows_of,
    seen,
    texts_of,
)
from xc_core import artifacts
from xc_core.chain import Workspace, run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL
from xc_core.data.splits import VALIDATION, drawn
from xc_core.fusion import FittedFusion, Inputs, Pairs, Tree
from xc_core.infer import ranker
from xc_core.params import deep_merged
from xc_core.scores import LabelWords, Neighbours, Query, ScoreData
from xc_core.shapes import F32, I64
from xc_core.stages import fusion

LABELS = 10
SCORES = ["label_text", "classifier", "frequency", "neighbours", "lexical", "label_words"]
SIX = {"neighbours": {}, "lexical": {"trees": 1}, "label_words": {}}
"""The scores that the recipe ngame does not have."""


@dataclass(frozen=True)
class Fit:
    """What one fit of a rule was given, and its result."""

    pairs: Pairs
    fusion: FittedFusion

    @property
    def size(self) -> int:
        return len(self.pairs.filled_NK)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Every stage before the classifier has run; of document n the label n modulo 10 is filtered."""
    world = named_world(part_of_uid(tmp_path_factory.mktemp("probe")))
    pairs = [f"{number} {number % LABELS}" for number in range(len(world.train))]

    def filtered(raw: Path) -> None:
        write_lines(raw / "filter_labels_train.txt", pairs)

    return prepared(tmp_path_factory.mktemp("ready"), world, {}, filtered)


def train_and_fit(workspace: Workspace, changes: dict[str, Any]) -> None:
    """Run the stages from the classifier to the fusion with these settings."""
    whole = deep_merged(deep_merged(TOY_CHANGES, CHANGES), changes)
    workspace.params.declare_experiment("toy", "ngame", "ngame", whole)
    for stage in ("classifier", "scores", "fusion"):
        run_stage(workspace, stage, "toy", "ngame", force=stage == "fusion")


def fitted(workspace: Workspace, refit: bool, rows: int) -> list[Fit]:
    """Train and fit with these settings; return what the rule was fitted on, call by call."""
    fits: list[Fit] = []
    fit = Tree.fit

    def spy(rule: Tree, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        assert inputs.names == tuple(SCORES)
        fits.append(Fit(pairs, fit(rule, inputs, pairs)))
        return fits[-1].fusion

    rule = {"kind": "tree", "add": ["classifier"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tree, "fit", spy)
        train_and_fit(
            workspace,
            {
                "classifier": {"refit": refit, "enough": rows},
                "scores": SIX,
                "fusion": {"candidates": LABELS, "rule": rule, "rows": rows},
            },
        )
    return fits


def documents_of(workspace: Workspace, refit: bool, most: int) -> dict[str, I64]:
    """Return the documents to be fitted on, by the training whose scores they get."""
    corpus = open_corpus(workspace)
    halves = dict(zip(HELD, corpus.validation_halves(), strict=True)) if refit else {FINAL: corpus.rows(VALIDATION)}
    if refit and len(halves[HELD[0]]) >= most:
        del halves[HELD[1]]
    rows = np.concatenate([*halves.values()])
    chosen = rows[drawn(corpus.uids(rows), most)]
    return {training: np.intersect1d(rows, chosen) for training, rows in halves.items()}


def expected_values(workspace: Workspace, training: str, rows: I64, *, refit: bool) -> F32:
    """Return the values of all labels (N x 10 x F), from the rows of ``training`` and the documents it has seen.

    Only the lexical score is read from its artefact: a second fit would give other trees.
    """
    corpus, embeddings = open_corpus(workspace), open_embeddings(workspace)
    known = seen(corpus, training, refit=refit)
    truth, vectors = corpus.labels.rows(known), embeddings.documents_ND
    label_texts = corpus.texts_of("labels", np.arange(LABELS))
    data = ScoreData(
        truth, texts=lambda: texts_of(corpus, known), label_texts=lambda: label_texts, vectors=lambda: vectors[known]
    )
    query, least = Query(np.array(vectors[rows]), texts_of(corpus, rows)), corpus.published_train().frequency_L().min()
    ids_NK = np.tile(np.arange(LABELS, dtype=np.int32), (len(rows), 1))
    values = {
        "label_text": query.doc_ND @ embeddings.labels_LD.T,
        "classifier": query.doc_ND @ rows_of(workspace, training).T,
        "frequency": np.tile(np.maximum(truth.frequency_L(), least), (len(rows), 1)),
        "neighbours": Neighbours().fit(data).values(query, ids_NK),
        "lexical": open_scores(workspace).fitted(training)["lexical"].values(query, ids_NK),
        "label_words": LabelWords().fit(data).values(query, ids_NK),
    }
    return np.stack([values[name] for name in SCORES], axis=2).astype(np.float32)


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
def test_the_rule_is_fitted_on_scores_that_have_not_seen_the_document(ready: Workspace, case: str) -> None:
    refit, most = CASES[case][0], CASES[case][1](*sizes(ready))
    whole = max(fitted(ready, refit, most), key=lambda fit: fit.size)
    documents = documents_of(ready, refit, most)
    assert sum(map(len, documents.values())) == whole.size == most
    values = {
        row: own
        for training, rows in documents.items()
        for row, own in zip(rows.tolist(), expected_values(ready, training, rows, refit=refit), strict=True)
    }
    truth, pairs = open_corpus(ready).labels, whole.pairs
    for at, row in enumerate(sorted(values)):
        kept = [label for label in range(LABELS) if label != row % LABELS]
        filled = pairs.filled_NK[at]
        assert filled.sum() == len(kept), "a filtered pair is no candidate, right or wrong"
        np.testing.assert_allclose(pairs.values_NKF[at][filled], values[row][kept], rtol=1e-5, atol=1e-6)
        assert pairs.target_NK[at][filled].tolist() == np.isin(kept, truth.row(row)).astype(float).tolist()


def test_the_saved_rule_was_fitted_on_all_documents_and_the_comparison_on_halves_of_them(ready: Workspace) -> None:
    first, second = sizes(ready)
    fits = sorted(fitted(ready, True, first + second), key=lambda fit: fit.size)
    assert [fit.size for fit in fits] == [(first + second) // 2, (first + second + 1) // 2, first + second]
    folder = ready.folder("fusion", "toy", "ngame")
    saved, whole = FittedFusion.open(folder), fits[-1].fusion
    assert saved.tree is not None and whole.tree is not None
    assert saved.tree.to_dict() == whole.tree.to_dict()
    facts = artifacts.read_made(folder).facts
    assert facts["documents"] == first + second
    assert facts["pairs"] == (first + second) * (LABELS - 1)


def test_the_comparison_ranks_only_what_a_search_found(ready: Workspace) -> None:
    """With one candidate of one search, P@5 is at most a fifth; positives that no search found would make it more."""
    rule = {"kind": "tree", "features": ["classifier"], "add": ["label_text", "classifier"]}
    train_and_fit(ready, {"fusion": {"candidates": 1, "rule": rule}, "scores": {"label_text": {"search": False}}})
    figures = artifacts.read_made(ready.folder("fusion", "toy", "ngame")).facts["validation"]
    assert figures.keys() == {"label_text", "classifier", "sum", "fusion"}
    for name, own in figures.items():
        assert own["P_at_5"] == pytest.approx(own["P_at_1"] / 5), name
        assert 0 < own["P_at_5"] <= 20, name


@pytest.mark.parametrize("joined", [False, True])
def test_a_document_is_searched_in_rows_that_have_not_seen_it(
    joined: bool, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only candidate is the label whose row, or sum of row and text, is nearest."""
    found: list[I64] = []
    search = ranker.candidates

    def spy(scores: Any, query: Query, k: int) -> Any:
        found.append(search(scores, query, k)[:, 0])
        return found[-1][:, None]

    monkeypatch.setattr("xc_core.infer.gathered.candidates", spy)
    alone = {"candidates": 1, "rule": {"kind": "tree", "features": ["classifier"], "add": ["classifier"]}}
    train_and_fit(
        ready, {"fusion": alone, "scores": {"label_text": {"search": False}, "classifier": {"joined": joined}}}
    )
    embeddings = open_embeddings(ready)
    best = {}
    for training in (*HELD, FINAL):
        rows = rows_of(ready, training)
        searched = rows + embeddings.labels_LD if joined else rows
        best[training] = (embeddings.documents_ND @ searched.T).argmax(1)
    halves = open_corpus(ready).validation_halves()
    for training, rows, own in zip(HELD, halves, found, strict=True):
        assert own.tolist() == best[training][rows].tolist()
    mixed = np.concatenate(halves)
    assert np.concatenate(found).tolist() != best[FINAL][mixed].tolist(), "the served rows would have found others"


def test_the_families_are_those_of_the_documents_that_are_compared(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents are gathered half by half and compared in the order of their rows; here a family is a row's number."""
    given: list[Any] = []
    ranked = fusion._rankings
    monkeypatch.setattr(Corpus, "families", lambda _, rows: rows)
    monkeypatch.setattr(fusion, "_rankings", lambda *own: given.append(own) or ranked(*own))
    train_and_fit(ready, {"fusion": {"candidates": LABELS}})
    gathered, families_N, corpus = given[0][2], given[0][5], open_corpus(ready)
    assert sorted(families_N.tolist()) == corpus.rows(VALIDATION).tolist()
    truth = corpus.labels.rows(families_N)
    assert [gathered.truth.row(i).tolist() for i in range(len(truth))] == [
        truth.row(i).tolist() for i in range(len(truth))
    ]
