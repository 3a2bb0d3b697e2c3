"""A released model judged on a dataset's test documents as they are now, whatever it was trained on.

Takes: a bundle, a workspace, a dataset.                         Gives: metrics, as the stage evaluation has them.
May import: bundle, data, metrics, shapes, released, workspace.   Never: fits, chooses or keeps anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from xc_core.bundle import open_bundle
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST
from xc_core.metrics.ranking import per_document, without
from xc_core.progress import Meter
from xc_core.shapes import PAD_ID, Shortlist
from xc_core.stages.released import weights
from xc_core.stages.workspace import Workspace

_TEXTS_AT_ONCE: Final = 1024
_DEEP: Final = 100
"""Labels asked for: enough for 10 where many pairs are filtered."""


def rejudged(folder: Path, workspace: Workspace, dataset: str) -> dict[str, float]:
    """Return the metrics, in percent, of the bundle in ``folder`` on the test documents of today's corpus.

    Labels are matched by uid; one that the dataset no longer has is a wrong answer. Raises MissingError, CorruptError.
    """
    corpus = Corpus.open(workspace.folder("corpus", dataset))
    predictor = open_bundle(folder)
    now = {uid: label for label, uid in enumerate(corpus.table("labels")["uid"])}
    now_L = np.array([now.get(uid, PAD_ID) for uid in predictor.uids] + [PAD_ID], np.int32)  # the last is a hole's
    rows = corpus.rows(TEST)
    texts = corpus.own_texts("documents", rows, workspace.experiment(dataset, None).tokens.fields)
    parts = []
    with Meter("judging the champion", len(texts), "documents") as meter:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            found = predictor.shortlist(texts[start : start + _TEXTS_AT_ONCE], _DEEP)
            parts.append(Shortlist(now_L[found.ids_NK], found.scores_NK))
            meter.update(len(found))
    ranked = without(Shortlist.stack(parts), corpus.filters.rows(rows))
    return per_document(ranked, corpus.labels.rows(rows), weights(corpus)).total()
