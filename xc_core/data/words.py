"""The distinct words of texts as stable 64-bit hashes, by which documents are compared without keeping their texts.

Texts are composed first (Unicode's form NFC): otherwise a word would end before an accent that is its own character.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from xc_core.shapes import I64, Array, Bool

_WORD: Final = re.compile(r"\w+")
_UNUSUAL: Final = "\u0130\u03a3"
"""Characters whose lower case has two characters, or depends on those around it. Lower case changes no other character
into or out of a word character. So words are found first, and only the distinct ones are made lower case."""
_CHARACTERS: Final = 0x40000
"""No character from this one on is one of a word."""
_BYTES: Final = 4
"""Bytes of a character in UTF-32."""
_MOST_CACHED: Final = 1 << 18
"""Hashes in the cache, about 40 MB; most texts have words of earlier ones."""
_EMPTY: Final = hashlib.blake2b(digest_size=8)


@dataclass(frozen=True, slots=True)
class Words:
    """The distinct words of N texts in CSR form: their hashes (``vocabulary[numbers]``, ascending within a text), how
    often each occurs in its text (``counts``), and ``indptr`` (int64, N + 1)."""

    indptr: I64
    vocabulary: Array
    """The hashes of all words of the texts (uint64, ascending)."""
    numbers: I64
    """The position in ``vocabulary`` of each word of each text."""
    counts: I64

    @classmethod
    def of(cls, texts: list[str]) -> Words:
        """Split texts into lower-case words: runs of letters, digits and underscores."""
        size_N, spelling_ids, hashes = _split(texts)
        vocabulary, number = np.unique(hashes, return_inverse=True)
        bits = max(len(vocabulary) - 1, 1).bit_length()
        first_N = np.arange(len(texts) + 1) << bits
        keys = np.repeat(first_N[:-1], size_N) | number[spelling_ids]
        keys.sort()
        is_first = np.ones(len(keys) + 1, bool)
        np.not_equal(keys[1:], keys[:-1], out=is_first[1:-1])
        starts = np.flatnonzero(is_first)
        keys = keys[starts[:-1]]
        return cls(np.searchsorted(keys, first_N), vocabulary, keys & ((1 << bits) - 1), np.diff(starts))

    def __len__(self) -> int:
        return len(self.indptr) - 1


def _split(texts: list[str]) -> tuple[I64, Array, Array]:
    """Return how many words each text has, the id of each word's spelling, and the hash of each spelling."""
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    joined = "\n".join(texts)
    if _unusual(joined):
        texts = [text.lower() if _unusual(text) else text for text in texts]
        joined = "\n".join(texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")
    inside = np.zeros(len(characters) + 2, bool)
    _word_characters().take(characters, mode="clip", out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    ends_N = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    spelling_ids, spellings = _distinct_words(characters[inside[1:-1]], np.diff(edges)[::2])
    hashes = np.fromiter(map(_hash_cache.__getitem__, spellings), np.uint64, len(spellings))
    return np.diff(np.searchsorted(edges[::2], ends_N), prepend=0), spelling_ids, hashes


def _unusual(text: str) -> bool:
    return any(character in text for character in _UNUSUAL)


def _distinct_words(characters: Array, sizes: I64) -> tuple[Array, list[str]]:
    """Return the id of each word and the distinct words in lower case, given sizes and characters of all words.

    Words that differ in case have different ids.
    """
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes * _BYTES, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(characters)]
    encoded = pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers).dictionary_encode()
    _, offset_buffer, content = encoded.dictionary.buffers()
    text = bytes(content).decode("utf-32-le").lower()
    offsets = (np.frombuffer(offset_buffer, np.int64)[: len(encoded.dictionary) + 1] // _BYTES).tolist()
    return np.from_dlpack(encoded.indices), [text[start:end] for start, end in pairwise(offsets)]


@cache
def _word_characters() -> Bool:
    """Return True for each code point that is a word character."""
    characters = np.arange(_CHARACTERS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    mask = np.zeros(_CHARACTERS, bool)
    for word in _WORD.finditer(characters):
        mask[word.start() : word.end()] = True
    return mask


class _HashCache(dict[str, int]):
    """The hash of each recent word."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _MOST_CACHED:
            self.clear()
        hashed = _EMPTY.copy()  # faster than a new one
        hashed.update(word.encode())
        self[word] = digest = int.from_bytes(hashed.digest(), "little")
        return digest


_hash_cache = _HashCache()
