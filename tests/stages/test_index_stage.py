"""The stage index: what is searched (rows, or rows and label texts as one), and which documents recall is of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core import artifacts
from xc_core.ann import load_index
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.params import deep_merged
from xc_core.shapes import F32
from xc_core.stages import STAGES, Workspace, run_stage

Edit = Callable[[Workspace, dict[str, Any]], None]
INDEX = "experiments/toy_ngame/stages/index"
COARSE = {"kind": "ivf", "lists": 5, "probes": 1, "k": 4}
"""Cells of two labels, of which one is visited: half of four nearest labels are found at most."""


def load(workspace: Workspace, stage: str, name: str) -> F32:
    found: F32 = np.load(workspace.folder(stage, "toy", "ngame") / name)
    return found


def built(workspace: Workspace, edit: Edit, **settings: Any) -> Path:
    edit(workspace, {f"{INDEX}/{name}": value for name, value in settings.items()})
    return run_stage(workspace, "index", "toy", "ngame").folder


def facts(folder: Path) -> dict[str, Any]:
    return dict(artifacts.verify(folder, kind="index").facts)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_score_by_row_is_that_of_the_row_or_of_row_and_text_together(
    kind: str, joined: bool, copied: Workspace, edit: Edit
) -> None:
    folder = built(copied, edit, joined=joined, rows={"kind": kind, "k": 3})
    rows, texts = load(copied, "classifier", "rows.npy"), load(copied, "embeddings", "labels.npy")
    queries = load(copied, "embeddings", "documents.npy")[:20]
    expected = queries @ rows.T + (queries @ texts.T if joined else 0)
    found = load_index(folder / "by_row").search(queries, len(rows))
    np.testing.assert_array_equal(found.ids_NK, np.argsort(-expected, axis=1, kind="stable"))
    np.testing.assert_allclose(found.scores_NK, -np.sort(-expected, axis=1), atol=1e-5)
    assert not np.allclose(texts, rows), "sums and rows are told apart"


@pytest.mark.parametrize("texts", [True, False])
def test_label_texts_have_an_index_of_their_own_where_they_are_to_be_searched(
    texts: bool, copied: Workspace, edit: Edit
) -> None:
    folder = built(copied, edit, texts=texts, joined=True, rows={"kind": "exact", "k": 3})
    assert (folder / "by_text").is_dir() == texts
    assert ("recall_by_text" in facts(folder)) == texts
    if texts:
        vectors = load(copied, "embeddings", "labels.npy")
        found = load_index(folder / "by_text").search(vectors, 1)
        assert found.ids_NK[:, 0].tolist() == list(range(len(vectors)))
        np.testing.assert_allclose(found.scores_NK[:, 0], (vectors**2).sum(1), rtol=1e-5)


def recall(folder: Path, vectors_LD: F32, queries: F32) -> float:
    """Return the share of each query's four nearest vectors that the index finds, by a loop."""
    found = load_index(folder).search(queries, COARSE["k"]).ids_NK
    near = np.argsort(-(queries @ vectors_LD.T), axis=1)[:, : COARSE["k"]]
    return float(
        np.mean([len(set(a) & set(b)) / COARSE["k"] for a, b in zip(found.tolist(), near.tolist(), strict=True)])
    )


@pytest.mark.parametrize("queries", [1000, 5])
def test_recall_is_measured_on_validation_documents_the_first_that_are_asked_for(
    queries: int, copied: Workspace, edit: Edit
) -> None:
    folder = built(copied, edit, queries=queries, rows=COARSE)
    corpus = Corpus.open(copied.folder("corpus", "toy"))
    documents = load(copied, "embeddings", "documents.npy")
    for name, vectors in (("row", ("classifier", "rows.npy")), ("text", ("embeddings", "labels.npy"))):
        searched = load(copied, *vectors)
        own = recall(folder / f"by_{name}", searched, documents[corpus.rows(VALIDATION)[:queries]])
        assert facts(folder)[f"recall_by_{name}"] == pytest.approx(own)
        others = [corpus.rows(VALIDATION), corpus.rows(TEST), corpus.rows(TRAIN)][queries == 1000 :]
        if name == "row":
            assert own not in [recall(folder / "by_row", searched, documents[rows]) for rows in others]


def test_without_validation_documents_recall_is_measured_on_the_first_train_documents(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    workspace.declare_dataset("toy", IngestConfig(validation_fraction=0.0))
    changes = {"encoder": {"epochs": 0.0}, "classifier": {"epochs": 1.0}, "index": {"rows": COARSE, "queries": 7}}
    workspace.declare_experiment("toy", "ngame", "ngame", deep_merged(TOY_CHANGES, changes))
    for name in list(STAGES)[: list(STAGES).index("index") + 1]:
        run_stage(workspace, name, "toy", "ngame")
    folder = workspace.folder("index", "toy", "ngame")
    queries = load(workspace, "embeddings", "documents.npy")[:7]
    own = recall(folder / "by_row", load(workspace, "classifier", "rows.npy"), queries)
    assert facts(folder)["recall_by_row"] == pytest.approx(own)
