"""Tokenises only the beginning of long texts: an encoder reads a few tokens, so the rest of a text costs nothing.

A text of 10 MB needs 1.3 GB of memory if it is tokenised whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.data.tokenizer import TextTokenizer, fails_as_data
from xc_core.shapes import I64

MAX_CHARS: Final = 1 << 18
"""Characters of a text that are read at most, even if they have fewer tokens than asked for."""
_CHARS_PER_TOKEN: Final = 8
_LEAST_CHARS: Final = 256
_LAST_SPACE: Final = re.compile(r"[^\S\x0b\x0c\x1c-\x1f\x85][\S\x0b\x0c\x1c-\x1f\x85]*\Z")
"""Control characters are no spaces here: BERT's normalizer drops them, which joins the words beside them."""


def encode_beginning(tokenizer: TextTokenizer, texts: list[str], limit: int) -> tuple[I64, I64]:
    """Return (flat ids, number of ids per text), as ``tokenizer.encode``, of the beginning of each text.

    The first ``limit`` ids of each text are those of the whole text, or of its first ``MAX_CHARS`` characters if these
    have fewer. More ids may follow.
    """
    texts = [text[:MAX_CHARS] for text in texts]
    chars = max(_CHARS_PER_TOKEN * limit, _LEAST_CHARS)
    cuts = [_Cut.of(text, chars) for text in texts]
    ids_by_text = _encode_each(tokenizer, [cut.text for cut in cuts])
    safe_at_spaces = _splits_at_spaces(tokenizer)
    unsure = [row for row, cut in enumerate(cuts) if not cut.whole]
    unsure = [row for row in unsure if len(ids_by_text[row]) < limit or not (cuts[row].at_space and safe_at_spaces)]
    while unsure:
        chars *= 2
        longer_cuts = [_Cut.of(texts[row], chars) for row in unsure]
        longer_ids = _encode_each(tokenizer, [cut.text for cut in longer_cuts])
        still_unsure = []
        for row, cut, ids in zip(unsure, longer_cuts, longer_ids, strict=True):
            agrees = len(ids) >= limit and np.array_equal(ids_by_text[row][:limit], ids[:limit])
            ids_by_text[row] = ids
            if not (agrees or cut.whole):
                still_unsure.append(row)
        unsure = still_unsure
    counts = np.array([len(ids) for ids in ids_by_text], np.int64)
    return np.concatenate([np.zeros(0, np.int64), *ids_by_text]), counts


@dataclass(frozen=True)
class _Cut:
    """The beginning of a text."""

    text: str
    whole: bool
    """True if nothing was cut."""
    at_space: bool
    """True if it ends before a space."""

    @classmethod
    def of(cls, text: str, chars: int) -> _Cut:
        """Return about ``chars`` characters: up to the last space in the second half of them, if there is one."""
        if len(text) <= chars:
            return cls(text, True, False)
        space = _LAST_SPACE.search(text, chars // 2, chars)
        return cls(text[: space.start()], False, True) if space else cls(text[:chars], False, False)


def _encode_each(tokenizer: TextTokenizer, texts: list[str]) -> list[I64]:
    flat, counts = tokenizer.encode(texts)
    return np.split(flat, np.cumsum(counts)[:-1]) if texts else []


def _splits_at_spaces(tokenizer: TextTokenizer) -> bool:
    """Return True if words are tokenised one by one, so that ids before a space do not depend on what follows."""
    splitter = tokenizer.backend.pre_tokenizer
    with fails_as_data(tokenizer.name):
        return splitter is not None and len(splitter.pre_tokenize_str("a b")) > 1
