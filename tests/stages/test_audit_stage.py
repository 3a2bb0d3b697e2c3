"""The stage audit measures what its settings ask for, on the documents and batches of the final training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tests.stages.halves import open_corpus, open_embeddings, open_tables, seen
from xc_core.chain import Workspace, run_stage
from xc_core.classifiers.tables import LabelTables
from xc_core.cluster import Clusters, theorem1
from xc_core.data.folds import FINAL
from xc_core.metrics import plots
from xc_core.metrics.plots import LabelMap
from xc_core.sampling.audit import Audit
from xc_core.stages import audit

Edit = Callable[[Workspace, dict[str, Any]], None]


def figures(workspace: Workspace, edit: Edit, **settings: float) -> dict[str, Any]:
    edit(workspace, {f"experiments/toy_ngame/stages/audit/{name}": value for name, value in settings.items()})
    run_stage(workspace, "audit", "toy", "ngame")
    return dict(Audit.open(workspace.folder("audit", "toy", "ngame")).figures)


def test_theorem_1_is_measured_on_the_final_training_with_the_radius_of_the_settings(
    copied: Workspace, edit: Edit
) -> None:
    corpus, embeddings = open_corpus(copied), open_embeddings(copied)
    rows = seen(corpus, FINAL)
    truth, clusters = corpus.labels.rows(rows), Clusters.open(copied.folder("clusters", "toy", "ngame")).among(rows)
    vectors = np.array(embeddings.documents_ND[rows]), np.array(embeddings.labels_LD)
    for radius in (0.5, 1.2):
        expected = asdict(theorem1(vectors, truth, truth, clusters, radius=radius, seed=0))
        found = figures(copied, edit, radius=radius)["theorem1"]
        for name in ("radius", "eps1", "eps2", "missed", "bound"):
            assert found[name] == pytest.approx(expected[name]), name


@pytest.mark.parametrize("k", [2, 5])
def test_the_share_of_hard_negatives_in_the_batches_by_a_loop(copied: Workspace, edit: Edit, k: int) -> None:
    found = figures(copied, edit, k=k, sample=1000)
    corpus, embeddings, batches = open_corpus(copied), open_embeddings(copied), open_tables(copied).audited_batches()
    rows = seen(corpus, FINAL)
    truth = corpus.labels.rows(rows)
    assert batches is not None
    held = []
    for batch in batches:
        pool = {label for doc in batch for label in truth.row(int(doc)).tolist()}
        for doc in batch:
            nearest = np.argsort(-(embeddings.labels_LD @ embeddings.documents_ND[rows[doc]])).tolist()
            hard = [label for label in nearest if label not in truth.row(int(doc))][:k]
            held += [label in pool for label in hard]
    assert (found["documents"], found["k"]) == (len(rows), k)
    assert found["held_by_batches"] == pytest.approx(np.mean(held))


def test_a_refreshed_classifier_is_reported_to_have_no_batches(
    copied: Workspace, edit: Edit, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LabelTables, "audited_batches", lambda tables: None)
    assert figures(copied, edit, k=2)["held_by_batches"] is None
    assert any("audit: M4 was not trained here, so there are no batches to measure; hard" in line for line in lines)


def test_documents_with_all_labels_are_reported_to_have_no_negatives(
    copied: Workspace, edit: Edit, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "audit_batches", lambda *_: float("nan"))
    assert figures(copied, edit, k=2)["held_by_batches"] is None
    assert any("audit: the documents have no negatives; hard" in line for line in lines)


def test_the_label_map_is_of_a_document_with_several_labels_whose_batch_holds_half_of_the_hard_negatives(
    copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[LabelMap] = []
    monkeypatch.setattr(plots, "label_map", lambda folder, content, title: drawn.append(content))
    k = figures(copied, edit, k=9, sample=1000)["k"]
    corpus, embeddings, batches = open_corpus(copied), open_embeddings(copied), open_tables(copied).audited_batches()
    rows, titles = seen(corpus, FINAL), corpus.table("labels")["title"].to_list()
    truth = corpus.labels.rows(rows)
    assert batches is not None
    found: dict[int, tuple[float, set[int], set[int]]] = {}
    for batch in batches:
        pool = {label for doc in batch for label in truth.row(int(doc)).tolist()}
        for doc in sorted(int(doc) for doc in batch):
            nearest = np.argsort(-(embeddings.labels_LD @ embeddings.documents_ND[rows[doc]])).tolist()
            hard = {label for label in nearest if label not in truth.row(doc)}
            far = abs(len(hard & pool) / k - 0.5) - min(len(truth.row(doc)), 3)
            found[doc] = (far, pool, hard)
    (content,) = drawn
    doc = next(doc for doc in sorted(found) if np.array_equal(embeddings.documents_ND[rows[doc]], content.doc_D))
    far, pool, hard = found[doc]
    assert far == min(one[0] for one in found.values())
    assert set(content.in_batch.tolist()) == pool
    assert (set(content.held.tolist()), set(content.missed.tolist())) == (hard & pool, hard - pool)
    assert content.positives.tolist() == truth.row(doc).tolist()
    named = {*content.positives.tolist(), *content.held.tolist(), *content.missed.tolist()}
    assert content.titles == {label: titles[label] for label in named}, "no others are read"
    assert content.text == corpus.table("documents", rows[[doc]])["title"][0]
    assert np.array_equal(content.label_LD, embeddings.labels_LD)
