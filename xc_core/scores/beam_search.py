"""Beam search in label trees, for many texts at once.

Letters, used here as name suffixes: N texts, S nodes that searches are at, P pairs of such a node and a term of its
text, C children of a node, M labels that were reached, U the same without repetition, G groups, E entries of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from xc_core.data.labels import ragged_positions
from xc_core.scores.forest import Forest
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Array, Shortlist

_THREADED_FROM: Final = 64
"""Number of texts from which threads are used; for fewer, starting them costs more than it saves."""
_TEXTS_AT_ONCE: Final = 512
_PAIRS_AT_ONCE: Final = 2_000_000
"""Pairs of a node and a term that a thread looks up at a time: of more, memory grows faster than time falls."""
_MARGINS_AT_ONCE: Final = 4_000_000
"""Margins that a thread computes at a time, those of absent children included."""
_PAIR_BYTES: Final = 48
"""Bytes of a pair while it is looked up: its place in the text, its row of weights and what finds it, 8 each; in a
term of the tree also its place among those found, its row and its value."""
_MARGIN_BYTES: Final = 16
"""Bytes of a margin while it is computed: position and value of the sparse product, the dense one, and its copy in the
order of searches."""


def search_bytes(terms: float, nodes: int, width: int) -> tuple[float, float]:
    """Return the bytes of a search per text with so many terms, and those of a search of any number of texts.

    A search of a text is at ``nodes`` nodes, in all trees, of which one has ``width`` children at most.
    """
    text = nodes * (_PAIR_BYTES * (1 + terms) + _MARGIN_BYTES * width)
    at_once = min(_TEXTS_AT_ONCE, _PAIRS_AT_ONCE // (nodes * (1 + terms)), _MARGINS_AT_ONCE // (nodes * width))
    return text, torch.get_num_threads() * max(at_once, 1) * text


def shortlist(forest: Forest, terms_NT: Any, *, beam: int, k: int) -> Shortlist:
    """Return the ``k`` best labels of each row of terms (scipy CSR, N x T), with scores up to 1.

    A score is the mean over the trees of the product of exp(-max(0, 1 - margin)^2) along the path to the label. Per
    level a search follows the ``beam`` best nodes; of each leaf it keeps the ``beam`` best labels. A tree that does
    not reach a label contributes 0. A row of zeros has no labels. A text has the same scores in every batch.
    """
    shape = (terms_NT.shape[0], k)
    ids_NK, scores_NK = np.full(shape, PAD_ID, np.int32), np.full(shape, -np.inf, np.float32)
    filled = np.flatnonzero(np.diff(terms_NT.indptr))  # an empty text would get labels by their biases alone

    def search(rows: I64) -> None:
        texts = _Texts.of(terms_NT if len(rows) == len(ids_NK) else terms_NT[rows])
        row_M, rank_M, label_M, total_M = _ranked(forest, *_reached(forest, texts, beam), k)
        ids_NK[rows[row_M], rank_M] = label_M
        scores_NK[rows[row_M], rank_M] = total_M / forest.num_trees

    blocks = [filled[block] for block in _blocks(forest, np.diff(terms_NT.indptr)[filled], beam)]
    if len(blocks) > 1:  # numpy and scipy release the GIL
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(search, blocks))
    elif blocks:
        search(blocks[0])
    return Shortlist(ids_NK, scores_NK)


def _blocks(forest: Forest, sizes_N: Array, beam: int) -> Iterator[slice]:
    """Cut texts with so many terms into blocks: few enough for memory and to give every thread some."""
    nodes, texts = forest.num_trees * beam, len(sizes_N)
    most = min(_TEXTS_AT_ONCE, _MARGINS_AT_ONCE // (nodes * forest.width))
    if texts >= _THREADED_FROM:
        most = min(most, -(-texts // torch.get_num_threads()))
    ends_N = np.cumsum(nodes * (1 + sizes_N.astype(np.int64)))  # pairs, those of each text's bias included
    start = pairs = 0
    while start < texts:
        fitting = int(np.searchsorted(ends_N, pairs + _PAIRS_AT_ONCE, side="right"))
        end = max(start + 1, min(fitting, start + most, texts))
        yield slice(start, end)
        start, pairs = end, int(ends_N[end - 1])


def _reached(forest: Forest, texts: _Texts, beam: int) -> tuple[I64, I32, F32]:
    """Return the row, label and score of each label that a tree reaches."""
    search_S = np.arange(len(texts) * forest.num_trees)  # a search per text and tree
    node_S, score_S = np.tile(forest.roots, len(texts)), np.zeros(len(search_S), np.float32)
    while not forest.is_leaf_V[node_S].all():
        is_leaf_S = forest.is_leaf_V[node_S]
        score_SC = np.full((len(node_S), _most_children(forest, node_S[~is_leaf_S])), -np.inf, np.float32)
        score_SC[is_leaf_S, 0] = score_S[is_leaf_S]  # a leaf competes with the next level's nodes as it is
        branches = np.flatnonzero(~is_leaf_S)
        losses = _losses(forest, texts, search_S[branches] // forest.num_trees, node_S[branches])
        score_SC[branches] = score_S[branches, None] - losses
        at_S, child_S = _best(search_S, score_SC, beam)
        inner_S = forest.below[np.where(is_leaf_S[at_S], 0, forest.firsts_V[node_S[at_S]] + child_S)]
        node_S = np.where(is_leaf_S[at_S], node_S[at_S], inner_S)
        search_S, score_S = search_S[at_S], score_SC[at_S, child_S]
    row_S = search_S // forest.num_trees
    score_SC = score_S[:, None] - _losses(forest, texts, row_S, node_S)
    at_M, child_M = _best(np.arange(len(node_S)), score_SC, beam)
    labels_M = forest.below[forest.firsts_V[node_S[at_M]] + child_M]
    return row_S[at_M], labels_M, np.exp(score_SC[at_M, child_M])


def _ranked(forest: Forest, row_M: I64, label_M: I32, score_M: F32, k: int) -> tuple[I64, I64, I64, F64]:
    """Add up the scores of equal labels; return row, rank, label and sum of the ``k`` best labels of each row."""
    key_U, place_M = np.unique(row_M * forest.num_labels + label_M, return_inverse=True)
    total_U = np.bincount(place_M, score_M, len(key_U))
    order = np.lexsort((-total_U, key_U // forest.num_labels))  # stable: of equal scores the first label comes first
    row_U, label_U = key_U[order] // forest.num_labels, key_U[order] % forest.num_labels
    rank_U = np.arange(len(order)) - np.searchsorted(row_U, row_U)
    kept = rank_U < k
    return row_U[kept], rank_U[kept], label_U[kept], total_U[order][kept]


def _losses(forest: Forest, texts: _Texts, row_S: I64, node_S: I32) -> F32:
    """Return max(0, 1 - margin)^2 of each child of a node for a text (S x C); infinite for absent children."""
    order = np.argsort(node_S, kind="stable")  # texts at the same node read the same weights
    margins_SC = np.empty((len(node_S), _most_children(forest, node_S)), np.float32)
    margins_SC[order] = _margins(forest, texts, row_S[order], node_S[order])[:, : margins_SC.shape[1]]
    losses_SC = np.subtract(1, margins_SC, out=margins_SC)
    np.square(np.maximum(losses_SC, 0, out=losses_SC), out=losses_SC)
    losses_SC[np.arange(margins_SC.shape[1]) >= forest.sizes_V[node_S, None]] = np.inf
    return losses_SC


def _margins(forest: Forest, texts: _Texts, row_S: I64, node_S: I32) -> F32:
    """Return the margins of the children of nodes, of which equal ones follow one another (S x the most of any)."""
    sizes_S = texts.sizes_N[row_S]
    ends_S = np.cumsum(sizes_S)
    pair_P = ragged_positions(texts.starts_N[row_S], sizes_S)
    terms_P = texts.terms[pair_P]
    rows_P = np.empty(len(pair_P), np.int64)  # of weights
    last = np.append(np.flatnonzero(node_S[1:] != node_S[:-1]), len(node_S) - 1)
    bounds = forest.rows_V[node_S[last]].tolist(), forest.rows_V[node_S[last] + 1].tolist()
    start = 0
    for first, stop, end in zip(*bounds, ends_S[last].tolist(), strict=True):
        np.add(forest.terms_R[first:stop].searchsorted(terms_P[start:end]), first, out=rows_P[start:end])
        start = end
    found_P = np.flatnonzero(rows_P < np.repeat(forest.rows_V[node_S + 1], sizes_S))
    found_P = found_P[forest.terms_R[rows_P[found_P]] == terms_P[found_P]]
    return _product(forest, np.searchsorted(found_P, ends_S), rows_P[found_P], texts.values[pair_P[found_P]])


def _product(forest: Forest, ends_S: I64, rows_P: I64, values_P: F32) -> F32:
    """Multiply a sparse matrix (S x R) by all weights (R x C); it has its rows' ends, its columns and its values.

    scipy's product reads the weights twice, the first time to count those of the result; its kernel does not.
    """
    from scipy.sparse import _sparsetools

    index, shape = forest.ends_R.dtype, (len(ends_S), forest.width)
    left = np.append(0, ends_S).astype(index), rows_P.astype(index), values_P
    right = forest.ends_R, forest.children_W, forest.weights_W
    result = np.empty(len(ends_S) + 1, index), np.empty(shape, index).ravel(), np.empty(shape, np.float32).ravel()
    _sparsetools.csr_matmat(*shape, *left, *right, *result)
    product_SC = np.zeros(shape, np.float32)
    _sparsetools.csr_todense(*shape, *result, product_SC)
    return product_SC


def _most_children(forest: Forest, node_S: I32) -> int:
    return int(forest.sizes_V[node_S].max(initial=1))


@dataclass(frozen=True)
class _Texts:
    """N texts: their terms, each text's bias last, and the terms' values."""

    starts_N: I64
    sizes_N: I64
    terms: I32
    values: F32

    @classmethod
    def of(cls, terms_NT: Any) -> _Texts:
        """Add the bias to rows of terms."""
        starts_N = terms_NT.indptr.astype(np.int64) + np.arange(terms_NT.shape[0] + 1)
        terms = np.full(starts_N[-1], terms_NT.shape[1], np.int32)
        values = np.ones(starts_N[-1], np.float32)
        is_bias = np.zeros(starts_N[-1], np.bool_)
        is_bias[starts_N[1:] - 1] = True
        terms[~is_bias], values[~is_bias] = terms_NT.indices, terms_NT.data
        return cls(starts_N[:-1], starts_N[1:] - starts_N[:-1], terms, values)

    def __len__(self) -> int:
        return len(self.sizes_N)


def _best(group_S: I64, score_SC: F32, k: int) -> tuple[I64, I64]:
    """Return row and column of the ``k`` best finite scores of each group; of equal ones the first.

    Rows of a group follow one another; so do the results.
    """
    is_first_S = np.ones(len(group_S), np.bool_)
    np.not_equal(group_S[1:], group_S[:-1], out=is_first_S[1:])
    starts_G = np.flatnonzero(is_first_S)
    width = score_SC.shape[1]
    if len(starts_G) == len(group_S):
        score_GE = score_SC
    else:
        place_S = np.arange(len(group_S))
        of_row_S = np.cumsum(is_first_S) - 1
        slot_S = place_S - starts_G[of_row_S]
        padded = np.full((len(starts_G), int(slot_S.max()) + 1, width), -np.inf, np.float32)
        padded[of_row_S, slot_S] = score_SC
        score_GE = padded.reshape(len(starts_G), -1)
    kept_GE = score_GE > -np.inf
    many = np.flatnonzero(np.count_nonzero(kept_GE, axis=1) > k)
    if len(many):
        score_ME = score_GE[many]
        bound_M1 = np.sort(score_ME, axis=1)[:, -k, None]  # np.partition is slower: most are -inf
        kept_ME = score_ME >= bound_M1
        tied = np.flatnonzero(np.count_nonzero(kept_ME, axis=1) > k)
        equal, above = score_ME[tied] == bound_M1[tied], score_ME[tied] > bound_M1[tied]
        kept_ME[tied] = above | (equal & (np.cumsum(equal, axis=1) <= k - above.sum(axis=1, keepdims=True)))
        kept_GE[many] = kept_ME
    of_group_M, cell_M = np.nonzero(kept_GE)
    return starts_G[of_group_M] + cell_M // width, cell_M % width
