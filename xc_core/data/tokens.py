"""The token store: ragged ids of all documents and all labels, without padding.

Takes: blocks of texts.                       Gives: TokenStore, TokenBatch.
May import: errors, artifacts, shapes, data.tokenizer, data.labels.  Never: torch.

Files of a side: ``{side}.ids.npy`` (flat uint16, or uint32 above 65,536 token ids) and ``{side}.offsets.npy``
(int64, one more than texts). ``tokenizer.json`` lies beside them, so a store says what its ids mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.lib.format import open_memmap

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.data.labels import ragged_positions
from xc_core.data.tokenizer import TextTokenizer
from xc_core.errors import ConfigError
from xc_core.progress import Meter
from xc_core.shapes import I64, Array, TokenBatch

KIND: Final = "tokens"
SIDES: Final = ("documents", "labels")


@dataclass(frozen=True)
class TokenStore:
    """Token ids of the texts of one side; ``ids`` and ``offsets`` are memory-mapped."""

    ids: Array
    offsets: I64
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int

    @classmethod
    def open(cls, folder: Path, side: str) -> TokenStore:
        """Map one side of the store at ``folder``, after checking the store's hashes."""
        facts = artifacts.verify(folder, kind=KIND).facts
        return cls.from_arrays(
            np.load(folder / f"{side}.ids.npy", mmap_mode="r"),
            np.load(folder / f"{side}.offsets.npy", mmap_mode="r"),
            facts,
        )

    @classmethod
    def from_arrays(cls, ids: Array, offsets: I64, facts: Any) -> TokenStore:
        """Build from arrays and the facts that name special tokens."""
        return cls(ids, offsets, tuple(facts["prefix"]), tuple(facts["suffix"]), int(facts["pad_id"]))

    @classmethod
    def of_texts(cls, texts: list[str], tokenizer: TextTokenizer) -> TokenStore:
        """Tokenise a few texts in memory, as serving does."""
        flat, counts = tokenizer.encode(texts)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(flat, offsets, tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch: special tokens included, at most ``max_length``."""
        extra = len(self.prefix) + len(self.suffix)
        if max_length <= extra:
            raise ConfigError(
                f"max_length {max_length}",
                expected=f"more than the {extra} special tokens",
                do="raise max_length",
            )
        own = np.asarray(self.offsets[rows + 1] - self.offsets[rows], np.int64)
        return np.minimum(own, max_length - extra) + extra

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch: prefix, the first ids, suffix; padded to the longest row."""
        lengths_B = self.lengths(rows, max_length)
        counts = lengths_B - len(self.prefix) - len(self.suffix)
        ids_BT = np.full((len(rows), int(lengths_B.max(initial=1))), self.pad_id, np.int64)
        ids_BT[:, : len(self.prefix)] = self.prefix
        row_of = np.repeat(np.arange(len(rows)), counts)
        column = ragged_positions(np.full(len(rows), len(self.prefix), np.int64), counts)
        ids_BT[row_of, column] = self.ids[ragged_positions(np.asarray(self.offsets[rows]), counts)]
        for i, token in enumerate(self.suffix):
            ids_BT[np.arange(len(rows)), lengths_B - len(self.suffix) + i] = token
        return TokenBatch(ids_BT, lengths_B)


class Tokens(Protocol):
    """Texts as rows of token ids: what an encoder reads."""

    def __len__(self) -> int: ...

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch, at most ``max_length``."""

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch, padded to the longest row."""


@dataclass(frozen=True)
class Joined:
    """Two stores of one tokenizer as one: the rows of ``first``, then those of ``second``; nothing is copied."""

    first: Tokens
    second: Tokens
    pad_id: int

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch, at most ``max_length``."""
        out = np.empty(len(rows), np.int64)
        for own, store, at in self._parts(rows):
            out[own] = store.lengths(at, max_length)
        return out

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch, padded to the longest row."""
        lengths_B = self.lengths(rows, max_length)
        ids_BT = np.full((len(rows), int(lengths_B.max(initial=1))), self.pad_id, np.int64)
        for own, store, at in self._parts(rows):
            part = store.batch(at, max_length)
            ids_BT[own, : part.ids_BT.shape[1]] = part.ids_BT
        return TokenBatch(ids_BT, lengths_B)

    def _parts(self, rows: I64) -> Iterator[tuple[I64, Tokens, I64]]:
        """Yield, for each store that is asked, the places of its rows, the store, and the rows in it."""
        is_first = rows < len(self.first)
        for mine, store, start in ((is_first, self.first, 0), (~is_first, self.second, len(self.first))):
            if mine.any():
                yield np.flatnonzero(mine), store, rows[mine] - start


def write_store(
    build: Build, tokenizer: TextTokenizer, sides: Mapping[str, tuple[int, Iterable[list[str]]]], max_tokens: int
) -> None:
    """Tokenise every side, (number of texts, blocks of texts), into the files of a store under ``build.path``.

    A text keeps its first ``max_tokens`` ids. Memory holds one block; ids are appended to a flat file.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32)
    tokenizer.backend.save(str(build.path / "tokenizer.json"))
    counts: dict[str, dict[str, int]] = {}
    for side, (size, blocks) in sides.items():
        offsets = np.zeros(size + 1, np.int64)
        flat = build.path / f"{side}.flat"
        done = 0
        with flat.open("wb") as stream, Meter(f"tokenising {side}", size, "texts") as meter:
            for block in blocks:
                ids, length = _cut(*tokenizer.encode(block), max_tokens)
                stream.write(ids.astype(dtype).tobytes())
                offsets[done + 1 : done + 1 + len(block)] = length
                done += len(block)
                meter.update(len(block))
        np.cumsum(offsets, out=offsets)
        np.save(build.path / f"{side}.offsets.npy", offsets)
        _to_npy(flat, build.path / f"{side}.ids.npy", dtype, int(offsets[-1]))
        counts[side] = {
            "texts": size,
            "tokens": int(offsets[-1]),
            "longest": int(np.diff(offsets).max(initial=0)),
        }
    build.facts |= {
        "tokenizer": tokenizer.name,
        "vocabulary": tokenizer.vocabulary_size,
        "dtype": dtype.name,
        "prefix": list(tokenizer.prefix),
        "suffix": list(tokenizer.suffix),
        "pad_id": tokenizer.pad_id,
        "max_tokens": max_tokens,
        "sides": counts,
    }


def _cut(flat: I64, counts: I64, limit: int) -> tuple[I64, I64]:
    if counts.max(initial=0) <= limit:
        return flat, counts
    starts = np.cumsum(counts) - counts
    kept = np.minimum(counts, limit)
    return flat[ragged_positions(starts, kept)], kept


def _to_npy(flat: Path, path: Path, dtype: np.dtype[Any], size: int) -> None:
    """Give a flat binary file a numpy header, block by block."""
    target = open_memmap(path, mode="w+", dtype=dtype, shape=(size,))
    step = 1 << 24
    with flat.open("rb") as stream:
        for start in range(0, size, step):
            part = np.fromfile(stream, dtype, min(step, size - start))
            target[start : start + len(part)] = part
    target.flush()
    flat.unlink()
