"""What label trees take, as ``xc plan`` counts it: the trees themselves, their fit, and searches in them.

Everything follows from the lengths of texts. Constants say what is allocated (numpy arrays of this package);
those called measured are of docs/lab-notes/2026-11-30-memory-of-label-trees.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from xc_core.scores.base import Footprint, Size
from xc_core.scores.beam_search import search_bytes
from xc_core.scores.trees.growing import LEAF

_NAME_BYTES: Final = 70
"""Bytes of a term as a Python string in a list."""
_COLUMN_BYTES: Final = 100
"""Bytes of the same in the dictionary from terms to columns, which an opened score has."""
_ENTRY_BYTES: Final = 8
"""Bytes of a term of a text or of a weight: a position and a number."""
_WEIGHT_BYTES: Final = 11
"""Bytes of a weight in memory: child and value, and three rows (a term and an end) for eight weights (measured)."""
_WEIGHT_FILE_BYTES: Final = 9
"""The same in the file, where a child has one or two bytes."""
_JOINED_COPIES: Final = 3
"""Times the arrays of all trees when they are put together: the nodes, the arrays, and what is converted or checked."""
_NORM: Final = 0.12
"""Weights of a pair of a document and a label on a level, times the square of the threshold (measured): the length of a
vector bounds how many of its weights can be above the threshold."""
_KEPT: Final = 0.5
"""The same, as a share of the document's terms: of short texts most weights are above the threshold (measured)."""
_LARGESTLEAF: Final = 0.04
"""Share of the labels in the largest leaf of the last of three levels, which is not divided whatever its size
(measured: 0.03 to 0.05)."""
_NARROWER: Final = 10
"""A node has so many times fewer labels than the one above it, if it is one of the larger ones (a guess)."""


@dataclass(frozen=True)
class TermsOfTexts:
    """How many terms texts have, all of it measured: terms that are kept, each counted once per text."""

    per_char: float
    """Terms of a short text per character."""
    growth: float
    """Terms grow with this power of the characters of a text above 500 of them: terms repeat."""
    texts_per_term: float
    """Texts that have a term, on average."""
    char_bytes: float
    """Bytes that are held per character of all texts while their terms are counted."""

    def of(self, chars: float) -> float:
        """Return the terms of a text of so many characters."""
        return self.per_char * min(chars, _SHORT) * math.pow(max(chars / _SHORT, 1.0), self.growth)


_SHORT: Final = 500
"""Characters of the longest text that is short."""
WORDS: Final = TermsOfTexts(per_char=0.2, growth=0.72, texts_per_term=8, char_bytes=15)
PARTS: Final = TermsOfTexts(per_char=0.55, growth=0.53, texts_per_term=30, char_bytes=37)


@dataclass(frozen=True, kw_only=True)
class TreeSize:
    """Label trees of given settings on texts of given lengths."""

    size: Size
    kind: TermsOfTexts
    most_terms: int
    trees: int
    clusters: int
    depth: int
    threshold: float
    usual_terms: int
    beam: int

    def footprint(self) -> Footprint:
        """Return what the trees take."""
        arrays = _WEIGHT_BYTES * self._weights
        kept = _ENTRY_BYTES * self._entries + _NAME_BYTES * self._terms
        per_text, most = search_bytes(self._document_terms, self.trees * self.beam, self._width)
        return Footprint(
            held=arrays + (_NAME_BYTES + _COLUMN_BYTES) * self._terms,
            written=_WEIGHT_FILE_BYTES * self._weights,
            kept=kept,
            fit=max(self.counting - kept, self._training + arrays, _JOINED_COPIES * arrays),
            text=per_text,
            most=most,
        )

    @property
    def counting(self) -> float:
        """Bytes that are held while the terms of all texts are counted."""
        size = self.size
        return self.kind.char_bytes * (size.documents * size.document_chars + size.labels * size.label_chars)

    @property
    def _training(self) -> float:
        """Bytes that are held for a tree beside its weights.

        That is the texts that teach something, without and with a bias; the sum of the texts of each label, as it is
        and divided by clusters; a dense vector per cluster, and the nearness of each label to it.
        """
        sums = self.size.pairs * self._document_terms + self.size.labels * self._label_terms
        dense = 4 * self.clusters * (self._terms + self.size.labels) if self.size.labels >= LEAF else 0
        return 2.0 * _ENTRY_BYTES * self._entries + 2.5 * _ENTRY_BYTES * sums + dense

    @property
    def _weights(self) -> float:
        """Weights of all trees."""
        bound = _NORM / max(self._own_threshold, 1e-9) ** 2
        of_pairs = self.size.pairs * min(_KEPT * self._document_terms, bound)
        return self.trees * self._levels * (of_pairs + self.size.labels * min(_KEPT * self._label_terms, bound))

    @property
    def _own_threshold(self) -> float:
        longer = self._document_terms / self.usual_terms if self.usual_terms else 1.0
        return self.threshold / max(longer, 1.0)

    @property
    def _levels(self) -> int:
        """Levels of nodes with linear models."""
        narrower = math.ceil(math.log(max(self.size.labels / LEAF, 1), _NARROWER))
        return min(1 + narrower, self.depth)

    @property
    def _width(self) -> int:
        """Children of the node that has most of them: a search computes as many margins at each node of its beam."""
        return max(min(max(self.clusters, LEAF, math.ceil(_LARGESTLEAF * self.size.labels)), self.size.labels), 1)

    @property
    def _document_terms(self) -> float:
        return min(self.kind.of(self.size.document_chars), self.most_terms)

    @property
    def _label_terms(self) -> float:
        return min(self.kind.of(self.size.label_chars), self.most_terms)

    @property
    def _entries(self) -> float:
        """Terms of all texts."""
        return self.size.documents * self._document_terms + self.size.labels * self._label_terms

    @property
    def _terms(self) -> float:
        return min(self._entries / self.kind.texts_per_term, self.most_terms)
