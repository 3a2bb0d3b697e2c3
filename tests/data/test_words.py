"""The distinct words of texts: those of loops, for any number of texts, with few hashes kept."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from random import Random

import pytest

from xc_core.data import words as module
from xc_core.data.words import Words

TEXTS = ["Red river, red RIVER blue", "", "blue_1 blue-1", "ä Ä ö", "!?", "yo\u0308", "I\u0307"]


def naive(texts: list[str]) -> list[dict[int, int]]:
    """Return how often each word of each text occurs, by the hash of the word."""
    return [
        {
            int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little"): count
            for word, count in Counter(re.findall(r"\w+", unicodedata.normalize("NFC", text).lower())).items()
        }
        for text in texts
    ]


def counted(words: Words) -> list[dict[int, int]]:
    flat = list(zip(words.vocabulary[words.numbers].tolist(), words.counts.tolist(), strict=True))
    return [dict(flat[start:end]) for start, end in zip(words.indptr[:-1], words.indptr[1:], strict=True)]


@pytest.mark.parametrize("kept", [1, 2, 1000])
def test_they_are_those_of_loops_however_many_hashes_are_kept(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CACHED", kept)
    module._hash_cache.clear()
    found = counted(Words.of(TEXTS))
    assert len(module._hash_cache) <= kept
    assert found == naive(TEXTS)


def test_every_character_of_unicode_is_one_of_words_or_not_as_in_the_loop() -> None:
    texts = ["".join(f"x{chr(at)}" for at in range(start, start + 256)) for start in range(0, 0x110000, 256)]
    assert counted(Words.of(texts)) == naive(texts)


def test_every_character_has_the_same_lower_case_as_in_the_loop() -> None:
    """Those of Latin, Greek and Cyrillic, one by one: a lower case may depend on the characters around it."""
    texts = [f"{before}{chr(at)}{after}" for at in range(0x600) for before, after in (("", ""), ("A", ""), ("A", "'B"))]
    assert counted(Words.of(texts)) == naive(texts)
    assert [counted(Words.of([text]))[0] for text in texts] == naive(texts)


@pytest.mark.parametrize("seed", range(5))
def test_random_texts_have_the_words_of_the_loop(seed: int) -> None:
    """With line breaks, capitals whose lower case is unusual, and texts that end where the next one begins."""
    random = Random(seed)
    texts = [
        "".join(random.choices("aAbÄßΑΣσςİiIı_9'. \n-\U0001d400😀\ud800", k=random.randrange(9))) for _ in range(300)
    ]
    assert counted(Words.of(texts)) == naive(texts)


def test_no_texts_and_texts_without_words() -> None:
    assert counted(Words.of([])) == []
    assert counted(Words.of(["", "-"])) == [{}, {}]


def test_hashes_ascend_within_a_text_and_never_change() -> None:
    words = Words.of(["b a", "a"])
    assert words.vocabulary[words.numbers].tolist() == [
        *sorted(words.vocabulary[words.numbers][:2].tolist()),
        int(words.vocabulary[words.numbers][2]),
    ]
    assert int(words.vocabulary[words.numbers][2]) == int.from_bytes(
        hashlib.blake2b(b"a", digest_size=8).digest(), "little"
    )


def test_more_texts_than_16_bits_can_number() -> None:
    words = Words.of([*["a"] * 65_536, "b c", "a"])
    assert len(words) == 65_538
    assert words.indptr[[1, 65_536, 65_537, 65_538]].tolist() == [1, 65_536, 65_538, 65_539]
    assert words.vocabulary[words.numbers][-1] == words.vocabulary[words.numbers][0]
