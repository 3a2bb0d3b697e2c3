"""Token ids by the cache of words are those of the tokenizer, for every text and every kind of tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from tests.data.stores import TEXTS, backend
from xc_core.data import word_ids
from xc_core.data.tokenizer import TextTokenizer, load
from xc_core.data.word_ids import WordIds

ODD = [
    "rivers,castle!engine",
    "RIVER Castles",
    "ä A\u0308 \u00c4 á",
    "a\tb\nc",
    "a\x1cb a\x0bb a\x85b",
    "a\u00a0b a\u2003b",
    "河川 castle河",
    "[SEP]",
    "a[SEP]b",
    "[sep] [SE P]",
    "  a  ",
    "a\u0301\u0323 \u0301a",
    "İ ß ſ ﬁ",
    "river’s 1–2",
    "\u200bb\u00ad",
    "x" * 120,
    "a" * 101,
    "\ud7ff\U0001f600a",
    "castle \x00 \ufffd a\x7fb",
    "9a9 _a_ a_b",
    "river's-castle",
]


def trained(lowercase: bool = True) -> Tokenizer:
    """A vocabulary with a mark at the start of words, with or without capitals."""
    made = load("wordpiece", iter([TEXTS + ODD] * 3), 300).backend
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    return made


KINDS = {
    "bert": backend,
    "bert without specials": lambda: backend(dressed=False),
    "marked": trained,
    "capitals": lambda: trained(lowercase=False),
}


def expected(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[int], list[int]]:
    found = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return [i for ids in found for i in ids], [len(ids) for ids in found]


def same(words: WordIds, tokenizer: Tokenizer, texts: list[str]) -> bool:
    ids, counts = words.encode(texts)
    return (ids.tolist(), counts.tolist()) == expected(tokenizer, texts) and ids.dtype == counts.dtype == np.int64


@pytest.mark.parametrize("kind", KINDS)
def test_odd_texts_have_the_ids_of_the_tokenizer(kind: str) -> None:
    tokenizer = KINDS[kind]()
    words = WordIds.of(tokenizer)
    assert words is not None
    assert same(words, tokenizer, TEXTS + ODD)
    assert same(words, tokenizer, [*reversed(ODD), " ".join(ODD)]), "now from the cache"
    assert same(words, tokenizer, [])


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=6))).map(" ".join), max_size=5),
)
def test_any_text_has_the_ids_of_the_tokenizer(kind: str, texts: list[str]) -> None:
    assert same(_words(kind), _BACKENDS[kind], texts)


_BACKENDS = {kind: make() for kind, make in KINDS.items()}


def _words(kind: str) -> WordIds:
    words = WordIds.of(_BACKENDS[kind])
    assert words is not None
    return words


def changed(**parts: object) -> Tokenizer:
    """Return the toy tokenizer with another part."""
    made = backend()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def with_added(*tokens: AddedToken) -> Tokenizer:
    made = backend()
    made.add_tokens(list(tokens))
    return made


def sequence(*steps: object) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(list(steps))


REFUSED = {
    "no normaliser": changed(normalizer=normalizers.Sequence([])),
    "other normaliser": changed(normalizer=normalizers.Replace(" ", "")),
    "other pre-tokenizer": changed(pre_tokenizer=pre_tokenizers.ByteLevel()),
    "first word differs": changed(
        pre_tokenizer=sequence(pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(prepend_scheme="first"))
    ),
    "one more step": changed(pre_tokenizer=sequence(pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits())),
    "other model": changed(model=models.Unigram([("a", 0.0), ("b", -1.0)], unk_id=0)),
    "token with a space": with_added(AddedToken("river castle", normalized=False)),
    "token that is a word": with_added(AddedToken("cast", normalized=False)),
    "normalised token": with_added(AddedToken("<a>", normalized=True)),
    "token that takes spaces": with_added(AddedToken("<a>", normalized=False, lstrip=True)),
    "token that takes later spaces": with_added(AddedToken("<a>", normalized=False, rstrip=True)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_tokenizer_of_another_kind_tokenises_by_itself(why: str) -> None:
    tokenizer, texts = REFUSED[why], ["river castle", "a castles <a> b1 12"]
    assert WordIds.of(tokenizer) is None
    ids, counts = TextTokenizer("toy", tokenizer, (), (), 0).encode(texts)
    assert (ids.tolist(), counts.tolist()) == expected(tokenizer, texts)


def test_a_word_is_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordIds.of(backend())
    assert words is not None
    words.encode(["river castles, ä"])
    monkeypatch.setattr(words, "_tokenise", lambda _: pytest.fail("tokenised again"))
    monkeypatch.setattr(words, "_encode", lambda *_, **__: pytest.fail("tokenised again"))
    assert words.encode(["ä river", "castles,"])[1].tolist() == [2, 3]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "LIMIT", 3)
    words = WordIds.of(backend())
    assert words is not None
    texts = [f"river{i} castle{i}, a" for i in range(20)]
    assert same(words, backend(), texts)
    assert len(words) <= 4


def test_long_words_are_not_kept() -> None:
    """A text in Chinese is one word: after 262,144 of them the cache of `xc serve` had filled a gigabyte."""
    words = WordIds.of(backend())
    assert words is not None
    assert same(words, backend(), [character * 65 for character in "河城aä"] * 2)
    assert not words.keys() - {"a", "ä"}
