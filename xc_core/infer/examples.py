"""Examples of right and wrong predictions, with the scores behind them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.infer.ranker import Ranker, values
from xc_core.scores import Query
from xc_core.shapes import F32, I64, PAD_ID, Shortlist

_LABELS: Final = 5
"""Labels shown of a text."""


def right_and_wrong(short: Shortlist, truth: LabelMatrix, picked: I64, count: int) -> I64:
    """Return ``count`` of the documents ``picked``: half of them with a true first label, half without, in order."""
    if not short.ids_NK.shape[1]:
        return picked[:count]
    true = truth.contains(picked, short.ids_NK[picked, 0])
    right, wrong = picked[true], picked[~true]
    num_right = max((count + 1) // 2, count - len(wrong))
    return np.concatenate([right[:num_right], wrong[: count - min(num_right, len(right))]])


def examples(
    corpus: Corpus, ranker: Ranker, vectors_ND: F32, rows: I64, short: Shortlist, truth: LabelMatrix
) -> list[dict[str, Any]]:
    """Return texts with predicted labels, the value of each score for them, and true labels.

    ``rows`` are the corpus rows of the documents, whose predicted and true labels are the rows of ``short`` and
    ``truth``.
    """
    documents = corpus.table("documents", rows)
    ids_NK, fused_NK = short.ids_NK[:, :_LABELS], short.scores_NK[:, :_LABELS]
    positives = [truth.row(row).tolist() for row in range(len(rows))]
    titles = titles_of(corpus, chain(ids_NK[ids_NK != PAD_ID].tolist(), *positives))
    query = Query(np.ascontiguousarray(vectors_ND[rows]), lambda: corpus.texts_of("documents", rows))
    values_NKF = values(ranker.scores, query, ids_NK) if len(rows) else np.zeros((*ids_NK.shape, 0), np.float32)
    shown = []
    for row, document in enumerate(documents.iter_rows(named=True)):
        true = set(positives[row])
        predicted = [
            {
                "label": titles[label],
                "true": label in true,
                "fused": _number(fused_NK[row, place]),
                "scores": dict(zip(ranker.scores, map(_number, values_NKF[row, place]), strict=True)),
            }
            for place, label in enumerate(ids_NK[row].tolist())
            if label != PAD_ID
        ]
        text = f"{document['title']} {document['content']}".strip()
        right = bool(predicted) and bool(predicted[0]["true"])
        named = [titles[label] for label in sorted(true)]
        shown.append({"uid": document["uid"], "text": text, "right": right, "predicted": predicted, "true": named})
    return shown


def titles_of(corpus: Corpus, labels: Iterable[int]) -> dict[int, str]:
    """Return the titles of some labels by id, the uid of a label without a title; others are not read."""
    ids = np.unique(np.fromiter(labels, np.int64))
    table = corpus.table("labels", ids)
    names = [title if title.strip() else uid for title, uid in zip(table["title"], table["uid"], strict=True)]
    return dict(zip(ids.tolist(), names, strict=True))


def _number(value: Any) -> float | None:
    """Return a number with four significant digits; None if it is not finite."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
