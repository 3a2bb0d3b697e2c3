"""The artefact of the stage tokens: ragged token ids of all documents and all labels, one store per tokenizer.

Files of a store: for each side ``{side}.ids.npy`` (flat uint16, or uint32 above 65,536 token ids) and
``{side}.offsets.npy`` (int64, one more than texts); ``tokenizer.json``; ``store.json`` (tokenizer, limit, counts).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.data.beginning import encode_beginning
from xc_core.data.labels import ragged_positions
from xc_core.data.tokenizer import TextTokenizer
from xc_core.errors import ConfigError, DataError, bare
from xc_core.linked import link_files
from xc_core.progress import Meter, report
from xc_core.shapes import I64, Array, TokenBatch

SIDES: Final = ("documents", "labels")
TOKENIZER: Final = "tokenizer.json"
_CONTENT: Final = "store.json"
_MOST_UNKNOWN: Final = 0.5
"""Share of unknown tokens, or of texts without tokens, of documents above which nothing can be learnt; a guess."""
_MANY_UNKNOWN: Final = 0.1
"""Share of either that is reported."""


def store_name(tokenizer: str) -> str:
    """Return the folder name of a tokenizer's store: its name, or a safe form of a path or hub name."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-.") else "-" for char in tokenizer)
    safe = safe.strip("-.")
    return safe if safe == tokenizer else f"{safe}-{hashlib.sha256(tokenizer.encode()).hexdigest()[:8]}".lstrip("-")


@dataclass(frozen=True)
class TokenStore:
    """Token ids of the texts of one side, without special tokens; text i has ``ids[offsets[i] : offsets[i + 1]]``."""

    ids: Array
    offsets: I64
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int

    @classmethod
    def of_texts(cls, texts: list[str], tokenizer: TextTokenizer, limit: int | None = None) -> TokenStore:
        """Tokenise a few texts in memory, for instance queries: whole, or until each has its first ``limit`` ids."""
        flat, counts = tokenizer.encode(texts) if limit is None else encode_beginning(tokenizer, texts, limit)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(flat, offsets, tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch: special tokens included, at most ``max_length``.

        Raises ConfigError if ``max_length`` leaves no space beside the special tokens.
        """
        extra = len(self.prefix) + len(self.suffix)
        if max_length <= extra:
            raise ConfigError(
                f"max_length {max_length}",
                expected=f"more than the {extra} special tokens",
                do="raise max_length",
            )
        counts = np.asarray(self.offsets[rows + 1] - self.offsets[rows], np.int64)
        return np.minimum(counts, max_length - extra) + extra

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch: prefix, the first ids, suffix, and padding up to the longest row."""
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


@dataclass(frozen=True)
class Tokenised:
    """The texts of both sides as token ids of one tokenizer."""

    kind: ClassVar[str] = "tokens"
    tokenizer: TextTokenizer
    documents: TokenStore
    labels: TokenStore
    max_tokens: int
    """Largest number of token ids that were kept of a text."""

    @classmethod
    def open(cls, folder: Path) -> Tokenised:
        """Open and verify the store at ``folder``; ids are memory-mapped.

        Raises MissingError, CorruptError.
        """
        artifacts.verify(folder, kind=cls.kind)
        facts = json.loads((folder / _CONTENT).read_text("utf-8"))
        tokenizer = TextTokenizer.from_file(facts["tokenizer"], folder / TOKENIZER)
        documents, labels = (_mapped(folder, side, tokenizer) for side in SIDES)
        return cls(tokenizer, documents, labels, int(facts["max_tokens"]))

    def side(self, name: str) -> TokenStore:
        """Return the tokens of "documents" or "labels"."""
        return self.documents if name == "documents" else self.labels


def _mapped(folder: Path, side: str, tokenizer: TextTokenizer) -> TokenStore:
    ids = np.load(folder / f"{side}.ids.npy", mmap_mode="r")
    offsets = np.load(folder / f"{side}.offsets.npy", mmap_mode="r")
    return TokenStore(ids, offsets, tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id)


class Tokens(Protocol):
    """Texts as rows of token ids: the input of an encoder."""

    def __len__(self) -> int: ...

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch, at most ``max_length``."""

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch, padded to the longest row."""


@dataclass(frozen=True)
class Joined:
    """Two stores of one tokenizer, concatenated without a copy: the rows of ``first``, then those of ``second``."""

    first: Tokens
    second: Tokens
    pad_id: int

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch, at most ``max_length``."""
        out = np.empty(len(rows), np.int64)
        for places, store, store_rows in self._rows_by_store(rows):
            out[places] = store.lengths(store_rows, max_length)
        return out

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch, padded to the longest row."""
        lengths_B = self.lengths(rows, max_length)
        ids_BT = np.full((len(rows), int(lengths_B.max(initial=1))), self.pad_id, np.int64)
        for places, store, store_rows in self._rows_by_store(rows):
            store_batch = store.batch(store_rows, max_length)
            ids_BT[places, : store_batch.ids_BT.shape[1]] = store_batch.ids_BT
        return TokenBatch(ids_BT, lengths_B)

    def _rows_by_store(self, rows: I64) -> Iterator[tuple[I64, Tokens, I64]]:
        """Yield for each store that has some of ``rows``: their positions in ``rows``, the store, their rows in it."""
        is_first = rows < len(self.first)
        for inside, store, offset in ((is_first, self.first, 0), (~is_first, self.second, len(self.first))):
            if inside.any():
                yield np.flatnonzero(inside), store, rows[inside] - offset


def write_tokens(
    build: Build, tokenizer: TextTokenizer, sides: Mapping[str, tuple[int, Iterable[list[str]]]], max_tokens: int
) -> dict[str, Any]:
    """Tokenise every side into a store inside the artefact that is being built, and return counts.

    A side is (number of texts, blocks of texts). A text keeps its first ``max_tokens`` ids. Memory holds one block.
    """
    with artifacts.building(build.path / store_name(tokenizer.name), kind=Tokenised.kind) as store:
        counts = _write_sides(store.path, tokenizer, sides, max_tokens)
        tokenizer.backend.save(str(store.path / TOKENIZER))
        store.json(_CONTENT, {"tokenizer": tokenizer.name, "max_tokens": max_tokens, "sides": counts})
    return {"vocabulary": tokenizer.vocabulary_size, "sides": counts}


def extend_tokens(build: Build, folder: Path, texts_from: Callable[[int], list[str]]) -> dict[str, Any]:
    """Write the store at ``folder`` with more labels at its end, and return counts.

    ``texts_from(n)`` returns the texts of all labels but the first n. The vocabulary stays, documents are linked.
    """
    old, content = Tokenised.open(folder), json.loads((folder / _CONTENT).read_text("utf-8"))
    texts = texts_from(len(old.labels))
    ids, length = _truncate(*old.tokenizer.encode(texts), old.max_tokens)
    lost = _LossCounter(old.tokenizer)
    lost.count(texts, ids, length)
    lost.check("new labels")
    labels, ends = old.labels, len(old.labels.ids) + np.cumsum(length)
    counts = content["sides"]["labels"]
    counts["texts"] += len(length)
    counts["tokens"] += len(ids)
    counts["longest"] = max(counts["longest"], int(length.max(initial=0)))
    with artifacts.building(build.path / folder.name, kind=Tokenised.kind) as store:
        link_files(folder, store.path, ["documents.ids.npy", "documents.offsets.npy", TOKENIZER])
        np.save(store.path / "labels.ids.npy", np.concatenate([labels.ids, ids.astype(labels.ids.dtype)]))
        np.save(store.path / "labels.offsets.npy", np.concatenate([labels.offsets, ends]))
        store.json(_CONTENT, content)
    return {"vocabulary": old.tokenizer.vocabulary_size, "sides": content["sides"]}


def _write_sides(
    folder: Path, tokenizer: TextTokenizer, sides: Mapping[str, tuple[int, Iterable[list[str]]]], max_tokens: int
) -> dict[str, dict[str, int]]:
    dtype = np.dtype(np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32)
    counts: dict[str, dict[str, int]] = {}
    for side, (size, blocks) in sides.items():
        offsets = np.zeros(size + 1, np.int64)
        flat = folder / f"{side}.flat"
        first_row, lost = 0, _LossCounter(tokenizer)
        with flat.open("wb") as stream, Meter(f"tokenising {side}", size, "texts") as meter:
            for block in blocks:
                ids, length = _truncate(*tokenizer.encode(block), max_tokens)
                lost.count(block, ids, length)
                stream.write(ids.astype(dtype).tobytes())
                offsets[first_row + 1 : first_row + 1 + len(block)] = length
                first_row += len(block)
                meter.update(len(block))
        np.cumsum(offsets, out=offsets)
        lost.check(side)
        np.save(folder / f"{side}.offsets.npy", offsets)
        _to_npy(flat, folder / f"{side}.ids.npy", dtype, int(offsets[-1]))
        counts[side] = {
            "texts": size,
            "tokens": int(offsets[-1]),
            "longest": int(np.diff(offsets).max(initial=0)),
        }
    return counts


@dataclass
class _LossCounter:
    """Counts what a tokenizer loses of the texts of a side."""

    tokenizer: TextTokenizer
    tokens: int = 0
    unknown: int = 0
    """Tokens that the vocabulary lacks."""
    texts: int = 0
    """Texts that are not blank."""
    silent: int = 0
    """Such texts without tokens."""

    def count(self, texts: list[str], ids: I64, length: I64) -> None:
        """Add texts, their token ids one after the other, and the number of ids of each."""
        without = [bool(texts[row].strip()) for row in np.flatnonzero(length == 0)]
        self.tokens += len(ids)
        self.unknown += int((ids == self.tokenizer.unknown_id).sum()) if self.tokenizer.unknown_id is not None else 0
        self.texts += len(texts) - without.count(False)
        self.silent += without.count(True)

    def check(self, side: str) -> None:
        """Do what ``_check_share`` does, with tokens and with texts."""
        _check_share(self.tokenizer, side, "unknown tokens", self.unknown, self.tokens)
        _check_share(self.tokenizer, side, "texts without tokens", self.silent, self.texts)


def _check_share(tokenizer: TextTokenizer, side: str, lost: str, count: int, total: int) -> None:
    """Raise DataError if most of the documents' content is lost, so that a model learns nothing; report if much is.

    ``lost`` names what was counted: ``count`` of ``total``.
    """
    share = count / max(total, 1)
    if side == "documents" and share > _MOST_UNKNOWN:
        raise DataError(
            f"{share:.0%} {lost} in the documents ({count:,} of {total:,})",
            expected=f"at most {_MOST_UNKNOWN:.0%}: a vocabulary that has the words of the texts",
            do="choose an encoder for the language of the texts, or the encoder bag, whose vocabulary is made of them",
            where=f"the tokenizer {bare(tokenizer.name)}",
        )
    if share > _MANY_UNKNOWN:
        report(
            f"tokens: {share:.0%} {lost} in the {side}, with the tokenizer {bare(tokenizer.name)}; an encoder for the "
            "language of the texts, or the encoder bag, loses fewer (docs/recipes.md)"
        )


def _truncate(flat: I64, counts: I64, limit: int) -> tuple[I64, I64]:
    if counts.max(initial=0) <= limit:
        return flat, counts
    starts = np.cumsum(counts) - counts
    kept_counts = np.minimum(counts, limit)
    return flat[ragged_positions(starts, kept_counts)], kept_counts


def _to_npy(flat: Path, path: Path, dtype: np.dtype[Any], size: int) -> None:
    """Convert a flat binary file to ``.npy``, block by block, and delete it."""
    target = artifacts.mapped_array(path, (size,), dtype)
    step = 1 << 24
    with flat.open("rb") as stream:
        for start in range(0, size, step):
            block = np.fromfile(stream, dtype, min(step, size - start))
            target[start : start + len(block)] = block
    target.flush()
    flat.unlink()
