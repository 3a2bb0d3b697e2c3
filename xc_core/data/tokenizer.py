"""Texts to token ids: the tokenizer of a pretrained encoder, or a WordPiece vocabulary trained on the corpus itself.

A tokenizer here never pads, truncates or adds special tokens; ``TokenStore.batch`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from xc_core.causes import is_panic
from xc_core.data.word_ids import WordIds
from xc_core.errors import DataError, MissingError, XCError, bare, first_line
from xc_core.pretrained import (
    FROM_CORPUS,
    TOKENIZER_FILES,
    is_hub_away,
    locate,
    read_config,
    read_settings,
    unusable,
)
from xc_core.progress import Meter
from xc_core.shapes import I64, spans

_MARKED: Final = re.compile(r"\[[A-Z]+[0-9]*\]|<.*>", re.DOTALL)
"""Tokens that look special: [UNK], <pad>."""
_MOST_BYTES: Final = 1 << 27
"""Bytes of a tokenizer.json, which is read whole (a guess)."""
_SHOWN: Final = 64
"""Texts that a vocabulary reads between two updates of its progress."""
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class TextTokenizer:
    """A fast tokenizer, and the special tokens that its encoder expects around a text."""

    name: str
    backend: Tokenizer
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int

    @classmethod
    def wrap(cls, name: str, backend: Tokenizer) -> TextTokenizer:
        """Wrap ``backend`` without padding and truncation; find its special tokens by encoding a text with it.

        Raises DataError if it cannot encode a text, or if a special token is not in its vocabulary.
        """
        backend.no_truncation()
        backend.no_padding()
        with fails_as_data(name):
            plain = backend.encode("a", add_special_tokens=False).ids
            with_special = backend.encode("a", add_special_tokens=True).ids
        start = next(i for i in range(len(with_special) + 1) if with_special[i : i + len(plain)] == plain)
        prefix, suffix = with_special[:start], with_special[start + len(plain) :]
        special = prefix + suffix
        if (absent := next((i for i in special if backend.id_to_token(i) is None), None)) is not None:
            raise _unfit(name, f"a special token of id {absent:,}, which is not in the vocabulary")
        pads = [backend.token_to_id(token) for token in ("[PAD]", "<pad>", "<|endoftext|>")]
        pad = next((pad for pad in pads if pad is not None), 0)
        return cls(name, backend, tuple(prefix), tuple(suffix), pad)

    @classmethod
    def from_file(cls, name: str, path: Path) -> TextTokenizer:
        """Load a ``tokenizer.json``; raise MissingError if there is none, DataError if it is broken or too large."""
        if not path.is_file():
            raise MissingError(f"no {path}", expected="the tokenizer of the encoder", do="run the stage tokens again")
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise DataError(
                f"a tokenizer of {size:,} bytes",
                expected=f"tokenizer.json of at most {_MOST_BYTES:,} bytes",
                do="check that the file is a tokenizer",
                where=bare(str(path)),
            )
        try:
            return cls.wrap(name, Tokenizer.from_file(str(path)))
        except DataError:
            raise
        except Exception as error:  # the library raises Exception itself
            raise DataError(
                f"a tokenizer that cannot be loaded ({first_line(error, 120)})",
                expected="tokenizer.json, written by the library tokenizers",
                do="save the tokenizer again",
                where=bare(str(path)),
            ) from error

    def same_as(self, other: TextTokenizer) -> bool:
        """Return True if both map every text to the same ids."""
        return bool(self.backend.to_str() == other.backend.to_str())

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id, special and added tokens included; a vocabulary may have gaps."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def unknown_id(self) -> int | None:
        """The id that stands for unknown words; None if there is none."""
        token = getattr(self.backend.model, "unk_token", None)
        return self.backend.token_to_id(token) if isinstance(token, str) else None

    @cached_property
    def _word_ids(self) -> WordIds | None:
        return WordIds.of(self.backend)

    def encode(self, texts: list[str]) -> tuple[I64, I64]:
        """Return (flat ids, number of ids per text), both int64, without special tokens.

        Raises DataError if the tokenizer fails on a text.
        """
        with fails_as_data(self.name):
            if self._word_ids is not None:
                return self._word_ids.encode(texts)
            encoded = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        counts = np.array([len(e.ids) for e in encoded], np.int64)
        flat = np.fromiter((i for e in encoded for i in e.ids), np.int64, int(counts.sum()))
        return flat, counts


@contextmanager
def fails_as_data(name: str) -> Iterator[None]:
    """Turn an error of the library tokenizers into a DataError; a panic of its Rust code is no Exception in Python."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        raise _unfit(name, f"a tokenizer that fails on a text ({first_line(error, 120)})") from error


def _unfit(name: str, found: str) -> DataError:
    do = "save the tokenizer that the model was trained with, or choose another encoder"
    return DataError(found, expected="a tokenizer that encodes every text", do=do, where=f"the tokenizer {bare(name)}")


def load(name: str, texts: Iterable[list[str]] | None = None, vocabulary_size: int = 30_000) -> TextTokenizer:
    """Return the tokenizer of encoder ``name``; for "wordpiece", one trained on ``texts`` (blocks of texts).

    Raises MissingError for a folder without a tokenizer, UnavailableError if the model hub cannot be reached.
    """
    if name == FROM_CORPUS:
        return TextTokenizer.wrap(name, _train(texts or [], vocabulary_size))
    place = locate(name)
    if isinstance(place, Path) and (place / "tokenizer.json").is_file():
        return _require_words(TextTokenizer.from_file(name, place / "tokenizer.json"))
    if isinstance(place, Path) and not any(True for pattern in TOKENIZER_FILES for _ in place.glob(pattern)):
        raise MissingError(
            f"no tokenizer in {place}",
            expected=f"one of {', '.join(TOKENIZER_FILES)}",
            do="save the tokenizer of the model in that folder",
        )
    return _require_words(TextTokenizer.wrap(name, _from_transformers(name, place)))


def _require_words(tokenizer: TextTokenizer) -> TextTokenizer:
    """Return the tokenizer; raise DataError if it knows special tokens only, so that every text would be unknown."""
    words = [token for token in tokenizer.backend.get_vocab() if not _MARKED.fullmatch(token)]
    if not words:
        raise DataError(
            f"a vocabulary of {tokenizer.vocabulary_size} special tokens",
            expected="a vocabulary with words",
            do="save the tokenizer that the model was trained with",
            where=bare(tokenizer.name),
        )
    return tokenizer


def _from_transformers(name: str, place: Path | str) -> Tokenizer:
    """Load a tokenizer with transformers: from a folder without tokenizer.json, or by its name on the model hub.

    No code of the folder is run.
    """
    from transformers import AutoTokenizer

    try:
        if isinstance(place, Path):
            for file, read in (("config.json", read_config), ("tokenizer_config.json", read_settings)):
                with suppress(FileNotFoundError):
                    read(place / file, name)
        local = isinstance(place, Path) or is_hub_away()
        loaded = AutoTokenizer.from_pretrained(place, use_fast=True, local_files_only=local, trust_remote_code=False)
        backend: Tokenizer = loaded.backend_tokenizer
        return backend
    except XCError:
        raise
    except Exception as error:  # transformers raises errors of many types for a wrong folder
        raise unusable("tokenizer", name, place, error, files="tokenizer.json") from error


def _train(texts: Iterable[list[str]], vocabulary_size: int) -> Tokenizer:
    """Train a lower-case WordPiece vocabulary on ``texts``; the same texts give the same vocabulary.

    The first piece of a word has a mark, inner pieces have none. BERT marks the inner pieces ("##s"); then the trainer
    numbers them in the order of a hash map and breaks ties by number, so each run gives another vocabulary.
    """
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=""))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    words = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(words)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(_SPECIAL),
        min_frequency=2,
        continuing_subword_prefix="",
        show_progress=False,
    )
    backend.train_from_iterator(_flat(texts), trainer)
    return backend


def _flat(blocks: Iterable[list[str]]) -> Iterator[str]:
    with Meter("learning a vocabulary", 0, "texts") as meter:
        for block in blocks:
            for part in spans(len(block), _SHOWN):
                yield from block[part]
                meter.update(len(block[part]))
