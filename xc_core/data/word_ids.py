"""Token ids of texts word by word, with a cache: a word that was seen before is looked up, not tokenised.

The ids are those of the tokenizer, because a tokenizer of the BERT kind never looks across a space: it normalises each
character by itself and then splits at spaces. ``WordIds.of`` returns None for tokenizers of any other kind.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer, models

from xc_core.shapes import I64

LIMIT: Final = 1 << 18
"""Words in the cache, about 50 MB; then it starts again."""
_LONGEST: Final = 64
"""Characters of a word in the cache. A text in Chinese is one word, and comes once: such words would fill a GB."""
_ID: Final = np.dtype(np.uintc)
_PIECE: Final = re.compile(r"[a-zA-Z0-9]+|[!-/:-@\[-`{-~]")
"""What BERT's pre-tokenizer cuts ASCII text into: runs of letters and digits, and each punctuation mark by itself."""


class WordIds(dict[str, bytes]):
    """Maps a word, a run of any characters except the space, to its token ids as bytes of C unsigned integers."""

    def __init__(self, backend: Tokenizer, *, lowercase: bool, mark: str) -> None:
        super().__init__()
        self._encode, self._normalise = backend.encode, backend.normalizer.normalize_str
        self._tokenise = backend.model.tokenize
        self._lowercase, self._mark = lowercase, mark
        added = [re.escape(token.content) for token in backend.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(added) or r"(?!)")

    @classmethod
    def of(cls, backend: Tokenizer) -> WordIds | None:
        """Return an empty cache for ``backend``; None if it may look across spaces or is of an unknown kind."""
        normalizer, split = _settings(backend.normalizer), _settings(backend.pre_tokenizer)
        first, *more = split.get("pretokenizers", [split])
        space = {"type": "Metaspace", "prepend_scheme": "always", "split": True}
        marked = [step.get("replacement", "") for step in more if space.items() <= step.items()]
        added = backend.get_added_tokens_decoder().values()
        supported = (
            normalizer.get("type") == "BertNormalizer"
            and first.get("type") == "BertPreTokenizer"
            and len(marked) == len(more) <= 1
            and isinstance(backend.model, models.WordPiece | models.WordLevel)
            and not any(token.normalized or token.lstrip or token.rstrip for token in added)
            and not any(" " in token.content or token.content.isalnum() for token in added)
        )
        return cls(backend, lowercase=normalizer["lowercase"], mark="".join(marked)) if supported else None

    def encode(self, texts: list[str]) -> tuple[I64, I64]:
        """Return (flat ids, number of ids per text), both int64, without special tokens."""
        look_up = self.__getitem__
        encoded = [b"".join(map(look_up, text.split(" "))) for text in texts]
        counts = np.fromiter(map(len, encoded), np.int64, len(encoded)) // _ID.itemsize
        return np.frombuffer(b"".join(encoded), _ID).astype(np.int64), counts

    def __missing__(self, word: str) -> bytes:
        if len(self) >= LIMIT:
            self.clear()
        if word.isascii() and word.isalnum():
            lower = word.lower() if self._lowercase else word
            ids = self._encode_piece(word) if lower == word else self[lower]
        else:
            ids = self._encode_word(word)
        if len(word) <= _LONGEST:
            self[word] = ids
        return ids

    def _encode_piece(self, piece: str) -> bytes:
        """Return the ids of a piece: nothing but letters and digits, or one punctuation mark."""
        return array("I", [token.id for token in self._tokenise(self._mark + piece)]).tobytes()

    def _encode_word(self, word: str) -> bytes:
        """Return the ids of a word that may consist of several pieces; those of an odd one come from the tokenizer."""
        text = word if word.isascii() else self._normalise(word)
        if self._added.search(word) or not (text.isascii() and text.isprintable()):
            return array("I", self._encode(word, add_special_tokens=False).ids).tobytes()
        pieces = _PIECE.findall(text)
        return b"".join([self[piece] if piece.isalnum() else self._encode_piece(piece) for piece in pieces])


def _settings(component: Any) -> dict[str, Any]:
    """Return the settings of a normaliser or pre-tokenizer; none for none, and for a custom one."""
    try:
        return dict(json.loads(component.__getstate__()))
    except Exception:  # tokenizers raises Exception itself for a part that it cannot write
        return {}
