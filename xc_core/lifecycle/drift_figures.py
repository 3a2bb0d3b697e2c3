"""Measures how far the data have moved away from a model: unknown labels, drift of vectors, recall on new documents.

Only train and validation documents are read. Which of them are new, the changelog of the dataset says.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.artifacts import read_made, steady
from xc_core.chain import changelog
from xc_core.chain.dataset import DriftConfig
from xc_core.chain.workspace import Workspace
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.errors import MissingError, MovedError
from xc_core.infer.acceptance import AT_ONCE, shortlists
from xc_core.infer.bundle import Model
from xc_core.infer.predictor import Predictor
from xc_core.lifecycle.drift import Figures, Record, decide, versions
from xc_core.metrics.ranking import per_document, without
from xc_core.progress import optional
from xc_core.shapes import F32, F64, I64, spans

_RECALL: Final = "R_at_10"


def judged(workspace: Workspace, dataset: str, recipe: str) -> Record:
    """Measure the model of an experiment, apply the rule, and write the record, if it can be written."""
    limits = workspace.params.experiment(dataset, recipe).dataset.drift
    corpus, model = versions(workspace, dataset, recipe)
    figures = measured(workspace, dataset, recipe, limits) if model else None
    record = Record(corpus, model, figures, decide(figures, limits))
    with optional("the answer is not kept, so xc status will not show it"):
        record.write(workspace, dataset, recipe)
    return record


def measured(workspace: Workspace, dataset: str, recipe: str, limits: DriftConfig) -> Figures:
    """Return the figures of the packed model of an experiment.

    Raises MissingError, CorruptError for artefacts that cannot be read.
    """
    corpus = workspace.open(Corpus, dataset)
    tables = workspace.open(LabelTables, dataset, recipe)
    folder = workspace.folder("model", dataset, recipe)
    model, predictor = steady(folder, lambda: ((opened := Model.open(folder)), opened.predictor()))
    known, trained = set(predictor.uids), set(tables.labels()["uid"].gather(_trained_rows(tables)).to_list())
    uids = corpus.table("labels")["uid"].to_list()
    since_training = _new_rows(workspace, dataset, recipe, corpus, "encoder")
    since_model = _new_rows(workspace, dataset, recipe, corpus, "model")
    return Figures(
        labels=len(uids),
        unknown_labels=sum(uid not in known for uid in uids),
        untrained_labels=sum(uid not in trained or uid not in known for uid in uids),
        documents_since_training=None if since_training is None else len(since_training),
        query_auc=_query_auc(corpus, predictor, since_training, limits),
        documents_since_model=None if since_model is None else len(since_model),
        new_recall=_new_recall(corpus, predictor, since_model, limits),
        test_recall=model.facts.metrics.get(_RECALL),
        refreshed=read_made(tables.folder).refreshed,
        refused=_refusal(tables, corpus),
    )


def _refusal(tables: LabelTables, corpus: Corpus) -> str | None:
    """Return why a refresh would not keep the rows: what they learnt from is not known, or is held out now."""
    try:
        tables.check_unseen(corpus)
    except (MissingError, MovedError) as error:
        return error.found
    return None


def _trained_rows(tables: LabelTables) -> list[int]:
    return [row for row in range(len(tables.labels())) if row not in tables.foreseen]


def _new_rows(workspace: Workspace, dataset: str, recipe: str, corpus: Corpus, stage: str) -> I64 | None:
    """Return the rows of documents that came after the artefact of a stage was made; None if nobody can tell."""
    digest = workspace.made(stage, dataset, recipe).depends.get("corpus")
    if digest is None:
        raise MissingError(
            f"no record of what {stage} of {dataset}/{recipe} was made from",
            expected="a model that xc made",
            do=workspace.params.train_command(dataset, recipe),
        )
    uids = changelog.added_since(workspace, dataset, digest, corpus.digest)
    if uids is None:
        return None
    rows = corpus.published_rows()
    return rows[[uid in uids for uid in corpus.uids(rows)]] if uids else rows[:0]


def _query_auc(corpus: Corpus, predictor: Predictor, new_rows: I64 | None, limits: DriftConfig) -> float | None:
    """Return how well a classifier tells vectors of new documents from those of the training documents (ROC AUC)."""
    if new_rows is None or len(new_rows) < limits.fewest:
        return None
    older = np.setdiff1d(corpus.published_rows(), new_rows)
    if len(older) < limits.fewest:
        return None
    sides = (corpus.texts_of("documents", corpus.drawn(rows, limits.sample)) for rows in (older, new_rows))
    return two_sample_auc(*(_embedded(predictor, texts) for texts in sides))


def _embedded(predictor: Predictor, texts: list[str]) -> F32:
    return np.concatenate([predictor.embed(texts[rows]) for rows in spans(len(texts), AT_ONCE)])


def two_sample_auc(one_ND: F32, other_MD: F32) -> float:
    """Return the area under the ROC curve of a linear classifier of two samples, on vectors that it was not fitted on.

    0.5 if they have the same distribution, 1 if a plane separates them. A classifier two-sample test (Lopez-Paz and
    Oquab, ICLR 2017) with Fisher's linear discriminant, fitted on half of each sample and applied to the other half.
    It sees that the mean has moved, not that only the spread has changed.
    """
    halves = [(one_ND[start::2], other_MD[start::2]) for start in (0, 1)]
    aucs = []
    for fitted, held_out in (halves, halves[::-1]):
        direction_D = _discriminant(*fitted)
        aucs.append(auc(held_out[1] @ direction_D, held_out[0] @ direction_D))
    return float(np.mean(aucs))


def _discriminant(one_ND: F32, other_MD: F32) -> F64:
    """Return the direction that separates two samples: the difference of the means by the covariance within them.

    The covariance is shrunk by half towards a multiple of the identity, because a sample may be smaller than D.
    """
    centred = np.concatenate([sample_ND - sample_ND.mean(0, dtype=np.float64) for sample_ND in (one_ND, other_MD)])
    covariance_DD = centred.T @ centred / len(centred)
    width = len(covariance_DD)
    shrunk_DD = 0.5 * covariance_DD + (0.5 * np.trace(covariance_DD) / width + 1e-12) * np.eye(width)
    return np.linalg.solve(shrunk_DD, other_MD.mean(0, dtype=np.float64) - one_ND.mean(0, dtype=np.float64))


def auc(positive_N: F64, negative_M: F64) -> float:
    """Return the share of pairs in which the positive has the higher score; equal scores count half."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([positive_N, negative_M]))[: len(positive_N)]
    above = ranks.sum() - len(positive_N) * (len(positive_N) + 1) / 2
    return float(above / (len(positive_N) * len(negative_M)))


def _new_recall(corpus: Corpus, predictor: Predictor, new_rows: I64 | None, limits: DriftConfig) -> float | None:
    """Return the recall@10, in percent, on new documents, of labels that the model knows; None for too few."""
    if new_rows is None or len(new_rows) < limits.fewest:
        return None
    row_of = {uid: label for label, uid in enumerate(corpus.table("labels")["uid"].to_list())}
    known_L = np.zeros(corpus.num_labels, bool)
    known_L[[row_of[uid] for uid in predictor.uids if uid in row_of]] = True
    rows = corpus.drawn(new_rows, limits.sample)
    rows = rows[corpus.labels.rows(rows).only(known_L).counts_N > 0]
    if len(rows) < limits.fewest:
        return None
    ranked = without(shortlists(predictor, corpus.texts_of("documents", rows), row_of), corpus.filters.rows(rows))
    truth = corpus.labels.rows(rows).only(known_L)
    return per_document(ranked, truth, corpus.weights()).total()[_RECALL]
