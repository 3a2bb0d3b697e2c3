"""A batch of a token store equals what the Hugging Face tokenizer returns, with 16-bit and with 32-bit ids."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.data.stores import TEXTS, backend, opened, write
from xc_core import artifacts, progress
from xc_core.data.tokenizer import TextTokenizer, load
from xc_core.data.tokens import Tokenised, TokenStore, write_tokens
from xc_core.errors import ConfigError, CorruptError, MissingError


def reference(tokenizer: Tokenizer, texts: list[str], max_length: int) -> tuple[Any, Any]:
    """Return (ids, mask) as transformers gives them."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )
    found = fast(texts, truncation=True, max_length=max_length, padding="longest", return_tensors="np")
    return found["input_ids"], found["attention_mask"]


@pytest.fixture(scope="module", params=[(0, True), (70_000, True), (0, False)], ids=["uint16", "uint32", "undressed"])
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tokenizer, Path]]:
    folder = tmp_path_factory.mktemp("tokens") / "tokens"
    yield backend(*request.param), write(folder, TextTokenizer.wrap("toy", backend(*request.param)), TEXTS)


@pytest.mark.parametrize("side", ["documents", "labels"])
@pytest.mark.parametrize("max_length", [3, 4, 7, 16, 128])
def test_a_batch_is_what_hugging_face_gives(stored: tuple[Tokenizer, Path], side: str, max_length: int) -> None:
    tokenizer, folder = stored
    ids, mask = reference(tokenizer, TEXTS, max_length)
    batch = opened(folder, side).batch(np.arange(len(TEXTS)), max_length)
    assert batch.ids_BT.tolist() == ids.tolist()
    assert batch.mask_BT.astype(int).tolist() == mask.tolist()
    assert batch.ids_BT.dtype == np.int64 and len(batch) == len(TEXTS)


def test_rows_come_in_the_order_asked_for_and_padded_to_their_longest(stored: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = stored
    rows = np.array([5, 0, 1, 0])
    ids, _ = reference(tokenizer, [TEXTS[row] for row in rows], 16)
    batch = opened(folder, "documents").batch(rows, 16)
    assert batch.ids_BT.tolist() == ids.tolist()


def test_ids_are_kept_in_as_few_bytes_as_they_fit(stored: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = stored
    wide = tokenizer.get_vocab_size() > 1 << 16
    store = opened(folder, "documents")
    assert store.ids.dtype == (np.uint32 if wide else np.uint16)
    assert not store.ids.flags.owndata, "the ids are mapped, not loaded"
    assert wide == bool((np.asarray(store.ids) >= 1 << 16).any())
    assert len(store) == len(TEXTS)
    assert len(store.ids) == store.offsets[-1]


@pytest.mark.parametrize("extra", [0, 70_000])
def test_writing_counts_texts_and_tokens(tmp_path: Path, extra: int) -> None:
    tokenizer = TextTokenizer.wrap("toy", backend(extra))
    with artifacts.building(tmp_path / "tokens", kind="tokens") as build:
        sides = {side: (len(TEXTS), iter([TEXTS])) for side in ("documents", "labels")}
        counts = write_tokens(build, tokenizer, sides, 510)
    store = opened(tmp_path / "tokens" / "toy", "documents")
    assert counts["vocabulary"] == tokenizer.vocabulary_size
    assert counts["sides"]["documents"] == {"texts": len(TEXTS), "tokens": len(store.ids), "longest": 40}
    assert json.loads((tmp_path / "tokens" / "toy" / "store.json").read_text()) == {
        "tokenizer": "toy",
        "max_tokens": 510,
        "sides": counts["sides"],
    }


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("rivecastl gn,.äÄ\u0301\t", max_size=30), min_size=1, max_size=6), st.integers(3, 12))
def test_any_text_is_tokenised_as_hugging_face_does(texts: list[str], max_length: int) -> None:
    ids, mask = reference(backend(), texts, max_length)
    batch = TokenStore.of_texts(texts, TextTokenizer.wrap("toy", backend())).batch(np.arange(len(texts)), max_length)
    assert batch.ids_BT.tolist() == ids.tolist() and batch.lengths_B.tolist() == mask.sum(1).tolist()


def test_of_texts_equals_the_written_store(stored: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = stored
    memory, disk = TokenStore.of_texts(TEXTS, TextTokenizer.wrap("toy", tokenizer)), opened(folder, "labels")
    assert memory.ids.tolist() == disk.ids.tolist() and memory.offsets.tolist() == disk.offsets.tolist()
    assert (memory.prefix, memory.suffix, memory.pad_id) == (disk.prefix, disk.suffix, disk.pad_id)


def test_a_text_keeps_its_first_tokens(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.wrap("toy", backend())
    whole = TokenStore.of_texts(TEXTS, tokenizer)
    cut = opened(write(tmp_path / "cut", tokenizer, TEXTS, max_tokens=3), "documents")
    for row in range(len(TEXTS)):
        kept = whole.ids[whole.offsets[row] : whole.offsets[row + 1]][:3]
        assert cut.ids[cut.offsets[row] : cut.offsets[row + 1]].tolist() == kept.tolist()


@pytest.mark.parametrize("block", [1, 2, 8])
def test_the_size_of_blocks_does_not_matter(tmp_path: Path, block: int) -> None:
    tokenizer = TextTokenizer.wrap("toy", backend())
    stores = [write(tmp_path / str(size), tokenizer, TEXTS, size) for size in (block, 3)]
    digests = [artifacts.verify(folder, kind=Tokenised.kind).digest() for folder in stores]
    assert digests[0] == digests[1]


def test_a_store_of_texts_without_tokens(tmp_path: Path) -> None:
    store = opened(write(tmp_path / "empty", TextTokenizer.wrap("toy", backend()), ["", " "]), "documents")
    batch = store.batch(np.arange(2), 8)
    assert batch.ids_BT.tolist() == [[2, 3], [2, 3]] and len(store.ids) == 0


def test_a_batch_of_no_rows(stored: tuple[Tokenizer, Path]) -> None:
    batch = opened(stored[1], "documents").batch(np.zeros(0, np.int64), 8)
    assert len(batch) == 0 and batch.ids_BT.shape[0] == 0


def test_lengths_are_those_of_the_batch(stored: tuple[Tokenizer, Path]) -> None:
    store = opened(stored[1], "documents")
    rows = np.array([4, 1, 2])
    assert store.lengths(rows, 9).tolist() == store.batch(rows, 9).lengths_B.tolist()


def test_a_length_without_space_for_a_token_is_refused() -> None:
    store = TokenStore.of_texts(["river"], TextTokenizer.wrap("toy", backend()))
    with pytest.raises(ConfigError, match=r"(?s)max_length 2.*more than the 2 special tokens"):
        store.batch(np.arange(1), 2)


def test_a_changed_store_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "store", TextTokenizer.wrap("toy", backend()), TEXTS)
    data = bytearray((folder / "documents.ids.npy").read_bytes())
    data[-1] ^= 1
    (folder / "documents.ids.npy").write_bytes(bytes(data))
    with pytest.raises(CorruptError, match=r"documents\.ids\.npy"):
        opened(folder, "labels")


def test_the_tokenizer_beside_the_store_reads_texts_the_same_way(stored: tuple[Tokenizer, Path]) -> None:
    tokenizer = TextTokenizer.from_file("toy", stored[1] / "tokenizer.json")
    store = opened(stored[1], "documents")
    assert tokenizer.encode(TEXTS)[0].tolist() == store.ids.tolist()
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id) == (store.prefix, store.suffix, store.pad_id)


def test_padding_and_truncation_of_a_backend_are_turned_off() -> None:
    spoilt = backend()
    spoilt.enable_truncation(3)
    spoilt.enable_padding(length=20)
    wrapped = TextTokenizer.wrap("toy", spoilt)
    assert wrapped.encode(["river castle engine violin"])[1].tolist() == [4]
    assert (wrapped.prefix, wrapped.suffix, wrapped.pad_id) == ((2,), (3,), 0)


def test_a_vocabulary_with_gaps_is_as_large_as_its_largest_id(tmp_path: Path) -> None:
    """The dtype of a store and an embedding table must fit the largest id, not the number of ids."""
    sparse = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "river": 70_000}, unk_token="[UNK]"))
    sparse.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer.wrap("gaps", sparse)
    assert tokenizer.vocabulary_size == 70_001
    store = opened(write(tmp_path / "store", tokenizer, ["river a"]), "documents")
    assert store.batch(np.arange(1), 8).ids_BT.tolist() == [[70_000, 1]]


@pytest.mark.parametrize("size", [100, 400])
def test_a_vocabulary_made_from_texts_is_always_the_same(size: int) -> None:
    """Rare words with equal counts are ties, which a trainer may break by the order of a hash map."""
    random = Random(0)
    texts = [
        " ".join("".join(random.choices("abcdefgh", k=random.randint(2, 9))) for _ in range(12)) for _ in range(80)
    ]
    made = {load("wordpiece", iter([texts[:50], texts[50:]]), size).backend.to_str() for _ in range(4)}
    assert len(made) == 1


def test_learning_a_vocabulary_shows_progress(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads every text, which took minutes without a word."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr(progress, "_pace", 0.0)
    load("wordpiece", [["river castle"] * 70, ["engine"] * 5], 300)
    shown = [line.partition(" texts,")[0] for line in lines if line.startswith("learning a vocabulary: ")]
    assert shown[:-1] == [f"learning a vocabulary: {count}" for count in (64, 70, 75)]
    assert shown[-1].startswith("learning a vocabulary: done in")


def test_a_vocabulary_made_from_texts_knows_their_words() -> None:
    tokenizer = load("wordpiece", [["River castle"] * 5, ["engine"]], 400)
    once, apart = (tokenizer.encode([text])[0].tolist() for text in ("river CASTLE", "rivercastle"))
    assert len(once) == 2 and once != apart, "a word's first piece differs from the same letters inside a word"
    assert tokenizer.encode(["river"])[0].tolist() == once[:1] and tokenizer.pad_id == 0
    assert tokenizer.vocabulary_size <= 400 and (tokenizer.prefix, tokenizer.suffix) == ((), ())


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with warnings.catch_warnings(), pytest.raises(MissingError, match=r"tokenizer"):
        warnings.simplefilter("ignore")
        load(str(tmp_path))
    with pytest.raises(MissingError, match=r"tokenizer\.json"):
        TextTokenizer.from_file("toy", tmp_path / "tokenizer.json")
