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
    words, word_W, size_N = _encode_words(texts, words_of)
    row_W = np.repeat(np.arange(len(size_N), dtype=np.int32), size_N)

    def names_of(ids: I64) -> list[str]:
        return [words[i] for i in ids.tolist()]

    single = longest = _keep_frequent(word_W, row_W, len(words), min_documents, names_of)
    grams_by_length = [single]
    for length in range(2, ngrams + 1):
        longest = _longer(longest, single, row_W, length, min_documents)
        grams_by_length.append(longest)
    return _merge(grams_by_length, len(size_N), limit)


def _encode_words(texts: Iterable[str], words_of: Callable[[str], list[str]]) -> tuple[list[str], I32, I64]:
    """Return the distinct words, the id of each of W words, and the number of words of each text."""
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    flat, sizes = array("i"), array("q")
    for text in texts:
        words = words_of(text)
        flat.extend(map(ids.__getitem__, words))
        sizes.append(len(words))
    return list(ids), np.frombuffer(flat, np.int32), np.frombuffer(sizes, np.int64)


def _keep_frequent(
    id_W: I32, row_W: I32, size: int, min_documents: int, names_of: Callable[[I64], list[str]]
) -> _Grams:
    """Return those of ``size`` n-grams that enough texts have, with new ids; ``names_of`` returns their strings."""
    position_W = np.flatnonzero(id_W != _DROPPED)
    key_M, count_M = np.unique(row_W[position_W] * np.int64(size) + id_W[position_W], return_counts=True)
    row_M, column_M = (ids.astype(np.int32) for ids in np.divmod(key_M, max(1, size)))
    del key_M
    kept_G = np.bincount(column_M, minlength=size) >= min_documents
    new_id_G = np.where(kept_G, np.cumsum(kept_G) - 1, _DROPPED).astype(np.int32)
    kept_M = kept_G[column_M]
    new_id_W = np.full(len(id_W), _DROPPED, np.int32)
    new_id_W[position_W] = new_id_G[id_W[position_W]]
    counts = row_M[kept_M], new_id_G[column_M[kept_M]], count_M[kept_M].astype(np.float32)
    return _Grams(names_of(np.flatnonzero(kept_G)), new_id_W, *counts)


def _longer(shorter: _Grams, single: _Grams, row_W: I32, length: int, min_documents: int) -> _Grams:
    """Return the kept n-grams of ``length`` words, from those that are one word shorter and single words."""
    offset, width = length - 1, max(1, len(single.names))
    are_kept_W = (shorter.id_W[:-offset] != _DROPPED) & (single.id_W[offset:] != _DROPPED)
    start_W = np.flatnonzero(are_kept_W & (row_W[:-offset] == row_W[offset:]))
    key_G, gram_W = np.unique(
        shorter.id_W[start_W] * np.int64(width) + single.id_W[start_W + offset], return_inverse=True
    )
    id_W = np.full(len(row_W), _DROPPED, np.int32)
    id_W[start_W] = gram_W

    def names_of(ids: I64) -> list[str]:
        first, last = (column.tolist() for column in np.divmod(key_G[ids], width))
        return [f"{shorter.names[i]} {single.names[j]}" for i, j in zip(first, last, strict=True)]

    return _keep_frequent(id_W, row_W, len(key_G), min_documents, names_of)


def _merge(grams_by_length: list[_Grams], size: int, limit: int) -> Counts:
    """Return the n-grams of all lengths in the order of their strings, ``limit`` at most."""
    from scipy.sparse import csr_matrix

    names = list(chain.from_iterable(grams.names for grams in grams_by_length))
    starts = np.cumsum([0, *(len(grams.names) for grams in grams_by_length)])
    row_M = np.concatenate([grams.row_M for grams in grams_by_length])
    first_columns = zip(grams_by_length, starts[:-1], strict=True)
    column_M = np.concatenate([grams.column_M + np.int32(first) for grams, first in first_columns])
    count_M = np.concatenate([grams.count_M for grams in grams_by_length])
    order_T = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    total_T = np.bincount(column_M, count_M, len(names))[order_T].astype(np.float32)
    if len(names) > limit:
        order_T = order_T[np.sort(np.argsort(-total_T)[:limit])]  # the same call as scikit-learn's: the same of equals
    new_id_G = np.full(len(names), _DROPPED, np.int32)
    new_id_G[order_T] = np.arange(len(order_T))
    kept_M = new_id_G[column_M] != _DROPPED
    texts_NT = csr_matrix((count_M[kept_M], (row_M[kept_M], new_id_G[column_M[kept_M]])), (size, len(order_T)))
    texts_NT.sort_indices()
    return Counts([names[i] for i in order_T.tolist()], texts_NT)
