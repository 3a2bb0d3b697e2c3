"""Token stores inside the tokens artefact: folders by tokenizer, both sides, and two stores read as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.stores import TEXTS, backend, opened, write
from xc_core import artifacts
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import Joined, Tokenised, TokenStore, extend_tokens, store_name, write_tokens
from xc_core.errors import CorruptError, MissingError


def tokenizer(name: str = "toy") -> TextTokenizer:
    return TextTokenizer.wrap(name, backend())


def test_every_tokenizer_has_a_store_of_its_own(tmp_path: Path) -> None:
    texts = {"toy": ["river"], "org/model": ["castle", "river castle"]}
    with artifacts.building(tmp_path / "tokens", kind="tokens") as build:
        for name, own in texts.items():
            sides = {"documents": (len(own), iter([own])), "labels": (1, iter([["a"]]))}
            write_tokens(build, tokenizer(name), sides, 510)
    artifacts.verify(tmp_path / "tokens", kind="tokens")
    for name, own in texts.items():
        store = Tokenised.open(tmp_path / "tokens" / store_name(name))
        assert store.tokenizer.name == name
        assert len(store.side("documents")) == len(own) and len(store.side("labels")) == 1
        assert store.max_tokens == 510


def test_a_store_keeps_its_digest_beside_another_one(tmp_path: Path) -> None:
    """So adding a tokenizer to a dataset does not change what the encoders of other tokenizers read."""
    alone = write(tmp_path / "alone", tokenizer(), TEXTS)
    with artifacts.building(tmp_path / "both", kind="tokens") as build:
        for name in ("toy", "other"):
            sides = {side: (len(TEXTS), iter([TEXTS])) for side in ("documents", "labels")}
            write_tokens(build, tokenizer(name), sides, 510)
    both = tmp_path / "both" / "toy"
    assert artifacts.verify(both).digest() == artifacts.verify(alone).digest()


def test_the_record_of_an_inner_store_is_not_content_of_the_outer_artefact(tmp_path: Path) -> None:
    write(tmp_path / "tokens", tokenizer(), TEXTS)
    files = artifacts.verify(tmp_path / "tokens", kind="tokens").files
    assert "toy/manifest.json" in files
    assert not any(name.endswith(artifacts.MADE) for name in files)


@pytest.mark.parametrize("rows", [[0], [8], [7, 8], [10, 0, 3, 8, 8, 15], []])
def test_two_stores_joined_read_as_one(rows: list[int]) -> None:
    first, second = TEXTS, [f"{text} river" for text in reversed(TEXTS)]
    whole = TokenStore.of_texts(first + second, tokenizer())
    joined = Joined(TokenStore.of_texts(first, tokenizer()), TokenStore.of_texts(second, tokenizer()), whole.pad_id)
    chosen = np.array(rows, np.int64)
    assert len(joined) == len(whole) == 16
    assert joined.lengths(chosen, 6).tolist() == whole.lengths(chosen, 6).tolist()
    found, expected = joined.batch(chosen, 6), whole.batch(chosen, 6)
    assert found.ids_BT.tolist() == expected.ids_BT.tolist()
    assert found.lengths_B.tolist() == expected.lengths_B.tolist()


def test_a_store_without_a_file_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "tokens", tokenizer(), TEXTS)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CorruptError, match=r"no file .*tokenizer\.json"):
        opened(folder, "labels")
    with pytest.raises(MissingError, match="no artefact"):
        opened(tmp_path / "tokens" / "absent", "labels")
    with artifacts.building(tmp_path / "clusters", kind="clusters"):
        pass
    with pytest.raises(CorruptError, match="kind 'clusters'"):
        opened(tmp_path / "clusters", "labels")


def test_tokenizers_are_the_same_if_they_give_the_same_ids() -> None:
    assert tokenizer("one").same_as(tokenizer("two"))
    assert not tokenizer().same_as(TextTokenizer.wrap("toy", backend(extra=1)))


@pytest.mark.parametrize("new", ["river", "river castle river"])
def test_labels_that_are_added_are_counted_as_if_they_had_been_there(tmp_path: Path, new: str) -> None:
    texts = ["river", "castle river"]
    old = write(tmp_path / "old", tokenizer(), texts)
    with artifacts.building(tmp_path / "new", kind="tokens") as build:
        added = extend_tokens(build, old, lambda first: [*texts, new][first:])
    with artifacts.building(tmp_path / "whole", kind="tokens") as build:
        sides = {"documents": (2, iter([texts])), "labels": (3, iter([[*texts, new]]))}
        whole = write_tokens(build, tokenizer(), sides, 510)
    assert added == whole
    assert artifacts.verify(tmp_path / "new").digest() == artifacts.verify(tmp_path / "whole").digest()


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (
            ["zzyzx", "quux quux"],
            [
                "tokens: 100% unknown tokens in the new labels, with the tokenizer toy; an encoder for the language of "
                "the texts, or the encoder bag, loses fewer (docs/recipes.md)"
            ],
        ),
        (["river", "castle"], []),
        (["[PAD]", ""], []),
    ],
)
def test_new_labels_say_how_much_of_their_texts_the_vocabulary_lacks(
    tmp_path: Path, lines: list[str], new: list[str], said: list[str]
) -> None:
    """Labels of which no word is known have one vector."""
    old = write(tmp_path / "old", tokenizer(), ["river", "castle"])
    lines.clear()
    with artifacts.building(tmp_path / "new", kind="tokens") as build:
        extend_tokens(build, old, lambda first: ["river", "castle", *new][first:])
    assert lines == said


def test_each_side_is_counted_for_itself(tmp_path: Path, lines: list[str]) -> None:
    sides = {"documents": (1, iter([["river castle river"]])), "labels": (1, iter([["zzyzx"]]))}
    with artifacts.building(tmp_path / "tokens", kind="tokens") as build:
        write_tokens(build, tokenizer(), sides, 510)
    assert [line.split(",")[0] for line in lines] == ["tokens: 100% unknown tokens in the labels"]
