"""How near validation and test documents are to train documents, by words. Test labels are never read.

If validation documents are nearer, figures on them are too good, and what is chosen with them relies on memory. If they
are farther, figures on them may be too low, and what is chosen with them may be wrong for documents like those of test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.data.words import Words
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I64, Array

QUERIES: Final = 1_000
"""Documents of each split that are compared, at most."""
AGAINST: Final = 100_000
"""Train documents that they are compared with, at most."""
NEAR: Final = 0.75
"""A cosine above this is called near."""
POINTS: Final = 0.03
"""Least difference of the shares of near documents that counts, besides twice its standard error."""
_MANY_UNSEEN: Final = 0.5
"""Share of validation positives whose label has no train document above which figures there mislead; a guess."""
_QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
_COLUMNS_BITS: Final = 20
_COMMON: Final = 0.02
"""Share of train documents above which a word is multiplied densely; sparse products of common words are slow."""
_QUERY_BLOCK: Final = 250


def nearness(corpus: Corpus, *, queries: int = QUERIES, against: int = AGAINST, seed: int = 0) -> dict[str, Any]:
    """Return how near samples of validation and test documents are to train documents.

    Of each split: ``mean``, ``quantiles``, ``above_0.75`` and ``above_0.5`` (share) of the TF-IDF cosine with the
    nearest train document; ``twins``, the share of documents whose title and content a train document has too. Of
    validation also ``unseen_positives``, the share of its positives whose label has no train document. ``nearer`` and
    ``farther`` say whether validation is clearly nearer than test, or farther. Empty if there are no validation
    documents.
    """
    rows = {split: _sample(corpus, split, queries, seed) for split in (VALIDATION, TEST)}
    if not len(rows[VALIDATION]) or not len(rows[TEST]):
        return {}
    train = _sample(corpus, TRAIN, against, seed)
    cosines = nearest(corpus, np.concatenate([*rows.values()]), train)
    result: dict[str, Any] = {
        split: _figures(split_cosines)
        | {"twins": corpus.shared("title", "content", split=split, known=(TRAIN,)) / len(corpus.rows(split))}
        for split, split_cosines in zip(rows, np.split(cosines, [len(rows[VALIDATION])]), strict=True)
    }
    result[VALIDATION]["unseen_positives"] = _unseen_positives(corpus)
    validation, test = result[VALIDATION], result[TEST]
    compared = {"nearer": is_nearer(validation, test), "farther": is_nearer(test, validation)}
    return result | {"train": len(train)} | compared


def is_nearer(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if ``one`` split has clearly more near documents than the ``other``.

    The difference of the shares above 0.75 has to exceed 3 points and twice its standard error.
    """
    first, second = (float(figures[f"above_{NEAR}"]) for figures in (one, other))
    variance = sum(_variance(share, figures["documents"]) for share, figures in ((first, one), (second, other)))
    return bool(first - second > max(POINTS, 2 * variance**0.5))


def _variance(share: float, size: int) -> float:
    """Return the variance of a share of ``size`` documents; with one success and one failure more, so it is never 0."""
    smoothed = (share * size + 1) / (size + 2)
    return smoothed * (1 - smoothed) / size


def nearest(corpus: Corpus, queries: I64, train: I64) -> F64:
    """Return the highest TF-IDF cosine of each document of ``queries`` with one of ``train`` (row numbers, ascending).

    Words have the weight (1 + log count) * (1 + log((1 + N) / (1 + n))) with n of N train documents that have the word.
    Words are hashed into 2^20 columns. Memory does not grow with the number of train documents; their words are kept in
    a file without a name, 8 bytes per distinct word of a text.
    """
    from scipy.sparse import vstack

    frequency = np.zeros(1 << _COLUMNS_BITS)
    order = np.argsort(queries, kind="stable")
    best = np.zeros(len(queries))
    with TemporaryFile(dir=corpus.folder) as file:
        for block_counts in _counts(corpus, train):
            frequency += np.bincount(block_counts.columns, minlength=len(frequency))
            block_counts.save(file)
        size = file.tell()
        idf, common = 1 + np.log((1 + len(train)) / (1 + frequency)), np.flatnonzero(frequency > _COMMON * len(train))
        vectors = [block_counts.vectors(idf) for block_counts in _counts(corpus, queries[order])]
        query = _DenseAndSparse.of(vstack(vectors, format="csr"), common)
        file.seek(0)
        while file.tell() < size:
            block = _DenseAndSparse.of(_Counts.load(file).vectors(idf), common).transposed()
            for start in range(0, len(queries), _QUERY_BLOCK):
                rows = slice(start, start + _QUERY_BLOCK)
                best[rows] = query.highest(rows, block, best[rows])
    return np.minimum(best[np.argsort(order)], 1.0)


@dataclass(frozen=True)
class _DenseAndSparse:
    """Unit vectors in two parts: columns of common words (N x C, dense) and all others (CSR)."""

    dense: F32
    sparse: Any

    @classmethod
    def of(cls, vectors: Any, common: I64) -> _DenseAndSparse:
        dense = vectors[:, common].toarray()
        sparse = vectors.copy()
        sparse.data[np.isin(sparse.indices, common)] = 0
        sparse.eliminate_zeros()
        return cls(dense, sparse)

    def transposed(self) -> _DenseAndSparse:
        """Return the vectors as columns, by which rows can be multiplied."""
        return _DenseAndSparse(self.dense.T, self.sparse.T.tocsr())

    def highest(self, rows: slice, columns: _DenseAndSparse, best_so_far: F64) -> F64:
        """Return the highest product of each of ``rows`` with a column, or ``best_so_far`` if that is higher.

        No product is negative. So a sparse product matters only if, added to the highest dense product of its row, it
        exceeds ``best_so_far``; only for these pairs are the two parts added.
        """
        dense: F32 = self.dense[rows] @ columns.dense
        sparse = self.sparse[rows] @ columns.sparse
        highest = dense.max(axis=1)
        best = np.maximum(best_so_far, highest)
        sizes = np.diff(sparse.indptr)
        exceeding = np.flatnonzero(sparse.data + np.repeat(highest, sizes) > np.repeat(best, sizes))
        row = np.repeat(np.arange(len(best)), sizes)[exceeding]
        np.maximum.at(best, row, dense[row, sparse.indices[exceeding]] + sparse.data[exceeding])
        return np.asarray(best, np.float64)


def sentence(found: Mapping[str, Any]) -> str:
    """Return the measurement as one sentence."""
    first, second = (f"{found[split][f'above_{NEAR}']:.1%} of the {split}" for split in (VALIDATION, TEST))
    return f"{first} and {second} documents have a train document of nearly the same words (cosine above {NEAR})"


def warning(found: Mapping[str, Any], by: str = "", *, given: bool = False) -> list[str]:
    """Return what is wrong with the validation documents: nearer to train than test, or farther; other labels.

    ``by`` is how they were held out, if that is known; ``given`` says that they have a file of their own.
    """
    if not found.keys() >= {"nearer", "farther"}:  # no release made such a corpus
        return ["the comparison of validation and test is incomplete; measure again: xc run corpus --force"]
    lines = []
    if given and (found["nearer"] or found["farther"]):
        lines.append(_given_warning(by, nearer=found["nearer"]))
    elif found["nearer"] and by == "time":
        lines.append(
            "validation documents are clearly nearer to train documents than test documents are, so figures on "
            "validation may be too good; if train documents are as late as test documents, as after an update of the "
            "train file alone, add the latest ones to the test file instead"
        )
    elif found["nearer"]:
        lines.append(
            "validation documents are clearly nearer to train documents than test documents are, so figures on "
            "validation are too good; if test documents are later ones, hold out the last train documents (a column "
            "time and --split time); if single documents are held out, hold out families (--split family) or groups "
            "(a column group); otherwise give a validation file that resembles the test file (docs/data-formats.md, "
            "Validation documents)"
        )
    elif found["farther"]:
        lines.append(
            "validation documents are clearly farther from train documents than test documents are, so figures on "
            "validation may be too low; if families, groups or the last documents are held out, hold out single "
            "documents (--split uid); if single documents are held out and test rows were split off by a hash, the "
            "difference is chance; otherwise give a validation file that resembles the test file "
            "(docs/data-formats.md, Validation documents)"
        )
    if (unseen := found[VALIDATION]["unseen_positives"]) > _MANY_UNSEEN:
        lines.append(
            f"{unseen:.0%} of the labels of validation documents have no train document, so these are found by their "
            "texts alone; if that is so for test documents too, use a recipe with an encoder, which reads the texts "
            "(the recipe words sees only their words); if not, figures on validation are too low, and a fusion that is "
            "fitted there learns to distrust scores from train documents: give a validation file that resembles the "
            "test file, or train with --set fusion.rule=sum"
        )
    return lines


def _given_warning(by: str, *, nearer: bool) -> str:
    """Return what is wrong with a validation file, which no other split replaces: a user or an update wrote it."""
    wrong = "nearer to train documents than test documents are, so figures on validation may be too good"
    if not nearer:
        wrong = "farther from train documents than test documents are, so figures on validation may be too low"
    of_update = "move its lines into trn.json, delete it and ingest again with another --split"
    if by == "time" and nearer:
        of_update = "add the latest documents to the test file too"
    return (
        f"validation documents are clearly {wrong}; they have a file of their own, which no --split changes: if you "
        f"wrote it, give one that resembles the test file; if an update did (val.json), {of_update} "
        "(docs/data-formats.md, Validation documents)"
    )


def _sample(corpus: Corpus, split: str, limit: int, seed: int) -> I64:
    rows = corpus.rows(split)
    if len(rows) <= limit:
        return rows
    return np.sort(generator(seed, f"nearness {split}").choice(rows, limit, replace=False))


@dataclass(frozen=True)
class _Counts:
    """How often each word occurs in each of N texts, as CSR: words are columns."""

    indptr: I64
    columns: Array
    counts: Array

    def save(self, file: IO[bytes]) -> None:
        for values in (self.indptr, self.columns, self.counts):
            np.save(file, values)

    @classmethod
    def load(cls, file: IO[bytes]) -> _Counts:
        return cls(*(np.load(file) for _ in range(3)))

    def vectors(self, idf: F64) -> Any:
        """Return unit TF-IDF vectors (CSR, N x 2^20); a text without words has the vector 0."""
        from scipy.sparse import csr_matrix

        size, lengths = len(self.indptr) - 1, np.diff(self.indptr)
        values = (1 + np.log(self.counts)) * idf[self.columns]
        sums = np.bincount(np.repeat(np.arange(size), lengths), values**2, minlength=size)
        values /= np.repeat(np.sqrt(sums), lengths)
        return csr_matrix((values.astype(np.float32), self.columns, self.indptr), (size, 1 << _COLUMNS_BITS))


def _counts(corpus: Corpus, rows: I64) -> Iterator[_Counts]:
    """Yield the words of the documents ``rows``, which ascend, block by block."""
    for texts in corpus.texts("documents", rows=rows):
        words = Words.of(texts)
        columns = (words.vocabulary >> np.uint64(64 - _COLUMNS_BITS)).astype(np.int32)[words.numbers]
        yield _Counts(words.indptr, columns, words.counts.astype(np.int32))


def _figures(cosines: F64) -> dict[str, Any]:
    quantiles = np.quantile(cosines, _QUANTILES)
    return {
        "documents": len(cosines),
        "mean": float(cosines.mean()),
        "quantiles": {str(q): float(value) for q, value in zip(_QUANTILES, quantiles, strict=True)},
        "above_0.5": float((cosines > 0.5).mean()),
        f"above_{NEAR}": float((cosines > NEAR).mean()),
    }


def _unseen_positives(corpus: Corpus) -> float:
    frequency_L = corpus.labels.rows(corpus.rows(TRAIN)).frequency_L()
    positives = corpus.labels.rows(corpus.rows(VALIDATION)).indices
    return float((frequency_L[positives] == 0).mean()) if len(positives) else 0.0
