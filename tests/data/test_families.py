"""Families of near-duplicates: the search agrees with a naive one, is bounded, deterministic, stable on appending."""

from __future__ import annotations

import gc
import re
import tracemalloc
import unicodedata
from pathlib import Path
from random import Random

import numpy as np
import pytest

from xc_core.data import families as module
from xc_core.data.families import LEVELS, NearDuplicates, components, signatures, similarity
from xc_core.data.words import Words
from xc_core.seeds import derive

VOCABULARY = [f"w{i}" for i in range(3000)]


def jaccard(first: str, second: str) -> float:
    one, other = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return len(one & other) / len(one | other) if one | other else 0.0


def naive_families(texts: list[str], least: float = LEVELS[0]) -> list[int]:
    """Return the first member of the connected component of each text, by comparing all pairs."""
    first = list(range(len(texts)))
    changed = True
    while changed:
        changed = False
        for i in range(len(texts)):
            for j in range(i):
                if first[i] != first[j] and jaccard(texts[i], texts[j]) >= least:
                    first[i] = first[j] = min(first[i], first[j])
                    changed = True
    return first


def found_families(folder: Path, texts: list[str], step: int = 1000) -> list[int]:
    near = NearDuplicates(folder / "near")
    for start in range(0, len(texts), step):
        near.add(texts[start : start + step])
    found = near.families().tolist()
    assert not (folder / "near").exists(), "the files are deleted"
    return list(found)


def planted(random: Random, families: int = 40, siblings: int = 4, words: int = 40, edits: int = 2) -> list[str]:
    """Return shuffled texts: families of ``siblings`` that differ in a few of their words, and as many single texts.

    Siblings have a Jaccard similarity of at least 36 / 44 = 0.82; others share hardly a word.
    """
    texts = []
    for _ in range(families):
        base = random.sample(VOCABULARY, words)
        for _ in range(siblings):
            own = list(base)
            for place in random.sample(range(words), edits):
                own[place] = random.choice(VOCABULARY)
            texts.append(" ".join(random.sample(own, words)))
    texts += [" ".join(random.sample(VOCABULARY, words)) for _ in range(families)]
    return random.sample(texts, len(texts))


@pytest.mark.parametrize("seed", range(4))
def test_planted_families_are_those_of_the_naive_search(tmp_path: Path, seed: int) -> None:
    texts = planted(Random(seed))
    naive = naive_families(texts)
    assert max(np.bincount(naive)) == 4
    assert found_families(tmp_path, texts) == naive


def test_the_similarity_is_the_share_of_common_words() -> None:
    random = Random(1)
    for shared in (5, 20, 35, 40):
        base = random.sample(VOCABULARY, 80 - shared)
        texts = [" ".join(base[:40]), " ".join([*base[:shared], *base[40:]])]
        words = Words.of(texts)
        estimated = similarity(signatures(words, np.arange(2)), np.array([[0, 1]]))[0]
        assert abs(estimated - jaccard(*texts)) < 4 * (0.25 / 128) ** 0.5


@pytest.mark.parametrize("at_once", [1, 10, 2048])
def test_signatures_are_those_of_a_loop(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of words that are gathered at a time; a text without words is left out."""
    monkeypatch.setattr(module, "_WORDS", at_once)
    random = Random(2)
    texts = [" ".join(random.sample(VOCABULARY, size)) for size in (3, 1, 0, 3, 40, 17, 1, 3)]
    words, rows = Words.of(texts), [0, 1, 3, 4, 5, 6, 7]
    found = signatures(words, np.array(rows))
    for row, own in zip(rows, found.tolist(), strict=True):
        hashes = words.vocabulary[words.numbers][words.indptr[row] : words.indptr[row + 1]].tolist()
        for place, value in enumerate(own):
            multiplier, offset = (derive(root, "minhash", place) for root in (0, 1))
            assert value == min((h * (multiplier | 1) + offset) % 2**64 >> 32 for h in hashes)


@pytest.mark.parametrize("keys", [1, 5, 300, 10**9])
def test_candidates_are_those_of_a_loop(keys: int) -> None:
    """Each text with an equal key is compared with the one before it and with the first one, once."""
    random = Random(keys)
    drawn = [random.randrange(keys) for _ in range(200)]
    seen: dict[int, list[int]] = {}
    expected = set()
    for text, key in enumerate(drawn):
        own = seen.setdefault(key, [])
        expected |= {own[0] * 200 + text, own[-1] * 200 + text} if own else set()
        own.append(text)
    assert sorted(module._candidate_pairs(np.array(drawn, np.uint64)).tolist()) == sorted(expected)


def test_order_of_words_case_and_punctuation_do_not_matter_and_texts_without_words_are_alone(tmp_path: Path) -> None:
    texts = ["Red apple, green pear", "", "pear green; apple RED!", "...", "", "quite another text"]
    for step in (len(texts), 1):  # a block of texts without words is fine too
        assert found_families(tmp_path, texts, step) == [0, 1, 0, 3, 4, 5]


def test_accents_of_their_own_characters_do_not_matter(tmp_path: Path) -> None:
    """A catalogue and a Mac's files have the same text in two Unicode forms."""
    text = "Päivällä mökillä, hämärän jälkeen"
    assert found_families(tmp_path, [text, unicodedata.normalize("NFD", text)]) == [0, 0]


@pytest.mark.parametrize("step", [1, 7, 50])
def test_blocks_do_not_matter(tmp_path: Path, step: int) -> None:
    texts = planted(Random(5))
    assert found_families(tmp_path, texts, step) == found_families(tmp_path, texts)


def test_appended_texts_change_no_family_that_they_do_not_join(tmp_path: Path) -> None:
    """The guarantee of the docs: the first text names a family, so a sibling that is appended takes its name."""
    texts = planted(Random(6))
    before = found_families(tmp_path, texts)
    more = [*texts, texts[10], *planted(Random(7), families=5), texts[20] + " one more"]
    after = found_families(tmp_path, more)
    assert after[: len(texts)] == before
    assert after[len(texts)] == before[10]
    assert after[-1] == before[20]


def test_a_text_that_joins_two_families_gives_both_the_name_of_the_earlier_one(tmp_path: Path) -> None:
    words = VOCABULARY[:46]
    left, right, between = " ".join(words[:40]), " ".join(words[6:]), " ".join(words[3:43])
    assert jaccard(left, right) < 0.76 and jaccard(left, between) > 0.85
    far_left, far_right = " ".join(words[:34]), " ".join(words[12:])
    assert jaccard(far_left, far_right) < 0.5
    assert found_families(tmp_path, [far_left, far_right]) == [0, 1]
    assert found_families(tmp_path, [far_left, far_right, left, right, between]) == [0, 0, 0, 0, 0]


def test_a_chain_is_cut_at_its_weak_links_if_it_is_too_long() -> None:
    pairs = np.array([[i, i + 1] for i in range(9)])
    alike = np.array([1.0, 0.9, 0.9, 0.75, 1.0, 1.0, 0.75, 0.9, 0.75])
    assert components(10, pairs, alike, largest=10).tolist() == [0] * 10
    assert components(10, pairs, alike, largest=4).tolist() == [0, 0, 0, 0, 4, 4, 4, 7, 7, 9]
    assert components(10, pairs, alike, largest=3).tolist() == [0, 0, 2, 3, 4, 4, 4, 7, 7, 9]


def test_a_family_that_is_small_enough_keeps_its_weak_links() -> None:
    """Only families above the limit are cut again."""
    pairs, alike = np.array([[0, 1], [1, 2], [2, 3], [4, 5]]), np.array([0.75, 0.75, 0.9, 0.75])
    assert components(6, pairs, alike, largest=3).tolist() == [0, 1, 2, 2, 4, 4]


def test_equal_texts_stay_together_however_many(tmp_path: Path) -> None:
    texts = ["the same text again"] * 300 + ["another one here"]
    assert found_families(tmp_path, texts) == [0] * 300 + [300]


def test_memory_is_a_few_numbers_per_text(tmp_path: Path) -> None:
    """The signature of a text has 512 bytes; in memory there may be much less per text."""
    random = Random(3)
    small, large = ([" ".join(random.sample(VOCABULARY, 12)) for _ in range(size)] for size in (4000, 24_000))

    def peak(texts: list[str]) -> int:
        gc.collect()
        near = NearDuplicates(tmp_path / "near")
        tracemalloc.start()
        try:
            for start in range(0, len(texts), 500):
                near.add(texts[start : start + 500])
            near.families()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(small)
    found: list[float] = []
    while len(found) < 3 and min(found, default=450) >= 450:  # a thread of another test may allocate meanwhile
        found.append((peak(large) - peak(small)) / 20_000)
    assert min(found) < 450, found
