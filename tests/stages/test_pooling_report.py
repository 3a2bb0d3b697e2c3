"""A training says if its encoder was pretrained with another pooling, and refuses one of which nothing is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

from xc_core.chain import Workspace, run_stage
from xc_core.data.tokenizer import load
from xc_core.errors import ConfigError
from xc_core.pretrained import declared_pooling

CLS = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def declare(folder: Path, content: object) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CLS, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max_tokens"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode_cls_token": 1}, None),
        ({"pooling_mode": "\x9b2J"}, None),
        ({"pooling_mode": "c" * 1_000_000}, None),
        ({"pooling_mode": ""}, None),
        ({}, None),
        ([], None),
        ({"auto_map": {"AutoModel": "x.Y"}, **CLS}, None),
    ],
)
def test_the_declared_pooling_is_the_only_one_that_is_switched_on(
    content: object, expected: str | None, tmp_path: Path
) -> None:
    assert declared_pooling(str(tmp_path)) is None
    declare(tmp_path, content)
    assert declared_pooling(str(tmp_path)) == expected


def test_a_file_that_is_too_deep_declares_no_pooling(tmp_path: Path) -> None:
    declare(tmp_path, CLS)
    (tmp_path / "1_Pooling" / "config.json").write_text("[" * 100_000)
    assert declared_pooling(str(tmp_path)) is None


@pytest.fixture
def model(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with the vocabulary of the toy world; corpus and tokens are made."""
    folder = tmp_path_factory.mktemp("model")
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    made = next(workspace.folder("tokens", "toy").rglob("wordpiece/tokenizer.json"))
    shutil.copy(made, folder)
    size = load(str(folder)).vocabulary_size
    config = BertConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertModel(config).save_pretrained(folder)
    path = workspace.root / "params.yaml"
    path.write_text(
        f"datasets: {{toy: {{corpus: {{validation_fraction: 0.2}}, tokens: {{tokenizers: [{folder}]}}}}}}\n"
    )
    run_stage(workspace, "corpus", "toy")
    run_stage(workspace, "tokens", "toy")
    return folder


def reported(workspace: Workspace, folder: Path, pooling: str, lines: list[str]) -> list[str]:
    """Make an encoder of the model in ``folder``; return what is said about pooling."""
    encoder = {"name": str(folder), "pooling": pooling, "frozen_layers": 0}
    workspace.params.declare_experiment("toy", "ngame", "ngame", {"encoder": {"encoder": encoder, "epochs": 0}})
    run_stage(workspace, "encoder", "toy", "ngame")
    return [line for line in lines if "pooling" in line]


def test_another_pooling_than_the_pretrained_one_is_reported_and_a_frozen_encoder_is_refused(
    model: Path, workspace: Workspace, lines: list[str]
) -> None:
    declare(model, CLS)
    assert reported(workspace, model, "cls", lines) == []
    assert reported(workspace, model, "mean", lines) == [
        f"encoder: {model} was trained with pooling cls, here it is mean; to use it: --set encoder.encoder.pooling=cls"
    ]
    frozen = {"encoder": {"encoder": {"name": str(model), "frozen_layers": 1}, "epochs": 1}}
    workspace.params.declare_experiment("toy", "ngame", "ngame", frozen)
    with pytest.raises(ConfigError, match=r"found frozen_layers 1, all layers of .*, with epochs 1\n"):
        run_stage(workspace, "encoder", "toy", "ngame")


def test_a_kind_that_is_not_known_here_has_no_setting(model: Path, workspace: Workspace, lines: list[str]) -> None:
    declare(model, {"pooling_mode_max_tokens": True})
    assert reported(workspace, model, "mean", lines) == [
        f"encoder: {model} was trained with pooling max_tokens, here it is mean; the other is not among the kinds here"
    ]
