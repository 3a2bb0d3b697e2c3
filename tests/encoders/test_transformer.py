"""Transformers of the Hugging Face library: frozen layers do not change, no pickle is read, errors name the cause."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from xc_core import pretrained
from xc_core.data.tokens import TokenStore
from xc_core.encoders import EncoderConfig, build_encoder, encode_rows
from xc_core.encoders.pretrained_model import log_errors_only
from xc_core.encoders.transformer import TransformerEncoder
from xc_core.errors import ConfigError, CorruptError, MissingError, UnavailableError


def build(folder: Path, **settings: int) -> TransformerEncoder:
    encoder = build_encoder(EncoderConfig(name=str(folder), precision="fp32", **settings), 17, seed=0)  # type: ignore[arg-type]
    assert isinstance(encoder, TransformerEncoder)
    return encoder


def trained_names(encoder: TransformerEncoder, store: TokenStore) -> set[str]:
    """Take one large step and return the names of the parameters that moved."""
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    encoder.train()
    vectors = encode_rows(encoder, store, np.arange(4))
    (vectors * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    torch.optim.SGD([p for p in encoder.parameters() if p.grad is not None], lr=10.0).step()
    return {name for name, p in encoder.named_parameters() if not torch.equal(p, before[name])}


def layer(number: int, kind: str) -> str:
    return f"layer.{number}." if kind == "bert" else f"transformer.layer.{number}."


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_layers_do_not_change_and_the_others_do(
    kind: str, frozen: int, request: pytest.FixtureRequest, store: TokenStore
) -> None:
    encoder = build(request.getfixturevalue(kind), frozen_layers=frozen, projection=4)
    moved = trained_names(encoder, store)
    assert not any("word_embeddings" in name for name in moved)
    assert any("embeddings.position" in name for name in moved) == (frozen == 0)
    for number in (0, 1):
        assert any(layer(number, kind) in name for name in moved) == (number >= frozen)
    assert "head.weight" in moved


def test_more_frozen_layers_than_there_are_is_refused(bert: Path) -> None:
    with pytest.raises(ConfigError, match="at most 2, the number of layers"):
        build(bert, frozen_layers=3)


@pytest.mark.parametrize(("kind", "layers"), [("Bert", 1), ("Albert", 1), ("Albert", 2)])
def test_one_layer_is_a_stack_and_one_module_that_serves_as_several_layers_is_none(
    kind: str, layers: int, tmp_path: Path, store: TokenStore
) -> None:
    sizes = {"num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 16}
    config = getattr(transformers, f"{kind}Config")(vocab_size=17, hidden_size=16, embedding_size=16, **sizes)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    if layers > 1:
        with pytest.raises(ConfigError, match="expected: a model with embeddings and one stack of layers"):
            build(tmp_path, frozen_layers=1)
        return
    moved = trained_names(build(tmp_path, frozen_layers=1, projection=4), store)
    assert "head.weight" in moved
    assert not any("embeddings" in name or "layer" in name for name in moved)
    with pytest.raises(ConfigError, match="at most 1, the number of layers"):
        build(tmp_path, frozen_layers=2)


@pytest.mark.parametrize(
    ("settings", "learns"),
    [
        ({}, True),
        ({"frozen_layers": 1}, True),
        ({"frozen_layers": 2}, False),
        ({"frozen_layers": 2, "projection": 4}, True),
    ],
)
def test_an_encoder_learns_if_a_weight_behind_its_vectors_is_trained(
    bert: Path, distilbert: Path, settings: dict[str, int], learns: bool
) -> None:
    """The pooler of BERT is trained in name only: no vector depends on it."""
    for folder in (bert, distilbert):
        assert build(folder, **settings).learns() is learns


def test_training_mode_draws_no_dropout(bert: Path, store: TokenStore) -> None:
    encoder = build(bert)
    encoder.train()
    rows = np.arange(4)
    assert torch.equal(encode_rows(encoder, store, rows), encode_rows(encoder, store, rows))


def test_the_vector_is_what_transformers_gives(bert: Path, store: TokenStore) -> None:
    """The mean of the last hidden states over a text's own tokens, computed without this library."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(bert).eval()
    row = np.array([2])
    ids = torch.from_numpy(store.batch(row, 64).ids_BT)
    with torch.no_grad():
        mean = model(input_ids=ids).last_hidden_state[0].mean(0)
        found = encode_rows(build(bert).eval(), store, row)[0]
    assert torch.allclose(found, mean / mean.norm(), atol=1e-5)


@pytest.mark.parametrize("kind", ["Bert", "MPNet", "RoFormer", "DebertaV2", "ModernBert"])
def test_fused_attention_changes_no_vector_and_a_model_without_it_keeps_its_own(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """MPNet, RoFormer and DeBERTa have attention of their own, and would misread a mask of four dimensions."""
    settings = getattr(transformers, f"{kind}Config")(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=50, pad_token_id=0
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")._from_config(settings, attn_implementation="eager")
    encoder = TransformerEncoder(EncoderConfig(), model).eval()
    ids_BT = torch.arange(1, 21).view(2, 10)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, 3:] = 0
    with torch.no_grad():
        eager_BD, alone_BD = encoder(ids_BT, mask_BT), encoder(ids_BT[1:, :3], mask_BT[1:, :3])
        caplog.clear()
        encoder.use_attention("sdpa")
        assert caplog.text == ""
        fused_BD = encoder(ids_BT, mask_BT)
    assert (encoder.attention == "sdpa") == (kind in ("Bert", "ModernBert"))
    torch.testing.assert_close(fused_BD, eager_BD, atol=1e-5, rtol=0)
    torch.testing.assert_close(fused_BD[1:], alone_BD, atol=1e-5, rtol=0)


def test_a_new_encoder_has_the_attention_that_it_names(bert: Path) -> None:
    encoder = build(bert)
    assert encoder.attention == encoder.backbone.config._attn_implementation == "eager"


def test_the_choice_of_an_attention_leaves_the_reports_of_transformers_as_they_were(bert: Path) -> None:
    encoder, before = build(bert), transformers.logging.get_verbosity()
    try:
        transformers.logging.set_verbosity_info()
        encoder.use_attention("sdpa")
        assert transformers.logging.get_verbosity() == transformers.logging.INFO
    finally:
        transformers.logging.set_verbosity(before)


def test_an_error_leaves_the_reports_of_transformers_as_they_were() -> None:
    before = transformers.logging.get_verbosity()
    with suppress(ValueError), log_errors_only():
        raise ValueError
    assert transformers.logging.get_verbosity() == before


def test_the_shape_of_an_encoder_does_not_say_where_its_model_was(bert: Path) -> None:
    """Otherwise two machines would save the same encoder under different hashes."""
    encoder = build(bert)
    assert encoder.backbone.config._name_or_path == str(bert)
    assert str(bert) not in json.dumps(encoder.shape_facts())


def test_a_folder_without_a_model_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no usable model in .*\n  expected: config.json and model.safetensors"):
        build(tmp_path)
    with pytest.raises(MissingError, match="no folder"):
        build_encoder(EncoderConfig(name=f"{tmp_path}/absent"), 17, 0)


def test_weights_that_are_pickled_or_damaged_are_not_read(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(MissingError, match=r"model\.safetensors"):
        build(folder)
    (folder / "pytorch_model.bin").unlink()
    (folder / "model.safetensors").write_bytes(b"not safe, no tensors" * 4096)
    with pytest.raises(MissingError, match="no usable model"):
        build(folder)


def test_a_model_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    with pytest.raises(MissingError, match="no usable model"):
        build(tmp_path)


def test_a_name_that_the_hub_does_not_have_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnavailableError) as caught:
        build_encoder(EncoderConfig(name="no-such-owner/no-such-model"), 17, 0)
    assert "'no-such-owner/no-such-model'" in caught.value.found
    assert "give its folder" in caught.value.do
    assert caught.value.exit_code == 69
    for typed, meant in (("bagg", "bag"), ("miniml", "minilm")):
        with pytest.raises(UnavailableError, match=rf"'{typed}' \(nearest: '{meant}'\) on this machine"):
            build_encoder(EncoderConfig(name=typed), 17, 0)


@pytest.fixture
def minilm_is_installed() -> None:
    try:
        metadata.distribution(pretrained.MINILM_PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"the extra minilm ({pretrained.MINILM_PACKAGE}) is not installed")


@pytest.mark.usefixtures("minilm_is_installed")
def test_minilm_is_found_without_running_its_packages_code() -> None:
    code = (
        "import sys; from xc_core.pretrained import locate; folder = locate('minilm');"
        "print((folder / 'model.safetensors').is_file(), [m for m in sys.modules if 'minilm' in m.lower()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"


@pytest.mark.usefixtures("minilm_is_installed")
def test_weights_of_minilm_that_are_not_the_published_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "MINILM_SHA256", "0" * 64)
    with pytest.raises(CorruptError, match="do not use these weights"):
        pretrained.locate("minilm")


def test_without_the_package_of_minilm_the_error_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pretrained, "MINILM_PACKAGE", "a-package-that-is-not-there")
    with pytest.raises(MissingError, match=r"pip install -c constraints\.txt a-package-that-is-not-there"):
        pretrained.locate("minilm")


def test_a_name_is_a_package_a_folder_or_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert pretrained.locate("mine") == tmp_path / "mine"
    assert pretrained.locate(str(tmp_path / "mine")) == tmp_path / "mine"
    assert pretrained.locate("distilbert-base-uncased") == "distilbert-base-uncased"
    for absent in ("./absent", "../absent", "/absent", "~/absent-as-well", "~nobody-here/absent", f"./{'a' * 300}"):
        with pytest.raises(MissingError, match=f"no folder {absent}"):
            pretrained.locate(absent)
        assert pretrained.model_files(absent) == {f"model in {absent}": []}
    assert pretrained.locate("a" * 300) == "a" * 300
