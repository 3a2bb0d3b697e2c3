"""Families of documents: near-duplicates of text, found by MinHash in bounded memory.

Two texts are linked if their sets of words have a Jaccard similarity of at least 0.7, estimated from 128 hashes. A
family is a connected component of links (Broder 1997; bands as in Leskovec et al., Mining of Massive Datasets, 3.4).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.data.words import Words
from xc_core.seeds import derive
from xc_core.shapes import F64, I64, Array

LEVELS: Final = (0.7, 0.85, 1.0)
"""Jaccard similarity of a link. A family that is too large is split again by the next, stricter one."""
LARGEST: Final = 200
"""Documents of a family; one of equal sets of words may have more. Measured: docs/lab-notes/2026-11-22-families.md."""
BANDS: Final = 32
ROWS: Final = 4
"""Hashes per band. Texts with a similarity s share a band with probability 1 - (1 - s^4)^32: 0.9998 at 0.7."""
_HASHES: Final = BANDS * ROWS
_PAIRS: Final = 1 << 16
"""Pairs whose signatures are compared at a time."""
_HASHES_AT_ONCE: Final = 64
_WORDS: Final = 2048
"""Words whose hashes are gathered at a time, 512 KB."""


class NearDuplicates:
    """Collects signatures of texts in files and finds their families.

    The files, 768 bytes per text, are in ``folder``, which is created here and deleted by ``families``. In memory there
    are a few numbers per text.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts = 0
        self._with_words: list[I64] = []
        folder.mkdir()

    def add(self, texts: list[str]) -> None:
        """Add the next texts."""
        words = Words.of(texts)
        rows = np.flatnonzero(np.diff(words.indptr))
        self._with_words.append(self._texts + rows)
        self._texts += len(texts)
        signature_NH = signatures(words, rows)
        _append(self._folder / "signatures", signature_NH)
        for band, key_N in enumerate(_band_keys(signature_NH)):
            _append(self._folder / f"band-{band}", key_N)

    def families(self) -> I64:
        """Return for each text the position of the first text of its family; delete the files.

        A text without words is a family of its own.
        """
        rows = np.concatenate([np.zeros(0, np.int64), *self._with_words])
        first_N = np.arange(self._texts, dtype=np.int64)
        if len(rows):
            first_N[rows] = rows[self._linked_families(len(rows))]
        shutil.rmtree(self._folder)
        return first_N

    def discard(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._folder)

    def _linked_families(self, size: int) -> I64:
        signature_NH = np.memmap(self._folder / "signatures", np.uint32, "r", shape=(size, _HASHES))
        codes, similarities = np.zeros(0, np.int64), np.zeros(0)
        for band in range(BANDS):
            pairs = _candidate_pairs(np.fromfile(self._folder / f"band-{band}", np.uint64))
            fresh = np.setdiff1d(pairs, codes, assume_unique=True)
            similarity_P = similarity(signature_NH, np.stack(np.divmod(fresh, size), axis=1))
            linked = similarity_P >= LEVELS[0]
            codes = np.concatenate([codes, fresh[linked]])
            similarities = np.concatenate([similarities, similarity_P[linked]])
        return components(size, np.stack(np.divmod(codes, size), axis=1), similarities)


def signatures(words: Words, rows: I64) -> Array:
    """Return the MinHash signatures of the texts ``rows`` (N x 128, uint32); each of them has words.

    A word is hashed once for all texts; texts of equally many words are gathered at a time.
    """
    signature_NH = np.empty((len(rows), _HASHES), np.uint32)
    size_N = np.diff(words.indptr)[rows]
    order = np.argsort(size_N, kind="stable")
    sizes, starts = np.unique(size_N[order], return_index=True)
    groups = list(zip(sizes.tolist(), np.split(order, starts)[1:], strict=True))
    for first in range(0, _HASHES, _HASHES_AT_ONCE):
        columns = slice(first, first + _HASHES_AT_ONCE)
        hashed_WH = _word_hashes(words.vocabulary, columns)
        for size, texts in groups:
            step = max(1, _WORDS // size)
            for batch in (texts[start : start + step] for start in range(0, len(texts), step)):
                numbers = words.numbers[words.indptr[rows[batch]] + np.arange(size)[:, None]]
                signature_NH[batch, columns] = hashed_WH.take(numbers, axis=0, mode="clip").min(axis=0)
    return signature_NH


def _word_hashes(words_W: Array, columns: slice) -> Array:
    """Return some of the 128 hashes of each word (W x columns, uint32)."""
    hashed = [
        (words_W * np.uint64(derive(0, "minhash", i) | 1) + np.uint64(derive(1, "minhash", i))) >> np.uint64(32)
        for i in range(columns.start, columns.stop)
    ]
    return np.stack(hashed, axis=1, dtype=np.uint32, casting="unsafe")


def similarity(signature_NH: Array, pairs: I64) -> F64:
    """Return the estimated Jaccard similarity of pairs of texts (P x 2): the share of equal hashes."""
    blocks = [pairs[start : start + _PAIRS] for start in range(0, len(pairs), _PAIRS)]
    same = [(signature_NH[block[:, 0]] == signature_NH[block[:, 1]]).mean(1) for block in blocks]
    return np.concatenate([np.zeros(0), *same])


def components(size: int, pairs: I64, alike: F64, largest: int = LARGEST) -> I64:
    """Return the first text of the family of each text, from links (P x 2) and their similarity.

    A component of more than ``largest`` texts is split by links of the next level; at the last level it is kept.
    """
    family_N = np.zeros(size, np.int64)
    for level in LEVELS:
        large_N = np.bincount(family_N, minlength=size)[family_N] > largest if level != LEVELS[0] else family_N == 0
        links = pairs[(alike >= level) & large_N[pairs[:, 0]] & large_N[pairs[:, 1]]]
        family_N = np.where(large_N, _lowest_members(size, links), family_N)
    return family_N


def _lowest_members(size: int, pairs: I64) -> I64:
    """Return the lowest member of the connected component of each of ``size`` texts."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), (size, size))
    component_N = connected_components(graph, directed=False)[1]
    lowest = np.unique(component_N, return_index=True)[1].astype(np.int64)
    return np.asarray(lowest[component_N])


def _band_keys(signature_NH: Array) -> Array:
    """Return one hash per band and text (bands x N, uint64)."""
    key = np.zeros((BANDS, len(signature_NH)), np.uint64)
    for column in range(ROWS):
        key = key * np.uint64(0x9E3779B97F4A7C15) + signature_NH[:, column::ROWS].T.astype(np.uint64) + np.uint64(1)
        key ^= key >> np.uint64(29)
    return key


def _candidate_pairs(key_N: Array) -> I64:
    """Return pairs of texts with equal keys (first * N + second): each with the one before it and with the first."""
    order = np.argsort(key_N)
    equals_next = np.diff(key_N[order]) == 0
    shares_key = np.append(equals_next, False) | np.append(False, equals_next)  # few texts do
    rows = np.sort(order[shares_key])
    rows = rows[np.argsort(key_N[rows], kind="stable")]
    later = np.flatnonzero(np.diff(key_N[rows]) == 0) + 1
    group_starts = np.setdiff1d(np.arange(len(rows)), later, assume_unique=True)
    first = group_starts[np.searchsorted(group_starts, later, side="right") - 1]
    not_adjacent = first < later - 1  # the first one is not the one before it
    pairs = np.concatenate([rows[[later - 1, later]], rows[[first[not_adjacent], later[not_adjacent]]]], axis=1)
    return np.asarray(pairs[0] * len(key_N) + pairs[1], np.int64)


def _append(path: Path, values: Array) -> None:
    with path.open("ab") as stream:
        stream.write(np.ascontiguousarray(values).tobytes())
