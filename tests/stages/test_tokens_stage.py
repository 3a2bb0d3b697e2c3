"""One tokenizer that cannot be used fails its own recipes, never those of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.encoders.conftest import save_tokenizer
from xc_core.chain import Workspace, run_stage
from xc_core.errors import DataError, MissingError


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


def test_if_every_tokenizer_fails_the_stage_does(workspace: Workspace, tmp_path: Path) -> None:
    edited(workspace, f"{tmp_path}/mistyped")
    run_stage(workspace, "corpus", "toy")
    with pytest.raises(MissingError, match="no folder"):
        run_stage(workspace, "tokens", "toy")


def test_a_vocabulary_without_the_words_of_the_texts_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    """All texts would be [UNK], and a training on them would end well."""
    (tmp_path / "model").mkdir()
    save_tokenizer(tmp_path / "model")
    edited(workspace, f"{tmp_path}/model")
    run_stage(workspace, "corpus", "toy")
    with pytest.raises(DataError, match="unknown tokens in the documents"):
        run_stage(workspace, "tokens", "toy")
