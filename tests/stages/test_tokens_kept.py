"""The stage tokens takes over the stores of tokenizers for which nothing changed, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chain.toy import set_fact, set_made, set_older
from xc_core.artifacts import MADE, read_made, remove
from xc_core.chain import Workspace, run_stage
from xc_core.chain.extension import EXTENDED_FROM
from xc_core.data.tokenizer import load
from xc_core.data.tokens import store_name
from xc_core.manifests import MANIFEST
from xc_core.stages import tokens


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokenizers that the stage loads."""
    names: list[str] = []

    def recorded(name: str, *arguments: Any) -> Any:
        names.append(name)
        return load(name, *arguments)

    monkeypatch.setattr(tokens, "load", recorded)
    return names


@pytest.fixture
def model(workspace: Workspace, tmp_path: Path, loaded: list[str]) -> str:
    """A folder with a tokenizer that knows the words of the corpus; the tokens of "wordpiece" alone are made."""
    settings(workspace, "wordpiece")
    run_stage(workspace, "corpus", "toy")
    run_stage(workspace, "tokens", "toy")
    (tmp_path / "model").mkdir()
    shutil.copy(artefact(workspace) / "wordpiece" / "tokenizer.json", tmp_path / "model")
    loaded.clear()
    return str(tmp_path / "model")


@pytest.fixture
def both(workspace: Workspace, model: str, loaded: list[str]) -> str:
    """The same folder; its tokens are made too."""
    settings(workspace, "wordpiece", model)
    run_stage(workspace, "tokens", "toy")
    loaded.clear()
    return model


def settings(workspace: Workspace, *names: str, max_tokens: int = 32, vocabulary: int = 30_000) -> None:
    """Write the settings of the stage into params.yaml."""
    own = {"tokenizers": list(names), "max_tokens": max_tokens, "vocabulary": vocabulary}
    dataset = {"corpus": {"validation_fraction": 0.2}, "tokens": own}
    (workspace.root / "params.yaml").write_text(json.dumps({"datasets": {"toy": dataset}}))


def artefact(workspace: Workspace) -> Path:
    return workspace.folder("tokens", "toy")


def content(workspace: Workspace) -> dict[str, bytes]:
    """Return all files of the artefact, its records among them."""
    folder = artefact(workspace)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_tokenizer_leaves_the_first_one_alone(
    workspace: Workspace, model: str, loaded: list[str], lines: list[str]
) -> None:
    settings(workspace, "wordpiece", model)
    run_stage(workspace, "tokens", "toy")
    assert loaded == [model]
    assert [line for line in lines if "kept" in line] == [
        "tokens: the tokens of the encoder wordpiece are kept, nothing changed for them"
    ]
    found = content(workspace)
    assert {f"wordpiece/{MANIFEST}", f"wordpiece/{MADE}", f"{store_name(model)}/{MANIFEST}"} < set(found)
    remove(artefact(workspace))
    run_stage(workspace, "tokens", "toy")
    assert loaded == [model, "wordpiece", model]
    assert content(workspace) == found


def test_a_tokenizer_that_is_no_longer_wanted_leaves_no_file(
    workspace: Workspace, model: str, loaded: list[str]
) -> None:
    before = content(workspace)
    settings(workspace, "wordpiece", model)
    run_stage(workspace, "tokens", "toy")
    settings(workspace, "wordpiece")
    run_stage(workspace, "tokens", "toy")
    assert loaded == [model]
    assert content(workspace) == before


def test_the_size_of_the_vocabulary_concerns_one_made_of_the_corpus(
    workspace: Workspace, both: str, loaded: list[str]
) -> None:
    settings(workspace, "wordpiece", both, vocabulary=40)
    run_stage(workspace, "tokens", "toy")
    assert loaded == ["wordpiece"]
    assert read_made(artefact(workspace)).facts["wordpiece"]["vocabulary"] == 40


def test_a_change_of_the_limit_concerns_all(workspace: Workspace, model: str, loaded: list[str]) -> None:
    settings(workspace, "wordpiece", model, max_tokens=2)
    run_stage(workspace, "tokens", "toy")
    assert loaded == ["wordpiece", model]


def test_a_run_that_is_forced_takes_over_nothing(workspace: Workspace, model: str, loaded: list[str]) -> None:
    run_stage(workspace, "tokens", "toy", force=True)
    assert loaded == ["wordpiece"]


def test_another_tokenizer_in_the_same_folder_is_another_one(
    workspace: Workspace, both: str, loaded: list[str]
) -> None:
    path = Path(both) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    run_stage(workspace, "tokens", "toy")
    assert loaded == [both]


@pytest.mark.parametrize("part", ["corpus", "code"])
def test_tokens_of_another_corpus_or_of_older_code_are_made_again(
    part: str, workspace: Workspace, model: str, loaded: list[str]
) -> None:
    set_older(artefact(workspace), part)
    run_stage(workspace, "tokens", "toy")
    assert loaded == ["wordpiece"]


def test_an_extended_artefact_is_made_again(workspace: Workspace, model: str, loaded: list[str]) -> None:
    """Its vocabulary was made of fewer labels."""
    set_made(artefact(workspace), fingerprint="another")
    set_fact(artefact(workspace), EXTENDED_FROM, ["earlier"])
    run_stage(workspace, "tokens", "toy")
    assert loaded == ["wordpiece"]


def test_a_store_without_its_record_is_made_again(workspace: Workspace, model: str, loaded: list[str]) -> None:
    (artefact(workspace) / "wordpiece" / MADE).unlink()
    settings(workspace, "wordpiece", model)
    run_stage(workspace, "tokens", "toy")
    assert loaded == ["wordpiece", model]
    assert (artefact(workspace) / "wordpiece" / MADE).is_file()


@pytest.mark.parametrize("name", ["documents.ids.npy", MANIFEST])
def test_a_damaged_store_is_made_again(name: str, workspace: Workspace, model: str, loaded: list[str]) -> None:
    path = artefact(workspace) / "wordpiece" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + bytes(2))
    settings(workspace, "wordpiece", model)
    run_stage(workspace, "tokens", "toy")
    assert loaded == ["wordpiece", model]
    assert path.read_bytes() == whole
