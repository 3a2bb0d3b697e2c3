"""The stage fusion keeps the figures of each validation document, by which models are compared before a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_corpus, open_embeddings, run_until
from tests.stages.test_fusion_fallback import USELESS
from xc_core import artifacts
from xc_core.chain import Workspace, run_stage
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import VALIDATION
from xc_core.fusion import FittedFusion
from xc_core.fusion.inputs import RULE
from xc_core.metrics.evaluation import FUSION
from xc_core.metrics.names import RECALL
from xc_core.metrics.stored import StoredFigures
from xc_core.metrics.validation import open_validation
from xc_core.params import deep_merged
from xc_core.shapes import Shortlist


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace whose encoder is not trained, so that the first label is often wrong, and whose rule is useless."""
    made = make_workspace(tmp_path_factory.mktemp("validation"))
    changes = deep_merged(TOY_CHANGES, {"encoder": {"epochs": 0.0}, "fusion": {"rule": USELESS}})
    made.params.declare_experiment("toy", "ngame", "ngame", changes)
    run_until(made, "fusion")
    return made


def opened(workspace: Workspace) -> StoredFigures:
    found = open_validation(workspace.folder("fusion", "toy", "ngame"))
    assert found is not None
    return found


def test_they_are_the_figures_that_the_stage_reports(workspace: Workspace) -> None:
    facts, stored = artifacts.read_made(workspace.folder("fusion", "toy", "ngame")).facts, opened(workspace)
    assert facts["validation"][facts["served"]] != facts["validation"][FUSION], "what is served is not the rule"
    reported = {RULE if name == FUSION else name: own for name, own in facts["validation"].items()}
    reported[FUSION] = facts["figures"]
    assert set(stored.names) == set(reported)
    for name, figures in reported.items():
        found = stored.of(name)
        assert found is not None
        total = found.total()
        assert figures == pytest.approx({metric: total[metric] for metric in figures}, rel=1e-6)


def test_each_figure_belongs_to_its_document(workspace: Workspace) -> None:
    """The label text alone ranks a label first, which is known here."""
    corpus, embeddings, stored = open_corpus(workspace), open_embeddings(workspace), opened(workspace)
    rows, figures = stored.rows, stored.of("label_text")
    assert figures is not None
    assert set(rows) <= set(corpus.rows(VALIDATION).tolist())
    assert len(rows) > 15 and (np.diff(rows) > 0).all()
    best_N = (embeddings.documents_ND[rows] @ embeddings.labels_LD.T).argmax(1)
    right_N = corpus.labels.contains(rows, best_N.astype(np.int32))
    assert 0 < right_N.sum() < len(rows)
    np.testing.assert_array_equal(figures.num["P_at_1"], right_N)


def test_bins_count_train_and_validation_documents_as_those_of_the_report(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label of the toy has more than 20 of them with its test documents and without, so a lower end is moved."""
    corpus = open_corpus(workspace)
    published_L, all_L = corpus.published_train().frequency_L(), corpus.labels.frequency_L()
    most = int(published_L.max())
    assert (all_L > most).any()
    monkeypatch.setattr(
        "xc_core.metrics.report.BINS", (("tail", 0, most - 1), ("torso", most, most), ("head", most + 1, None))
    )
    run_stage(workspace, "fusion", "toy", "ngame", force=True)
    figures, truth = opened(workspace).of("label_text"), corpus.labels.rows(opened(workspace).rows)
    assert figures is not None
    torso = [int((published_L[truth.rows(np.array([row])).indices] == most).sum()) for row in range(len(truth))]
    assert figures.den[RECALL["torso"]].tolist() == torso
    assert any(torso) and not figures.den[RECALL["head"]].any()


def test_the_served_model_is_measured_at_the_default_of_its_dial(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy's own dial has no effect, so that figures at 0 would pass."""
    right: list[Any] = []

    def with_dial(context: Any, served: FittedFusion, ranked: Shortlist, truth: LabelMatrix, *_: Any) -> Any:
        turned = Shortlist(ranked.ids_NK[:, ::-1], ranked.scores_NK[:, ::-1])
        right.append(truth.contains(np.arange(len(truth)), turned.ids_NK[:, 0]))
        return served, turned

    monkeypatch.setattr("xc_core.stages.fusion._with_dial", with_dial)
    run_stage(workspace, "fusion", "toy", "ngame", force=True)
    figures = opened(workspace).of(FUSION)
    assert figures is not None
    np.testing.assert_array_equal(figures.num["P_at_1"], right[0])
