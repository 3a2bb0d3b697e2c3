"""The beginning of a text has the same first ids as the whole text, and a long text costs little memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from xc_core.data.beginning import MAX_CHARS, encode_beginning
from xc_core.data.tokenizer import TextTokenizer, load

CORPUS = ["a small dog with long hair", "the river runs to the sea", "counterrevolutionary antidisestablishment " * 3,
          "one two three four five six seven eight", "naïve façade, Ünïcode; 漢字かな交じり文 река"]  # fmt: skip


def _bpe(splitter: pre_tokenizers.PreTokenizer | None) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    if splitter is not None:
        backend.pre_tokenizer = splitter
    alphabet = pre_tokenizers.ByteLevel.alphabet() if splitter is not None else []
    backend.train_from_iterator(
        CORPUS * 3, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def _unigram() -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(
        CORPUS * 3,
        trainers.UnigramTrainer(vocab_size=120, unk_token="[UNK]", special_tokens=["[UNK]"], show_progress=False),
    )
    return backend


MAKERS: dict[str, Callable[[], TextTokenizer]] = {
    "wordpiece": lambda: load("wordpiece", [CORPUS * 3], 300),
    "byte-level bpe": lambda: TextTokenizer.wrap("bpe", _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "bpe of whole texts": lambda: TextTokenizer.wrap("whole", _bpe(None)),
    "unigram": lambda: TextTokenizer.wrap("unigram", _unigram()),
}


@cache
def made(name: str) -> TextTokenizer:
    return MAKERS[name]()


def starts(flat: np.ndarray, counts: np.ndarray, limit: int) -> list[list[int]]:
    return [ids[:limit].tolist() for ids in np.split(flat, np.cumsum(counts)[:-1])]


LONG = {
    "words": "a small dog with long hair " * 2000,
    "no space": "counterrevolutionary" * 3000,
    "one letter": "x" * 60_000,
    "chinese": "漢字かな交じり文" * 5000,
    "spaces first": " " * 20_000 + "the river runs to the sea " * 500,
    "nothing visible first": "\u200b" * 20_000 + "the river " * 500,
    "a long word first": "x" * 5_000 + " the river runs to the sea" * 500,
    "accents": "e\u0301" * 20_000,
    "words of many lengths": " ".join("counter" * (1 + i % 40) for i in range(2000)),
    "a control character as the last space": "dog       " * 15 + "ri\x85ver" + "x" * 300,
    "short": "dog",
    "empty": "",
}


@pytest.mark.parametrize("limit", [1, 16, 64, 300])
@pytest.mark.parametrize("name", MAKERS)
def test_the_first_ids_are_those_of_the_whole_text(name: str, limit: int) -> None:
    texts = list(LONG.values())
    whole = starts(*made(name).encode(texts), limit)
    found = starts(*encode_beginning(made(name), texts, limit), limit)
    assert dict(zip(LONG, found, strict=True)) == dict(zip(LONG, whole, strict=True))


PIECE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    st.sampled_from([*" ".join(CORPUS).split(" "), " ", "  ", "\n ", "\u00a0", "\u200b", "́"]),
)


@settings(deadline=None, max_examples=60)
@given(pieces=st.lists(PIECE, min_size=1, max_size=40), times=st.integers(1, 60), limit=st.integers(1, 40))
@pytest.mark.parametrize("name", MAKERS)
def test_so_are_those_of_any_text(name: str, pieces: list[str], times: int, limit: int) -> None:
    texts = ["".join(pieces) * times, " ".join(pieces) * times]
    whole = starts(*made(name).encode(texts), limit)
    assert starts(*encode_beginning(made(name), texts, limit), limit) == whole


def test_far_fewer_ids_are_made_of_a_long_text_than_it_has() -> None:
    _, counts = encode_beginning(made("wordpiece"), [LONG["words"]], 16)
    assert 16 <= counts[0] < 200


def test_no_texts_have_no_ids() -> None:
    flat, counts = encode_beginning(made("wordpiece"), [], 16)
    assert (len(flat), len(counts)) == (0, 0)


def test_after_very_many_characters_nothing_is_read() -> None:
    late = " " * MAX_CHARS + "dog"
    assert encode_beginning(made("wordpiece"), [late], 16)[1].tolist() == [0]


@pytest.mark.parametrize("piece", ["falcon0 river1 ", "x", "\u200b"])
def test_a_text_of_10_mb_costs_little_memory(piece: str) -> None:
    """Whole it would cost 1.3 GB; the peak is measured in a process of its own."""
    code = (
        "import resource, sys\n"
        "from xc_core.data.beginning import encode_beginning\n"
        "from xc_core.data.tokenizer import load\n"
        "tokenizer = load('wordpiece', [['falcon0 river1'] * 3], 100)\n"
        "text = sys.argv[1] * (10_000_000 // len(sys.argv[1]))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "encode_beginning(tokenizer, [text], 64)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, piece], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150_000, "kilobytes"
