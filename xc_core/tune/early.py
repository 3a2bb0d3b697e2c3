"""Figures of a trial before its fusion, for the pruner: one score alone, on validation documents it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import unseen
from xc_core.data.splits import VALIDATION
from xc_core.metrics.names import KS
from xc_core.metrics.ranking import per_document, without
from xc_core.shapes import F32, I64, extended
from xc_core.tune.trial import Trial

_ROWS: Final = 1000
"""Validation documents that are searched."""
_SCORES: Final = {"embeddings": "label_text", "classifier": "classifier"}
"""By stage: the score whose vectors of labels are known after it."""


def early(trial: Trial, stage: str) -> Mapping[str, float] | None:
    """Return figures on validation documents that are known after a stage, before the fusion; None if none are."""
    from xc_core.classifiers import LabelTables

    if _SCORES.get(stage) not in trial.experiment.recipe.scores:
        return None
    key = trial.experiment.key
    corpus, embeddings = trial.open(Corpus, *key), trial.open(Embeddings, *key)
    if stage == "embeddings":
        parts = [(corpus.drawn(corpus.rows(VALIDATION), _ROWS), embeddings.labels_LD)]
    else:
        tables = trial.open(LabelTables, *key)
        parts = [(documents, tables.rows(fold.name)) for fold, documents in unseen(tables.folds, corpus, _ROWS)]
    return _figures(corpus, embeddings, parts)


def _figures(corpus: Corpus, embeddings: Embeddings, parts: list[tuple[I64, F32]]) -> dict[str, float] | None:
    """Return the figures of documents ranked by dot products with the label vectors; None if there are no documents.

    Label vectors that are one coordinate wider end with a bias. Filtered pairs are left out, as in an evaluation.
    """
    from xc_core.ann import Exact
    from xc_core.shapes import Shortlist

    parts = [part for part in parts if len(part[0])]
    if not parts:
        return None
    shortlists = []
    for documents, vectors_LD in parts:
        doc_ND, filters = np.ascontiguousarray(embeddings.documents_ND[documents]), corpus.filters.rows(documents)
        if vectors_LD.shape[1] > doc_ND.shape[1]:
            doc_ND = extended(doc_ND, 1.0)
        depth = min(max(KS) + int(filters.counts_N.max(initial=0)), len(vectors_LD))
        shortlists.append(without(Exact().build(vectors_LD).search(doc_ND, depth), filters).top(max(KS)))
    truth = corpus.labels.rows(np.concatenate([documents for documents, _ in parts]))
    return per_document(Shortlist.stack(shortlists), truth, corpus.weights()).total()
