"""The distinct words of texts as stable 64-bit hashes, by which documents are compared without keeping their texts."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from xc_core.shapes import I64, Array

_WORD = re.compile(r"\w+")


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
        known = {word: _hash(word) for word in {word for words in found for word in words}}
        flat = np.array([known[word] for words in found for word in words], np.uint64)
        rows = np.repeat(np.arange(len(texts)), [len(words) for words in found])
        order = np.lexsort((flat, rows))
        flat, rows = flat[order], rows[order]
        first = np.ones(len(flat), bool)
        first[1:] = (flat[1:] != flat[:-1]) | (rows[1:] != rows[:-1])
        starts = np.flatnonzero(first)
        indptr = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.bincount(rows[starts], minlength=len(texts)), out=indptr[1:])
        return cls(indptr, flat[starts], np.diff(np.append(starts, len(flat))).astype(np.int64))

    def __len__(self) -> int:
        return len(self.indptr) - 1


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
