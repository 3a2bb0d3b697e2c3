"""A lexical score: a label is as likely as the words and pairs of words of a text say, by a tree of linear models.

Takes: texts of train documents and their labels; then texts.   Gives: Lexical; Shortlist of labels with scores.
May import: data.labels, errors, params, shapes; omikuji and scikit-learn when one is fitted or loaded.
Never: pickle; the vectors of an encoder; a validation or test row.

Files: ``lexical.json`` (the config, L), ``terms.parquet`` (term, idf; in the order of columns), and ``tree0/`` and so
on, each one tree as omikuji writes it (CBOR and JSON); ``labels.safetensors`` (the label texts' terms, CSR).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file

from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError, DataError, MissingError
from xc_core.params import at_least
from xc_core.shapes import F32, I32, PAD_ID, Shortlist

CONFIG: Final = "lexical.json"
_TERMS: Final = "terms.parquet"
_LABELS: Final = "labels.safetensors"
_TOGETHER: Final = 64
"""Texts compared at a time: 64 x 300 candidates x some 20 terms stay in the cache. Fewer are not worth threads."""
_REACHED: Final = 10_000
"""Labels asked of a tree: more than its beam reaches, so that a mean over trees is of all they know."""
_MEND: Final = "make it anew: xc run classifier --force, and the stages after it"


@dataclass(frozen=True, kw_only=True)
class LexicalConfig:
    """TF-IDF of words and a Bonsai-like label tree; the values that Annif advises for omikuji."""

    use: bool = False
    """Train it; a fusion that names the feature "lexical" needs it."""
    ngrams: int = 2
    """Words of a term, at most."""
    min_documents: int = 2
    """Train documents that have a term, at least."""
    terms: int = 300_000
    """Terms that are kept, the most frequent ones."""
    trees: int = 3
    """Label trees, whose scores are averaged."""
    clusters: int = 100
    """Branches of a node, of any size."""
    depth: int = 3
    """Levels of branches."""
    beam: int = 10
    """Nodes of a level that a prediction follows."""
    labels: int = 100
    """Labels of a document that have a score, at most."""

    def __post_init__(self) -> None:
        at_least(self, ngrams=1, min_documents=1, terms=1, trees=1, clusters=2, depth=1, beam=1, labels=1)


@dataclass(frozen=True)
class Lexical:
    """A fitted lexical score: texts in, labels with probabilities out; safe to share between threads.

    omikuji draws from a generator that cannot be seeded, so two fits on the same texts are two models that are about
    as good as each other. A saved one gives the same scores wherever it is loaded.
    """

    config: LexicalConfig
    num_labels: int
    vectorizer: Any
    """A fitted TfidfVectorizer."""
    trees: tuple[Any, ...]
    """One omikuji.Model a tree: a model of several reads and sums them in the order of its folder's listing."""
    labels_LT: Any
    """The labels' texts as rows of terms (scipy CSR), unit vectors, or empty where there are none."""

    @classmethod
    def fit(
        cls,
        texts: list[str],
        truth: LabelMatrix,
        config: LexicalConfig,
        scratch: Path | None = None,
        label_texts: list[str] | None = None,
    ) -> Lexical:
        """Fit on N train texts and their labels (N x L); ``scratch`` is the folder of a file that is gone afterwards.

        With ``label_texts`` each is a train text of its label too, and texts are compared with them. Documents without
        a kept term or without a label teach nothing and are left out. Raises DataError where no document is left,
        MissingError where a package is not installed, ValueError for another number of texts.
        """
        if len(texts) != len(truth):
            raise ValueError(f"{len(texts)} texts for {len(truth)} documents")
        require()
        own = [""] * truth.num_labels if label_texts is None else label_texts
        if label_texts is not None:
            texts, truth = texts + label_texts, truth.above(LabelMatrix.identity(truth.num_labels))
        vectorizer = _vectorizer(config)
        try:
            terms_NT = vectorizer.fit_transform(texts)
        except ValueError as error:  # scikit-learn found no term to keep
            raise _nothing_to_learn(config) from error
        kept = np.flatnonzero((np.diff(terms_NT.indptr) > 0) & (truth.counts_N > 0))
        if not len(kept):
            raise _nothing_to_learn(config)
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            _write_rows(Path(folder) / "rows.txt", terms_NT[kept], truth.rows(kept))
            trees = tuple(_tree(Path(folder) / "rows.txt", config) for _ in range(config.trees))
        return cls(config, truth.num_labels, vectorizer, trees, vectorizer.transform(own))

    @property
    def terms(self) -> int:
        """Number of terms."""
        return len(self.vectorizer.vocabulary_)

    @cached_property
    def _reader(self) -> tuple[Callable[[str], list[str]], dict[str, int], F32]:
        """What makes terms of a text, their columns, and the columns' inverse document frequencies."""
        vectorizer = self.vectorizer
        return vectorizer.build_analyzer(), vectorizer.vocabulary_, vectorizer.idf_.astype(np.float32)

    def vectors(self, texts: list[str]) -> Any:
        """Return texts as rows of terms (scipy CSR, N x T): unit TF-IDF vectors with 1 + log of a count.

        They are what the vectoriser's ``transform`` returns, whose checks take ten times as long as a short text.
        """
        from scipy.sparse import csr_matrix

        terms_of, column_of, idf_T = self._reader
        found = [sorted(Counter(column_of[t] for t in terms_of(text) if t in column_of).items()) for text in texts]
        size_N = np.array([len(own) for own in found], np.int64)
        pairs = np.array([*chain.from_iterable(found)], np.int32).reshape(-1, 2)
        column_M, count_M = pairs[:, 0], pairs[:, 1].astype(np.float32)
        value_M = (np.log(count_M) + 1) * idf_T[column_M]
        row_M = np.repeat(np.arange(len(texts)), size_N)
        length_N = np.sqrt(np.bincount(row_M, value_M.astype(np.float64) ** 2, len(texts)))
        value_M /= length_N[row_M].astype(np.float32)
        start_N = np.concatenate([[0], np.cumsum(size_N)]).astype(np.int32)
        return csr_matrix((value_M, column_M, start_N), (len(texts), len(idf_T)))

    def shortlist(self, terms_NT: Any) -> Shortlist:
        """Return the ``config.labels`` best labels of each of ``vectors`` with scores in (0, 1]; none for one of zeros.

        A score is the mean over the trees of the product of a path's exp(-max(0, 1 - margin)^2); a tree whose beam
        missed the label counts as 0.
        """
        size = terms_NT.shape[0]
        shape = (size, self.config.labels)
        ids_NK, scores_NK = np.full(shape, PAD_ID, np.int32), np.full(shape, -np.inf, np.float32)

        def fill(at: int) -> None:
            start, end = terms_NT.indptr[at : at + 2]
            if start == end:
                return  # all that the trees know of an empty text is how they are balanced
            ids, scores = self._best(terms_NT.indices[start:end].tolist(), terms_NT.data[start:end].tolist())
            ids_NK[at, : len(ids)], scores_NK[at, : len(ids)] = ids, scores

        if size < _TOGETHER:
            for at in range(size):
                fill(at)
        else:  # a tree works outside the interpreter's lock
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(fill, range(size)))
        return Shortlist(ids_NK, scores_NK)

    def matches(self, terms_NT: Any, ids_NK: I32) -> F32:
        """Return the cosine of each of ``vectors`` and each of its candidates' label texts as such (N x K)."""
        out = np.zeros(ids_NK.shape, np.float32)
        for start in range(0, len(ids_NK), _TOGETHER):
            ids_BK = np.maximum(ids_NK[start : start + _TOGETHER], 0)
            rows = np.repeat(np.arange(start, start + len(ids_BK)), ids_BK.shape[1])
            products = terms_NT[rows].multiply(self.labels_LT[ids_BK.ravel()]).sum(axis=1)
            out[start : start + len(ids_BK)] = np.asarray(products).reshape(ids_BK.shape)
        return np.where(ids_NK == PAD_ID, 0, out).astype(np.float32)

    def _best(self, columns: list[int], values: list[float]) -> tuple[I32, F32]:
        """Return the best labels of one vector, best first, and their scores."""
        pairs = list(zip(columns, values, strict=True))
        found = [pair for tree in self.trees for pair in tree.predict(pairs, self.config.beam, _REACHED)]
        ids, place = np.unique(np.array([label for label, _ in found], np.int32), return_inverse=True)
        scores = np.bincount(place, [score for _, score in found], minlength=len(ids)) / len(self.trees)
        best = np.argsort(-scores, kind="stable")[: self.config.labels]
        return ids[best], scores[best].astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write into an existing folder; the same model gives the same bytes, also when it was loaded."""
        content = {"config": asdict(self.config), "labels": self.num_labels}
        (folder / CONFIG).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
        terms = self.vectorizer.get_feature_names_out().tolist()
        pl.DataFrame({"term": terms, "idf": self.vectorizer.idf_}).write_parquet(folder / _TERMS)
        rows = {name: getattr(self.labels_LT, name) for name in ("indptr", "indices", "data")}
        save_file({name: np.ascontiguousarray(part) for name, part in rows.items()}, folder / _LABELS)
        for number, tree in enumerate(self.trees):
            with _quiet():
                tree.save(str(folder / f"tree{number}"))

    @classmethod
    def load(cls, folder: Path) -> Lexical:
        """Load what ``save`` wrote.

        Raises MissingError where there is none or a package is not installed, CorruptError for parts that do not fit.
        """
        if not (folder / CONFIG).is_file():
            raise MissingError(f"no {folder / CONFIG}", expected="a saved lexical score", do=_MEND)
        require()
        content = json.loads((folder / CONFIG).read_text("utf-8"))
        config = LexicalConfig(**content["config"])
        saved = pl.read_parquet(folder / _TERMS)
        vectorizer = _vectorizer(config, saved["term"].to_list())
        vectorizer.idf_ = saved["idf"].to_numpy()
        trees = tuple(_load_tree(folder / f"tree{number}") for number in range(config.trees))
        sizes = {"trees a folder": [1] * config.trees, "terms a tree": [len(saved)] * config.trees}
        found = {"trees a folder": [t.n_trees for t in trees], "terms a tree": [t.n_features for t in trees]}
        if found != sizes:
            raise CorruptError(f"{found} in {folder}", expected=f"{sizes}", do=_MEND)
        size = int(content["labels"])
        return cls(config, size, vectorizer, trees, _load_labels(folder / _LABELS, (size, len(saved))))


def scores_of(short: Shortlist, ids_NK: I32) -> F32:
    """Return the score that each document's shortlist has of each of its candidates (N x K); 0 where it has none."""
    rows = np.arange(len(ids_NK))[:, None]
    width = np.int64(1 + max(short.ids_NK.max(initial=0), ids_NK.max(initial=0)))
    keys = (rows * width + short.ids_NK)[short.filled_NK]
    if not len(keys):
        return np.zeros(ids_NK.shape, np.float32)
    order = np.argsort(keys)
    wanted = rows * width + ids_NK
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    hit = (keys[order][at] == wanted) & (ids_NK != PAD_ID)
    return np.where(hit, short.scores_NK[short.filled_NK][order][at], 0).astype(np.float32)


def require() -> None:
    """Raise MissingError where a package that the lexical score needs is not installed."""
    for package, module in (("omikuji", "omikuji"), ("scikit-learn", "sklearn")):
        try:
            __import__(module)
        except ImportError as error:
            raise MissingError(
                f"no installed package {package}",
                expected="the packages of the extra lexical, which this recipe's or model's lexical score needs",
                do="pip install -c constraints.txt omikuji scikit-learn",
            ) from error


def _vectorizer(config: LexicalConfig, terms: list[str] | None = None) -> Any:
    """Return the vectoriser of ``config``, unfitted, or with the columns ``terms``."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    how = {"ngram_range": (1, config.ngrams), "sublinear_tf": True, "dtype": np.float32}
    if terms is not None:
        return TfidfVectorizer(vocabulary=terms, **how)
    return TfidfVectorizer(min_df=config.min_documents, max_features=config.terms, **how)


def _nothing_to_learn(config: LexicalConfig) -> DataError:
    return DataError(
        f"no train document with a label and a term that {config.min_documents} train documents have",
        expected="words that come back, for a lexical score to learn from",
        do="leave it out: classifier.lexical.use=false, and a fusion without the feature lexical",
    )


def _write_rows(path: Path, terms_NT: Any, truth: LabelMatrix) -> None:
    """Write what omikuji trains on: the numbers of documents, terms and labels, then a document a line."""
    from scipy.sparse import csr_matrix
    from sklearn.datasets import dump_svmlight_file

    labels_NL = csr_matrix((np.ones(len(truth.indices)), truth.indices, truth.indptr), truth.shape)
    with path.open("wb") as stream:
        stream.write(f"{len(truth)} {terms_NT.shape[1]} {truth.num_labels}\n".encode())
        dump_svmlight_file(terms_NT, labels_NL, stream, multilabel=True)


def _tree(rows: Path, config: LexicalConfig) -> Any:
    """Train one tree on a file of documents."""
    import omikuji

    how = omikuji.Model.default_hyper_param()
    how.n_trees = 1
    how.cluster_balanced, how.cluster_k, how.max_depth = False, config.clusters, config.depth
    with _quiet():
        return _one_thread(omikuji.Model.train_on_data(str(rows), how))


def _load_labels(path: Path, shape: tuple[int, int]) -> Any:
    """Return the labels' texts as rows of terms; raise CorruptError where they are of other labels."""
    from scipy.sparse import csr_matrix

    if not path.is_file():
        raise CorruptError(f"no {path}", expected="the label texts' terms", do=_MEND)
    parts = load_file(path)
    if len(parts["indptr"]) != shape[0] + 1:
        raise CorruptError(f"{len(parts['indptr']) - 1} labels in {path}", expected=f"{shape[0]}", do=_MEND)
    return csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape)


def _load_tree(folder: Path) -> Any:
    import omikuji

    if not folder.is_dir():
        raise CorruptError(f"no {folder}", expected="a tree", do=_MEND)
    with _quiet():
        return _one_thread(omikuji.Model.load(str(folder)))


def _one_thread(tree: Any) -> Any:
    """Give a tree its thread for predictions now: made at the first of them, two callers could make two."""
    tree.init_prediction_thread_pool(1)
    return tree


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Send both outputs of the process nowhere for the block: omikuji logs to the one and draws bars on the other."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, own in zip((1, 2), kept, strict=True):
            os.dup2(own, number)
            os.close(own)
        os.close(nowhere)
