"""The distinct words of texts as stable 64-bit hashes, by which documents are compared without keeping their texts."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from xc_core.shapes import I64, Array

_WORD: Final = re.compile(r"\w+")
_MOST: Final = 1 << 16
"""Hashes that are kept; most texts have words of earlier ones."""


@dataclass(frozen=True, slots=True)
class Words:
    """The distinct words of N texts in CSR form: ``hashes`` (uint64, ascending within a text), how often each occurs in
    its text (``counts``), and ``indptr`` (int64, N + 1)."""

    indptr: I64
    hashes: Array
    counts: I64

    @classmethod
    def of(cls, texts: list[str]) -> Words:
        """Split texts into lower-case words: runs of letters, digits and underscores."""
        found = [_WORD.findall(text.lower()) for text in texts]
        counts = np.fromiter(map(len, found), np.int64, len(found))
        flat = np.fromiter(map(_known.__getitem__, chain.from_iterable(found)), np.uint64, int(counts.sum()))
        rows = np.repeat(np.arange(len(texts), dtype=np.uint16 if len(texts) <= 1 << 16 else np.int64), counts)
        order = np.argsort(flat)
        order = order[np.argsort(rows[order], kind="stable")]  # by counting, if rows are of 16 bits
        flat, rows = flat[order], rows[order]
        first = np.ones(len(flat), bool)
        first[1:] = (flat[1:] != flat[:-1]) | (rows[1:] != rows[:-1])
        starts = np.flatnonzero(first)
        indptr = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.bincount(rows[starts], minlength=len(texts)), out=indptr[1:])
        return cls(indptr, flat[starts], np.diff(np.append(starts, len(flat))).astype(np.int64))

    def __len__(self) -> int:
        return len(self.indptr) - 1


class _Known(dict[str, int]):
    """The hashes of the last words."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _MOST:
            self.clear()
        self[word] = found = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        return found


_known = _Known()
