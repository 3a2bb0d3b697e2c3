"""What the scores by words are fitted on, beside scikit-learn."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from xc_core.data.labels import LabelMatrix
from xc_core.scores.lexical import write_rows
from xc_core.scores.terms import Terms, TermSettings

_TEXTS: Final = 20_000


@case
def lexical(world: World) -> list[Row]:
    """Terms of texts and the training file of the label trees; needs a corpus alone."""
    texts, settings = world.texts(_TEXTS), TermSettings()
    terms, rows_NT = Terms.fit(texts, settings)
    truth = world.corpus.labels.rows(np.arange(len(texts)))
    same = bool((_scikit_learn(texts, settings).sorted_indices().indices == rows_NT.indices).all())
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.txt", Path(folder) / "theirs.txt"
        return [
            compare(
                f"terms of {len(texts):,} texts",
                lambda: Terms.fit(texts, settings),
                "scikit-learn, fit_transform",
                lambda: _scikit_learn(texts, settings),
                note=f"{len(terms):,} terms, {'the same' if same else 'not the same'}",
            ),
            compare(
                f"training file of {len(texts):,} texts",
                lambda: write_rows(ours, rows_NT, truth),
                "scikit-learn, dump_svmlight_file",
                lambda: _dump(theirs, rows_NT, truth),
            ),
        ]


def _scikit_learn(texts: list[str], settings: TermSettings) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    options = {"min_df": settings.min_documents, "max_features": settings.terms, "dtype": np.float32}
    return TfidfVectorizer(ngram_range=(1, settings.ngrams), sublinear_tf=True, **options).fit_transform(texts)


def _dump(path: Path, rows_NT: Any, truth: LabelMatrix) -> None:
    from scipy.sparse import csr_matrix
    from sklearn.datasets import dump_svmlight_file

    labels_NL = csr_matrix((np.ones(len(truth.indices)), truth.indices, truth.indptr), truth.shape)
    dump_svmlight_file(rows_NT, labels_NL, str(path), multilabel=True)
