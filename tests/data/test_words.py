"""The distinct words of texts: those of loops, for any number of texts, with few hashes kept."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from xc_core.data import words as module
from xc_core.data.words import Words

TEXTS = ["Red river, red RIVER blue", "", "blue_1 blue-1", "ä Ä ö", "!?"]


def counted(words: Words) -> list[dict[int, int]]:
    flat = list(zip(words.hashes.tolist(), words.counts.tolist(), strict=True))
    return [dict(flat[start:end]) for start, end in zip(words.indptr[:-1], words.indptr[1:], strict=True)]


@pytest.mark.parametrize("kept", [1, 2, 1000])
def test_they_are_those_of_loops_however_many_hashes_are_kept(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", kept)
    module._known.clear()
    found = counted(Words.of(TEXTS))
    assert len(module._known) <= kept
    expected = [Counter(re.findall(r"\w+", text.lower())) for text in TEXTS]
    hashes = {word: int(Words.of([word]).hashes[0]) for own in expected for word in own}
    assert found == [{hashes[word]: n for word, n in own.items()} for own in expected]


def test_hashes_ascend_within_a_text_and_never_change() -> None:
    words = Words.of(["b a", "a"])
    assert words.hashes.tolist() == [*sorted(words.hashes[:2].tolist()), int(words.hashes[2])]
    assert int(words.hashes[2]) == int.from_bytes(hashlib.blake2b(b"a", digest_size=8).digest(), "little")


def test_more_texts_than_16_bits_can_number() -> None:
    words = Words.of([*["a"] * 65_536, "b c", "a"])
    assert len(words) == 65_538
    assert words.indptr[[1, 65_536, 65_537, 65_538]].tolist() == [1, 65_536, 65_538, 65_539]
    assert words.hashes[-1] == words.hashes[0]
