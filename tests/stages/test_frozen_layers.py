"""The stage encoder computes frozen layers before the training, whose steps then compute the layers above alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import BertProcessing
from transformers import BertConfig, BertModel

from xc_core.chain import Workspace, run_stage
from xc_core.data.history import TrainedOn
from xc_core.encoders import TrainedEncoder
from xc_core.encoders.transformer import TransformerEncoder
from xc_core.errors import ConfigError
from xc_core.train.frozen import WithStates


@pytest.fixture
def model(workspace: Workspace, tmp_path: Path) -> Path:
    """A BERT of two layers with special tokens around a text; the dataset keeps two token ids of a text."""
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    folder, made = tmp_path / "model", next(workspace.folder("tokens", "toy").rglob("wordpiece/tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(made))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    first, last = ((name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = BertProcessing(last, first)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = f"{{max_tokens: 2, tokenizers: [{folder}]}}"
    (workspace.root / "params.yaml").write_text(
        f"datasets: {{toy: {{corpus: {{validation_fraction: 0.2}}, tokens: {settings}}}}}\n"
    )
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    return folder


def trained(workspace: Workspace, model: Path, epochs: float, frozen_layers: int = 1) -> TrainedEncoder:
    encoder = {"name": str(model), "max_length": 16, "frozen_layers": frozen_layers}
    changes = {"encoder": {"encoder": encoder, "order": {"batch_size": 64}, "epochs": epochs}}
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    run_stage(workspace, "encoder", "toy", "ngame")
    return TrainedEncoder.open(workspace.folder("encoder", "toy", "ngame"))


def test_steps_read_states_of_frozen_layers(model: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_DEVICE", "cpu")
    read: list[int] = []
    above = TransformerEncoder.above
    monkeypatch.setattr(TransformerEncoder, "above", lambda own, *given: read.append(1) or above(own, *given))
    computed: list[str] = []
    of: Any = WithStates.of

    def noted(*given: Any) -> Any:
        computed.append(given[-1])
        assert not read, "before the first step"
        return of(*given)

    monkeypatch.setattr(WithStates, "of", staticmethod(noted))
    found = trained(workspace, model, 2.0)
    assert computed == ["documents", "labels"]
    assert len(read) >= 2 * len(found.history["losses"]), "texts of both sides in every step"


def test_special_tokens_are_read_beside_the_tokens_that_are_kept(
    model: Path, workspace: Workspace, lines: list[str]
) -> None:
    assert trained(workspace, model, 0.0).encoder.config.max_length == 4
    assert any("the dataset keeps 2 token ids of a text, so it reads 4" in line for line in lines)


def test_an_encoder_without_a_layer_to_train_is_used_as_it_was_pretrained(model: Path, workspace: Workspace) -> None:
    """Without epochs, as the refusal with epochs advises."""
    with pytest.raises(ConfigError, match="frozen_layers 2, all layers") as caught:
        trained(workspace, model, 1.0, frozen_layers=2)
    assert "set epochs to 0" in caught.value.do
    found = trained(workspace, model, 0.0, frozen_layers=2)
    assert not found.was_trained
    assert str(TrainedOn.read(found.history, TrainedOn(train=0))) == "not trained"
