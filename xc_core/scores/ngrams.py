"""Count the words and word n-grams of texts, as scikit-learn does, with integers in place of strings.

A text is held as one 4-byte id per word. Rare n-grams are dropped before longer ones are built: an n-gram is at least
as rare as its parts.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from xc_core.shapes import F32, I32, I64

_DROPPED: Final = -1


@dataclass(frozen=True)
class Counts:
    """The kept terms in the order of their strings, and how often each occurs in each text."""

    names: list[str]
    texts_NT: Any
    """Counts (scipy CSR, N x T, float32), columns ascending."""


@dataclass(frozen=True)
class _Grams:
    """The kept n-grams of one length: ``id_W`` has the n-gram that starts at each word, -1 if it is not kept."""

    names: list[str]
    id_W: I32
    row_M: I32
    column_M: I32
    count_M: F32


def count_ngrams(
    texts: Iterable[str], words_of: Callable[[str], list[str]], *, ngrams: int, min_documents: int, limit: int
) -> Counts:
    """Count n-grams of 1 to ``ngrams`` words; each text is read once.

    An n-gram is kept if at least ``min_documents`` texts have it. Of more than ``limit`` the most frequent are kept, of
    equally frequent ones those that scikit-learn keeps. No n-gram at all gives no columns.
    """
    words, word_W, size_N = _words(texts, words_of)
    row_W = np.repeat(np.arange(len(size_N), dtype=np.int32), size_N)
    single = longest = _kept(word_W, row_W, len(words), min_documents, lambda ids: [words[at] for at in ids.tolist()])
    parts = [single]
    for length in range(2, ngrams + 1):
        longest = _longer(longest, single, row_W, length, min_documents)
        parts.append(longest)
    return _joined(parts, len(size_N), limit)


def _words(texts: Iterable[str], words_of: Callable[[str], list[str]]) -> tuple[list[str], I32, I64]:
    """Return the distinct words, the number of each of W words, and the number of words of each text."""
    known: defaultdict[str, int] = defaultdict()
    known.default_factory = known.__len__
    flat, sizes = array("i"), array("q")
    for text in texts:
        found = words_of(text)
        flat.extend(map(known.__getitem__, found))
        sizes.append(len(found))
    return list(known), np.frombuffer(flat, np.int32), np.frombuffer(sizes, np.int64)


def _kept(id_W: I32, row_W: I32, size: int, min_documents: int, named: Callable[[I64], list[str]]) -> _Grams:
    """Return those of ``size`` n-grams that enough texts have, with new numbers; ``named`` returns their strings."""
    at_W = np.flatnonzero(id_W != _DROPPED)
    key_M, count_M = np.unique(row_W[at_W] * np.int64(size) + id_W[at_W], return_counts=True)
    row_M, column_M = (part.astype(np.int32) for part in np.divmod(key_M, max(1, size)))
    del key_M
    kept_G = np.bincount(column_M, minlength=size) >= min_documents
    new_G = np.where(kept_G, np.cumsum(kept_G) - 1, _DROPPED).astype(np.int32)
    kept_M = kept_G[column_M]
    new_W = np.full(len(id_W), _DROPPED, np.int32)
    new_W[at_W] = new_G[id_W[at_W]]
    counts = row_M[kept_M], new_G[column_M[kept_M]], count_M[kept_M].astype(np.float32)
    return _Grams(named(np.flatnonzero(kept_G)), new_W, *counts)


def _longer(before: _Grams, single: _Grams, row_W: I32, length: int, min_documents: int) -> _Grams:
    """Return the kept n-grams of ``length`` words, from those with a word less and single words."""
    more, width = length - 1, max(1, len(single.names))
    found_W = (before.id_W[:-more] != _DROPPED) & (single.id_W[more:] != _DROPPED) & (row_W[:-more] == row_W[more:])
    at_W = np.flatnonzero(found_W)
    key_G, place_W = np.unique(before.id_W[at_W] * np.int64(width) + single.id_W[at_W + more], return_inverse=True)
    id_W = np.full(len(row_W), _DROPPED, np.int32)
    id_W[at_W] = place_W

    def named(ids: I64) -> list[str]:
        first, last = (part.tolist() for part in np.divmod(key_G[ids], width))
        return [f"{before.names[one]} {single.names[other]}" for one, other in zip(first, last, strict=True)]

    return _kept(id_W, row_W, len(key_G), min_documents, named)


def _joined(parts: list[_Grams], size: int, limit: int) -> Counts:
    """Return the n-grams of all lengths in the order of their strings, ``limit`` at most."""
    from scipy.sparse import csr_matrix

    names = list(chain.from_iterable(part.names for part in parts))
    starts = np.cumsum([0, *(len(part.names) for part in parts)])
    row_M = np.concatenate([part.row_M for part in parts])
    column_M = np.concatenate([part.column_M + np.int32(at) for part, at in zip(parts, starts[:-1], strict=True)])
    count_M = np.concatenate([part.count_M for part in parts])
    order_T = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    total_T = np.bincount(column_M, count_M, len(names))[order_T].astype(np.float32)
    if len(names) > limit:
        order_T = order_T[np.sort(np.argsort(-total_T)[:limit])]  # the same call as scikit-learn's: the same of equals
    new_G = np.full(len(names), _DROPPED, np.int32)
    new_G[order_T] = np.arange(len(order_T))
    kept_M = new_G[column_M] != _DROPPED
    texts_NT = csr_matrix((count_M[kept_M], (row_M[kept_M], new_G[column_M[kept_M]])), (size, len(order_T)))
    texts_NT.sort_indices()
    return Counts([names[at] for at in order_T.tolist()], texts_NT)
