"""What a vocabulary is made of. A tokenizer that cannot be used fails its own recipes, never those of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import make_workspace
from tests.encoders.conftest import save_tokenizer
from tests.stages.halves import WORDS, named_world, part_of_uid
from xc_core.artifacts import building, read_made
from xc_core.chain import Workspace, run_stage
from xc_core.chain.extension import EXTENDED_FROM, EXTENDED_TO
from xc_core.data.splits import TRAIN
from xc_core.data.tokenizer import load
from xc_core.data.tokens import Tokenised, write_tokens
from xc_core.errors import CorruptError, DataError, MissingError
from xc_core.lifecycle.add_labels import add_labels
from xc_core.stages import tokens


def edited(workspace: Workspace, *names: str) -> Workspace:
    """Set the tokenizers in params.yaml by hand, without the check of `xc train`."""
    path = workspace.root / "params.yaml"
    listed = f"tokens: {{max_tokens: 32, tokenizers: [{', '.join(names)}]}}"
    path.write_text(f"datasets: {{toy: {{corpus: {{validation_fraction: 0.2}}, {listed}}}}}\n")
    return workspace


def test_a_tokenizer_that_fails_is_left_out_and_reported(
    workspace: Workspace, tmp_path: Path, lines: list[str]
) -> None:
    edited(workspace, f"{tmp_path}/mistyped", "wordpiece")
    run_stage(workspace, "corpus", "toy")
    ran = run_stage(workspace, "tokens", "toy")
    assert [name for name in ran.facts if name == "wordpiece" or "mistyped" in name] == ["wordpiece"]
    assert any("no tokens of the encoder" in line and "no folder" in line for line in lines)
    new = tmp_path / "new.jsonl"
    new.write_text('{"uid": "N1", "title": "meadow", "content": ""}\n', "utf-8")
    assert add_labels(workspace, new, "toy").labels == 1
    facts = read_made(workspace.folder("tokens", "toy")).facts
    assert facts.keys() == ran.facts.keys() | {EXTENDED_FROM, EXTENDED_TO}, "it is left out of an extension too"


def test_if_every_tokenizer_fails_the_stage_does(workspace: Workspace, tmp_path: Path) -> None:
    edited(workspace, f"{tmp_path}/mistyped")
    run_stage(workspace, "corpus", "toy")
    with pytest.raises(MissingError, match="no folder"):
        run_stage(workspace, "tokens", "toy")


def test_an_error_that_is_not_a_tokenizers_ends_the_stage(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(context: object, corpus: object, name: str) -> None:
        if name == "wordpiece":
            raise CorruptError("a damaged corpus", expected="an ingested one", do="ingest it again")

    edited(workspace, "wordpiece", "another")
    run_stage(workspace, "corpus", "toy")
    monkeypatch.setattr(tokens, "_tokenise", damaged)
    with pytest.raises(CorruptError, match="a damaged corpus"):
        run_stage(workspace, "tokens", "toy")


def test_a_vocabulary_without_the_words_of_the_texts_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    """All texts would be [UNK], and a training on them would end well."""
    (tmp_path / "model").mkdir()
    save_tokenizer(tmp_path / "model")
    edited(workspace, f"{tmp_path}/model")
    run_stage(workspace, "corpus", "toy")
    with pytest.raises(DataError, match="unknown tokens in the documents"):
        run_stage(workspace, "tokens", "toy")


def test_a_vocabulary_is_made_of_label_texts_and_train_documents_alone(tmp_path: Path) -> None:
    """Words that only held-out documents have are as unknown as those of a later question."""
    world = named_world(part_of_uid(tmp_path / "probe"))
    for label in world.labels:
        label["content"] += " lemur"
    workspace = edited(make_workspace(tmp_path / "project", world), "wordpiece")
    run_stage(workspace, "corpus", "toy")
    run_stage(workspace, "tokens", "toy")
    tokenizer = Tokenised.open(workspace.folder("tokens", "toy") / "wordpiece").tokenizer
    pieces = tokenizer.backend.get_vocab()
    assert [word for word in (*WORDS.values(), "lemur") if any(word in piece for piece in pieces)] == [
        WORDS[TRAIN], "lemur"
    ]  # fmt: skip


def edited_tokenizer(folder: Path, **parts: object) -> Path:
    """Save a tokenizer with other parts."""
    folder.mkdir()
    save_tokenizer(folder)
    content = json.loads((folder / "tokenizer.json").read_text()) | parts
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_a_tokenizer_that_finds_no_tokens_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    """No token is unknown then, so a training on nothing would end well."""
    nothing = {"type": "Replace", "pattern": {"Regex": ".*"}, "content": ""}
    edited(workspace, str(edited_tokenizer(tmp_path / "model", normalizer=nothing)))
    run_stage(workspace, "corpus", "toy")
    with pytest.raises(DataError, match=r"found 100% texts without tokens in the documents \((\d+) of \1\)"):
        run_stage(workspace, "tokens", "toy")


@pytest.mark.parametrize(
    ("texts", "refused", "share"),
    [
        (["x"] * 51 + ["river"] * 49, True, "51%"),
        (["x"] * 50 + ["river"] * 50, False, "50%"),
        (["x"] * 10 + ["river"] * 90, False, ""),
        (["x", "river"] + ["", " "] * 50, False, "50%"),
        (["x", "x", "river"] + ["", " "] * 50, True, "67%"),
    ],
)
def test_texts_without_tokens_count_among_those_with_characters(
    texts: list[str], refused: bool, share: str, tmp_path: Path, lines: list[str]
) -> None:
    nothing = {"type": "Replace", "pattern": {"String": "x"}, "content": ""}
    tokenizer = load(str(edited_tokenizer(tmp_path / "model", normalizer=nothing)))
    blocks = [texts[:40], texts[40:]]
    sides = {"documents": (len(texts), blocks), "labels": (len(texts), blocks)}
    with building(tmp_path / "tokens", kind="tokens") as build:
        if not refused:
            write_tokens(build, tokenizer, sides, 32)
        else:
            with pytest.raises(DataError, match=f"found {share} texts without tokens in the documents"):
                write_tokens(build, tokenizer, sides, 32)
    told = [line for line in lines if "texts without tokens" in line]
    assert len(told) == (0 if refused or not share else 2)
    assert all(line.startswith(f"tokens: {share} texts without tokens in the ") for line in told)
