"""What a trial is judged by: figures on validation documents that the vectors have not seen, and of what is served."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.stages.halves import open_corpus, open_embeddings, open_tables
from tests.tune import records
from tests.tune.conftest import CHANGES, LATE, Tune
from xc_core.chain import STAGES, Workspace
from xc_core.chain.experiment import Experiment
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.errors import MovedError
from xc_core.metrics.ranking import per_document
from xc_core.recipes import find_recipe
from xc_core.shapes import F32, I32, I64, Shortlist
from xc_core.tune import asked, early
from xc_core.tune.metric import Metric
from xc_core.tune.record import TrialOutcome, study_folder
from xc_core.tune.space import TRIAL_STAGES
from xc_core.tune.study import _Attempt
from xc_core.tune.trial import Result, Trial


@pytest.fixture
def trained(noisy: Workspace) -> Trial:
    """The trained experiment, as if it was a trial; only read."""
    return Trial(noisy.root, noisy, noisy.params.experiment("toy", "ngame"))


def hits(workspace: Workspace, rows: I64, vectors_LD: F32) -> list[bool]:
    """Return whether the label with the highest product is right, per document."""
    best_N = (open_embeddings(workspace).documents_ND[rows] @ vectors_LD.T).argmax(1)
    return open_corpus(workspace).labels.contains(rows, best_N).tolist()


def test_early_figures_of_label_texts_are_of_validation_documents(trained: Trial, noisy: Workspace) -> None:
    figures, corpus, texts_LD = early.early(trained, "embeddings"), open_corpus(noisy), open_embeddings(noisy).labels_LD
    first = {split: 100 * np.mean(hits(noisy, corpus.rows(split), texts_LD)) for split in (TRAIN, VALIDATION)}
    assert figures is not None
    assert figures["P_at_1"] == pytest.approx(first[VALIDATION])
    assert first[TRAIN] != pytest.approx(first[VALIDATION])


def test_early_figures_of_rows_are_of_the_fold_that_has_not_seen_the_document(trained: Trial, noisy: Workspace) -> None:
    figures, corpus, tables = early.early(trained, "classifier"), open_corpus(noisy), open_tables(noisy)
    *held_out, final = tables.folds
    unseen = [hit for fold in held_out for hit in hits(noisy, fold.unseen(corpus), tables.rows(fold.name))]
    learnt = hits(noisy, corpus.rows(VALIDATION), tables.rows(final.name))
    assert figures is not None
    assert figures["P_at_1"] == pytest.approx(100 * np.mean(unseen))
    assert len(unseen) == len(learnt) and sum(learnt) > sum(unseen)


def test_early_figures_add_a_bias_and_leave_out_filtered_pairs(trained: Trial, noisy: Workspace) -> None:
    """As an evaluation does."""
    corpus, embeddings = open_corpus(noisy), open_embeddings(noisy)
    rows = corpus.rows(VALIDATION)
    texts_LD, bias_L = embeddings.labels_LD, np.linspace(-0.5, 0.5, corpus.num_labels, dtype=np.float32)
    first_N = (embeddings.documents_ND[rows] @ texts_LD.T + bias_L).argmax(1)
    wide_LD = np.concatenate([texts_LD, bias_L[:, None]], 1)

    def figures(filters: LabelMatrix) -> float:
        own = replace(corpus)
        own.__dict__.update(filters=filters)
        found = early._figures(own, embeddings, [(rows, wide_LD)])
        assert found is not None
        return found["P_at_1"]

    right_N = corpus.labels.contains(rows, first_N)
    assert figures(corpus.filters) == pytest.approx(100 * right_N.mean())
    every = LabelMatrix.from_pairs(rows, first_N, (corpus.num_documents, corpus.num_labels))
    second_N = np.argsort(-(embeddings.documents_ND[rows] @ texts_LD.T + bias_L), 1)[:, 1]
    assert figures(every) == pytest.approx(100 * corpus.labels.contains(rows, second_N).mean())


def test_early_figures_are_those_of_an_evaluation_at_every_depth(
    trained: Trial, noisy: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if pairs are filtered, and of as many documents as a search is allowed."""
    monkeypatch.setattr(early, "_ROWS", 12)
    corpus, texts_LD = open_corpus(noisy), open_embeddings(noisy).labels_LD
    rows = corpus.drawn(corpus.rows(VALIDATION), 12)
    scores_NL = open_embeddings(noisy).documents_ND[rows] @ texts_LD.T
    ranked_NL = np.argsort(-scores_NL, 1).astype(np.int32)
    filters = LabelMatrix.from_pairs(np.repeat(rows, 3), ranked_NL[:, :3].ravel().astype(np.int64), corpus.labels.shape)

    def expected(ids_NK: I32) -> dict[str, float]:
        short = Shortlist(ids_NK, np.zeros(ids_NK.shape, np.float32))
        return per_document(short, corpus.labels.rows(rows), corpus.weights()).total()

    found = early.early(trained, "embeddings")
    assert found == pytest.approx(expected(ranked_NL[:, :5]))
    monkeypatch.setattr(Corpus, "filters", filters)
    assert early.early(trained, "embeddings") == pytest.approx(expected(ranked_NL[:, 3:8]))


@pytest.mark.parametrize("served", ["fusion", "classifier"])
@pytest.mark.parametrize("at_default", [{"P_at_1": 39.0}, {}, None])
def test_a_trial_is_judged_by_what_is_served(
    served: str, at_default: dict[str, float] | None, trained: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fallback this is a score or the sum, not the rule; with a dial, it is what its default gives.

    Artefacts of earlier versions do not state the latter.
    """
    figures = {name: {"P_at_1": value} for name, value in (("classifier", 40.0), ("sum", 30.0), ("fusion", 20.0))}
    facts = {"validation": figures, "served": served, "documents": 31}
    facts |= {} if at_default is None else {"figures": at_default}
    monkeypatch.setattr(Workspace, "made", lambda *_: SimpleNamespace(facts=facts))
    found = trained.result()
    assert (found.figures, found.served, found.documents) == (at_default or figures[served], served, 31)


@pytest.mark.parametrize(("names", "expected"), [(["classifier", "sum"], "sum"), (["classifier"], "classifier")])
def test_a_rule_that_learns_nothing_is_judged_by_the_sum_or_by_its_only_score(
    names: list[str], expected: str, trained: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {name: {"P_at_1": float(place)} for place, name in enumerate(names)}
    facts = {"validation": figures, "documents": 31}
    monkeypatch.setattr(Workspace, "made", lambda *_: SimpleNamespace(facts=facts))
    found = trained.result()
    assert (found.figures, found.served) == (figures[expected], expected)


def test_a_trial_without_finite_figures_is_compared_with_none() -> None:
    tuning: Any = SimpleNamespace(metric=Metric.of("mean"), plan=[{}])
    nobody: Any = None
    attempt = _Attempt(tuning, nobody, records.trial(1), None, {})
    attempt._judge(Result({**records.FIGURES, "PSP_at_5": float("nan")}, "fusion", 5))
    record = attempt.record
    assert (record.state, record.value, record.why) == (TrialOutcome.FAILED, None, "the figures are not finite")


def test_another_version_of_a_stage_is_another_study(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune(LATE, "--trials", "1").code == 0
    *others, last = TRIAL_STAGES
    monkeypatch.setattr(asked, "TRIAL_STAGES", (*others, replace(last, code_version="next")))
    ended = tune(LATE, "--trials", "2")
    ended.refused(64, "with another version of the code of a stage, of a default or", "--study NAME")
    assert "first command" not in ended.err  # that is the one that was refused


def test_a_trial_whose_data_changed_says_what_to_do(project: Workspace) -> None:
    """In the folder of a study there is no params.yaml."""
    base = Experiment(project.params.dataset("toy"), find_recipe("ngame"))
    one = Trial.of(project, study_folder(project, "toy", "one"), base, CHANGES)
    (project.raw("toy") / "new.txt").touch()
    with pytest.raises(MovedError, match=r"corpus out of date: (.|\n)+do this: +start another study"):
        one.run(STAGES["encoder"])
