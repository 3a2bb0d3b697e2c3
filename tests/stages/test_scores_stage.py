"""The stage scores: what is searched, rows or sums of rows and label texts, and where recall is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import HELD, open_corpus, open_embeddings, open_scores, rows_of, run_until
from xc_core import artifacts, progress
from xc_core.ann import ExactIndex
from xc_core.chain import Workspace, run_stage
from xc_core.data.folds import FINAL, Fold
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.errors import ConfigError
from xc_core.params import deep_merged
from xc_core.scores import Query, vectors
from xc_core.scores.vectors import VectorScore
from xc_core.shapes import F32, I64
from xc_core.stages import scores as stage

Edit = Callable[[Workspace, dict[str, Any]], None]
SCORES = "experiments/toy_ngame/stages/scores"
COARSE, NEAR = {"kind": "ivf", "lists": 5, "probes": 1}, 4
"""Cells of two labels, of which one is visited: at most half of the four nearest labels are found."""
INDEXED = {"classifier": {"index": COARSE}, "label_text": {"index": COARSE}}


def built(workspace: Workspace, edit: Edit, settings: dict[str, dict[str, Any]]) -> Path:
    edit(workspace, {f"{SCORES}/{name}": own for name, own in settings.items()})
    return run_stage(workspace, "scores", "toy", "ngame").folder


def served(workspace: Workspace, name: str) -> VectorScore:
    found = open_scores(workspace).fitted()[name]
    assert isinstance(found, VectorScore)
    return found


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
@pytest.mark.parametrize("joined", [False, True])
def test_rows_are_searched_alone_or_as_sums_with_texts_and_values_are_always_those_of_rows(
    kind: str, joined: bool, copied: Workspace, edit: Edit
) -> None:
    built(copied, edit, {"classifier": {"joined": joined, "index": {"kind": kind}}})
    rows, embeddings = rows_of(copied), open_embeddings(copied)
    queries, texts = np.array(embeddings.documents_ND[:20]), embeddings.labels_LD
    expected = queries @ rows.T + (queries @ texts.T if joined else 0)
    score = served(copied, "classifier")
    assert score.index is not None
    found = score.index.search(queries, len(rows))
    np.testing.assert_array_equal(found.ids_NK, np.argsort(-expected, axis=1, kind="stable"))
    np.testing.assert_allclose(found.scores_NK, -np.sort(-expected, axis=1), atol=1e-5)
    np.testing.assert_array_equal(score.candidates(Query(queries), 3), found.ids_NK[:, :3])
    ids_NK = np.tile(np.arange(len(rows), dtype=np.int32), (len(queries), 1))
    np.testing.assert_allclose(score.values(Query(queries), ids_NK), queries @ rows.T, atol=1e-5)
    assert not np.allclose(texts, rows), "sums and rows can be distinguished"


@pytest.mark.parametrize("texts", [True, False])
def test_label_texts_have_an_index_of_their_own_if_they_are_searched(
    texts: bool, copied: Workspace, edit: Edit, lines: list[str]
) -> None:
    built(copied, edit, {"label_text": {"search": texts}, "classifier": {"joined": True}})
    (said,) = (line for line in lines if line.startswith("scores: "))
    assert f" fitted on {len(open_scores(copied).folds)} folds; search recall " in said
    score, query = served(copied, "label_text"), Query(np.array(open_embeddings(copied).labels_LD))
    assert ("label_text" in open_scores(copied).recalls) == texts
    assert "classifier" in open_scores(copied).recalls
    found = score.candidates(query, 1)
    if not texts:
        assert (score.index, found) == (None, None)
        return
    assert score.index is not None and found is not None
    assert found[:, 0].tolist() == list(range(len(query)))
    best = score.index.search(query.doc_ND, 1).scores_NK[:, 0]
    np.testing.assert_allclose(best, (query.doc_ND**2).sum(1), rtol=1e-5)


def test_only_scores_that_are_served_have_an_index_for_single_queries(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out documents are asked all at once, so exact search does, and no graph is built."""
    monkeypatch.setattr("xc_core.ann.base.EXACT_UP_TO", 2)
    run_stage(copied, "scores", "toy", "ngame", force=True)
    scores = open_scores(copied)
    exact = {
        fold.name: isinstance(getattr(scores.fitted(fold.name)["classifier"], "index", None), ExactIndex)
        for fold in scores.folds
    }
    assert exact == {HELD[0]: True, HELD[1]: True, FINAL: False}


def recall(score: VectorScore, vectors_LD: F32, queries: F32) -> float:
    """Return the share of each query's four nearest vectors that the index finds, by a loop."""
    assert score.index is not None
    found = score.index.search(queries, NEAR).ids_NK
    near = np.argsort(-(queries @ vectors_LD.T), axis=1)[:, :NEAR]
    return float(np.mean([len(set(a) & set(b)) / NEAR for a, b in zip(found.tolist(), near.tolist(), strict=True)]))


@pytest.fixture
def at_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure recall at 4 labels per document: the toy world has ten in all."""
    monkeypatch.setattr(vectors, "_RECALL_AT", NEAR)


@pytest.mark.usefixtures("at_four")
@pytest.mark.parametrize("measured", [1000, 5])
def test_recall_is_measured_on_the_first_validation_documents(
    measured: int, copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage._QUERY_DOCUMENTS == 1000
    monkeypatch.setattr(stage, "_QUERY_DOCUMENTS", measured)
    folder = built(copied, edit, INDEXED)
    corpus, embeddings = open_corpus(copied), open_embeddings(copied)

    def by(rows: I64, name: str) -> float:
        searched = {"classifier": rows_of(copied), "label_text": embeddings.labels_LD}[name]
        return recall(served(copied, name), searched, np.array(embeddings.documents_ND[rows]))

    figures = artifacts.read_made(folder).facts["figures"]
    for name in INDEXED:
        own = by(corpus.rows(VALIDATION)[:measured], name)
        assert own < 0.9
        assert open_scores(copied).recalls[name] == figures[name]["recall"] == pytest.approx(own)
        others = [corpus.rows(VALIDATION), corpus.rows(TEST), corpus.rows(TRAIN)][measured == 1000 :]
        if name == "classifier":
            assert own not in [by(rows, name) for rows in others]


@pytest.mark.usefixtures("at_four")
def test_without_validation_documents_recall_is_measured_on_the_first_train_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_QUERY_DOCUMENTS", 7)
    workspace = make_workspace(tmp_path)
    workspace.params.declare_dataset("toy", IngestConfig(validation_fraction=0.0))
    changes = {"encoder": {"epochs": 0.0}, "classifier": {"epochs": 1.0}, "scores": INDEXED}
    workspace.params.declare_experiment("toy", "ngame", "ngame", deep_merged(TOY_CHANGES, changes))
    run_until(workspace, "scores")
    queries = np.array(open_embeddings(workspace).documents_ND[:7])
    own = recall(served(workspace, "classifier"), rows_of(workspace), queries)
    assert open_scores(workspace).recalls["classifier"] == pytest.approx(own)


def test_a_score_of_the_noise_needs_negatives_that_were_drawn_from_a_distribution() -> None:
    tables: Any = SimpleNamespace(noise=lambda fold: None)
    nothing: Any = None
    with pytest.raises(ConfigError, match="negatives were drawn from none") as caught:
        stage.ScoreInputs(nothing, nothing, tables).noise("final")
    assert caught.value.do == "leave the score out: --set scores.noise=null"


def test_the_scores_of_a_fold_read_rows_and_noise_of_its_own_training(trained: Workspace) -> None:
    """The classifiers of the other folds have seen the documents that this one leaves out."""
    folds, asked = [Fold("half-1", refit=True, half=1), Fold(FINAL, refit=True)], list[str]()
    tables: Any = SimpleNamespace(folds=folds, rows=asked.append, noise=lambda name: asked.append(name) or name)
    data = stage.ScoreInputs(open_corpus(trained), open_embeddings(trained), tables).of(folds[0])
    data.rows()
    data.noise()
    assert asked == ["half-1", "half-1"]


def test_the_progress_of_a_graph_names_its_score(
    copied: Workspace, edit: Edit, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    graph = {"index": {"kind": "hnsw"}}
    built(copied, edit, {"classifier": graph, "label_text": graph | {"search": True}})
    for name in ("classifier", "label_text"):
        assert any(line.startswith(f"score {name}: building a graph: ") for line in lines), lines
    assert not any(line.startswith("building a graph") for line in lines)


def test_the_recall_of_documents_is_reported_and_has_no_minimum(
    copied: Workspace, edit: Edit, lines: list[str]
) -> None:
    cells = {"kind": "neighbours", "exact_up_to": 0, "probes": 1}
    built(copied, edit, {"neighbours": cells})
    figures = open_scores(copied).figures["neighbours"]
    assert f"neighbours {figures['document_recall']:.3f} (of documents)" in lines[-1]
    assert "neighbours" not in open_scores(copied).recalls


def test_each_score_of_each_fold_is_named_as_it_is_fitted(
    copied: Workspace, edit: Edit, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads words may take minutes, in which nothing was reported."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    built(copied, edit, INDEXED)
    begun = [line for line in lines if line.startswith("fitting scores")]
    parts = open_scores(copied).parts
    names = [f"{name} of the fold {fold}" for fold in HELD for name, part in parts.items() if part.per_fold]
    names += [f"{name} of the fold final" for name in parts]
    assert len(names) > len(parts)
    assert begun == [f"fitting scores: {number} of {len(names)}, {name}" for number, name in enumerate(names, start=1)]
