"""Evaluates a packed model on the current test documents of a dataset, whatever it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST
from xc_core.infer.bundle import open_predictor
from xc_core.metrics.ranking import per_document, without
from xc_core.progress import Meter
from xc_core.shapes import PAD_ID, Shortlist

_TEXTS_AT_ONCE: Final = 1024
_DEEP: Final = 100
"""Labels predicted per document: enough for metrics at 10 even if many pairs are filtered."""


def reevaluated(folder: Path, corpus: Corpus) -> dict[str, float]:
    """Return the metrics, in percent, of the packed model in ``folder`` on the test documents of ``corpus``.

    Labels are matched by uid; a predicted label that the corpus does not have counts as wrong. Raises MissingError,
    CorruptError.
    """
    predictor = open_predictor(folder)
    ids = {uid: label for label, uid in enumerate(corpus.table("labels")["uid"])}
    id_L = np.array([ids.get(uid, PAD_ID) for uid in predictor.uids] + [PAD_ID], np.int32)  # the last is for holes
    rows = corpus.rows(TEST)
    texts = corpus.texts_of("documents", rows)
    parts = []
    with Meter("evaluating the champion", len(texts), "documents") as meter:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            found = predictor.shortlist(texts[start : start + _TEXTS_AT_ONCE], _DEEP)
            parts.append(Shortlist(id_L[found.ids_NK], found.scores_NK))
            meter.update(len(found))
    ranked = without(Shortlist.stack(parts), corpus.filters.rows(rows))
    return per_document(ranked, corpus.labels.rows(rows), corpus.weights()).total()
