"""The scores by words: terms, beside scikit-learn; fits and searches of label trees, beside omikuji."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.omikuji_files import quiet, write_rows
from benchmarks.world import World
from xc_core.data.labels import LabelMatrix
from xc_core.scores.beam_search import shortlist
from xc_core.scores.forest import Forest
from xc_core.scores.lexical import Lexical
from xc_core.scores.omikuji_tree import read_tree
from xc_core.scores.terms import Terms, TermSettings
from xc_core.scores.trees.growing import grow

_TEXTS: Final = 20_000
_SEARCHED: Final = 512
_FITTED: Final = 5_000


@case
def lexical(world: World) -> list[Row]:
    """Terms of texts; needs a corpus alone."""
    texts, settings = world.texts(_TEXTS), TermSettings()
    terms, rows_NT = Terms.fit(texts, settings)
    same = bool((_scikit_learn(texts, settings).sorted_indices().indices == rows_NT.indices).all())
    return [
        compare(
            f"terms of {len(texts):,} texts",
            lambda: Terms.fit(texts, settings),
            "scikit-learn, fit_transform",
            lambda: _scikit_learn(texts, settings),
            note=f"{len(terms):,} terms, {'the same' if same else 'not the same'}",
        )
    ]


@case
def label_trees(world: World) -> list[Row]:
    """Fits and searches of the label trees of `lexical`, for texts one by one and together; needs a corpus alone."""
    settings = Lexical()
    terms, rows_NT = Terms.fit(world.texts(_TEXTS), settings.terms)
    truth = world.corpus.labels.rows(np.arange(rows_NT.shape[0]))
    kept = np.flatnonzero((np.diff(rows_NT.indptr) > 0) & (truth.counts_N > 0))
    models, forest = _trees(rows_NT[kept], truth.rows(kept), settings)
    searched = rows_NT[np.flatnonzero(np.diff(rows_NT.indptr))[:_SEARCHED]]
    texts = [searched[row] for row in range(searched.shape[0])]

    def ours(terms_NT: Any) -> Any:
        return shortlist(forest, terms_NT, beam=settings.beam, k=settings.labels).ids_NK

    def theirs(terms_NT: Any) -> list[tuple[int, int]]:
        pairs = list(zip(terms_NT.indices.tolist(), terms_NT.data.tolist(), strict=True))
        totals: Counter[int] = Counter()  # of floats
        for model in models:
            totals.update(dict(model.predict(pairs, settings.beam, settings.beam**2)))
        return totals.most_common(settings.labels)

    same = np.mean([ours(text)[0, 0] == theirs(text)[0][0] for text in texts])
    note = f"{len(terms):,} terms, {searched.nnz / len(texts):.0f} a text; the same best label for {same:.1%}"
    return [
        compare(
            f"{settings.trees} label trees, texts one by one",
            lambda: [ours(text) for text in texts],
            "omikuji",
            lambda: [theirs(text) for text in texts],
            note=note,
        ),
        compare(
            f"{settings.trees} label trees, {len(texts)} texts at a time",
            lambda: ours(searched),
            "omikuji, one by one",
            lambda: [theirs(text) for text in texts],
            note=note,
        ),
        _fit(rows_NT[kept[:_FITTED]], truth.rows(kept[:_FITTED]), settings),
    ]


def _fit(rows_NT: Any, truth: LabelMatrix, settings: Lexical) -> Row:
    """Compare fits of one tree; omikuji's is given its training file."""
    import omikuji

    params = _params(settings)
    with tempfile.TemporaryDirectory() as folder, quiet():
        write_rows(path := Path(folder) / "rows.txt", rows_NT, truth)
        return compare(
            f"a label tree on {len(truth):,} texts, fit",
            lambda: grow(rows_NT, truth, None, settings.growth(settings.threshold), 1),
            "omikuji",
            lambda: omikuji.Model.train_on_data(str(path), params),
        )


def _params(settings: Lexical) -> Any:
    """Return omikuji's parameters for one tree."""
    import omikuji

    params = omikuji.Model.default_hyper_param()
    params.n_trees, params.cluster_balanced = 1, False
    params.cluster_k, params.max_depth = settings.clusters, settings.depth
    params.linear_max_iter, params.cluster_eps = settings.passes, settings.tolerance
    return params


def _trees(rows_NT: Any, truth: LabelMatrix, settings: Lexical) -> tuple[list[Any], Forest]:
    """Train trees; return omikuji's models and ours of the same weights."""
    import omikuji

    params = _params(settings)
    with tempfile.TemporaryDirectory() as folder, quiet():
        write_rows(Path(folder) / "rows.txt", rows_NT, truth)
        models = [omikuji.Model.train_on_data(str(Path(folder) / "rows.txt"), params) for _ in range(settings.trees)]
        for number, model in enumerate(models):
            model.save(str(Path(folder) / str(number)))
            model.init_prediction_thread_pool(1)
        trees = [read_tree(Path(folder) / str(number) / "tree0.cbor") for number in range(settings.trees)]
        return models, Forest.of(trees, rows_NT.shape[1])


def _scikit_learn(texts: list[str], settings: TermSettings) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    options = {"min_df": settings.min_documents, "max_features": settings.terms, "dtype": np.float32}
    return TfidfVectorizer(ngram_range=(1, settings.ngrams), sublinear_tf=True, **options).fit_transform(texts)
