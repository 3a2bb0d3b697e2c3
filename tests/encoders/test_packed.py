"""The packed encoder that answers equals the trained one, for every shape that it can compute; others are rebuilt."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from xc_core.data.tokens import TokenStore
from xc_core.devices import Device
from xc_core.encoders import (
    Encoder,
    EncoderConfig,
    build_encoder,
    embed_rows,
    encode_rows,
    load_encoder,
    save_encoder,
)
from xc_core.encoders.base import Precision
from xc_core.encoders.packed import PackedBert, TensorMap, multiplies_packed_bf16, packed, packs
from xc_core.errors import CorruptError
from xc_core.shapes import I64

SHAPES = {"mean": {}, "cls": {"pooling": "cls"}, "last": {"pooling": "last"}, "projected": {"projection": 8},
          "two heads": {"projection": 8, "heads": 2}, "short": {"max_length": 6}}  # fmt: skip


def trained(bert: Path, folder: Path, **changes: Any) -> Encoder:
    config = EncoderConfig(name=str(bert), precision=Precision.FP32, **changes)
    encoder = build_encoder(config, 17, seed=3).eval()
    for number, parameter in enumerate(encoder.parameters()):  # also biases and norms, which start at 0 and 1
        generator = torch.Generator().manual_seed(number)
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    save_encoder(encoder, folder)
    return encoder


def vectors(encoder: Encoder, store: TokenStore, rows: I64) -> Tensor:
    with torch.inference_mode(), encoder.autocast():
        return encode_rows(encoder, store, rows)


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_its_vectors_are_those_of_the_trained_encoder(
    bert: Path, store: TokenStore, rows: I64, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Padded texts in one batch, and each text alone without padding."""
    own = trained(bert, tmp_path, **changes)
    answering = load_encoder(tmp_path, to_answer=True)
    assert isinstance(answering, PackedBert)
    assert (answering.width, answering.training, answering.device.type) == (own.width, False, "cpu")
    expected = vectors(own, store, rows)
    torch.testing.assert_close(vectors(answering, store, rows), expected, atol=1e-5, rtol=0)
    alone = torch.cat([vectors(answering, store, rows[at : at + 1]) for at in range(len(rows))])
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)
    assert float((vectors(own, store, rows[::-1].copy()) * alone).sum(1).mean()) < 0.999, "texts are told apart"


def test_in_bf16_it_is_as_near_to_fp32_as_training_is(bert: Path, store: TokenStore, rows: I64, tmp_path: Path) -> None:
    own = trained(bert, tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    answering = PackedBert(
        replace(own.config, precision=Precision.BF16), facts["shape"], load_file(tmp_path / "encoder.safetensors")
    )
    found = vectors(answering, store, rows)
    assert found.dtype == torch.float32
    assert float((found * vectors(own, store, rows)).sum(1).min()) > 0.999


def test_without_products_in_bf16_a_model_of_bf16_answers_in_fp32(
    bert: Path, store: TokenStore, rows: I64, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU with AVX2 alone, to which a model was copied."""
    own = trained(bert, tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    monkeypatch.setattr("xc_core.encoders.packed.multiplies_packed_bf16", lambda: False)
    answering = PackedBert(replace(own.config, precision=Precision.BF16), facts["shape"], own.state_dict())
    torch.testing.assert_close(vectors(answering, store, rows), vectors(own, store, rows), atol=1e-5, rtol=0)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("words", [20, 90])
def test_long_and_short_passes_with_padding(bert: Path, tmp_path: Path, precision: Precision, words: int) -> None:
    """The attention is computed in other number formats if a pass is wide; padding and empty texts change nothing."""
    own = trained(bert, tmp_path, max_length=words + 5)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    fast = PackedBert(replace(own.config, precision=precision), facts["shape"], own.state_dict())
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 17, (4, words), generator=random)
    mask = torch.ones_like(ids)
    mask[1, words // 2 :], mask[2, 1:], mask[3] = 0, 0, 0
    with torch.inference_mode():
        found, expected = fast(ids, mask), own(ids, mask)
        alone = fast(ids[1:2, : words // 2], mask[1:2, : words // 2])
    assert torch.isfinite(found).all()
    near = 1e-5 if not fast.in_bf16 else 2e-2
    torch.testing.assert_close(found[:3], expected[:3], atol=near, rtol=0)
    torch.testing.assert_close(alone, expected[1:2], atol=near, rtol=0)


def test_many_texts_are_encoded_with_the_present_weights(
    bert: Path, store: TokenStore, rows: I64, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a training too: nothing of an earlier encoding is kept."""
    own = trained(bert, tmp_path)
    assert isinstance(own.without_gradients(), PackedBert)
    out = np.empty((len(rows), own.width), np.float32)
    embed_rows(own, store, rows, out, "texts")
    before = out.copy()
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.05 * torch.ones_like(parameter).cumsum(0))
    embed_rows(own, store, rows, out, "texts")
    assert np.abs(out - before).max() > 0.01
    np.testing.assert_allclose(out, vectors(own, store, rows).numpy(), atol=1e-5)
    own.tokens_per_pass = 7
    own.pass_cost = 9
    fast = own.without_gradients()
    assert (fast.tokens_per_pass, fast.pass_cost) == (7, 9)
    monkeypatch.delattr(type(own), "pooled")  # what a training uses
    embed_rows(own, store, rows, out, "texts")


def test_other_backbones_and_cards_encode_as_they_train(distilbert: Path, bert: Path, tmp_path: Path) -> None:
    own = trained(distilbert, tmp_path)
    assert own.without_gradients() is own
    on_card = trained(bert, tmp_path).to("meta")
    assert on_card.without_gradients() is on_card


@pytest.mark.parametrize("activation", ["none", "gelu", "relu"])
@pytest.mark.parametrize("installed", [True, False])
def test_a_packed_product_is_a_linear_map_for_any_number_of_tokens(
    monkeypatch: pytest.MonkeyPatch, activation: str, installed: bool
) -> None:
    if not installed:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    weight, bias = torch.randn(24, 12), torch.randn(24)
    after = {"none": lambda x: x, "gelu": torch.nn.functional.gelu, "relu": torch.relu}[activation]
    with torch.inference_mode():
        product = packed(weight, bias, activation)
        for shape in ((1, 1, 12), (2, 16, 12), (1, 37, 12)):
            x = torch.randn(shape)
            torch.testing.assert_close(product(x), after(x @ weight.T + bias), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("supported", [True, False])
def test_products_in_bf16_are_tried_once(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    """torch refuses the layout of bf16 weights on a CPU without such products."""
    tried = []

    def product(weight_OI: Tensor, bias_O: Tensor) -> TensorMap:
        tried.append(weight_OI.dtype)
        if not supported:
            raise RuntimeError("bf16 path needs the cpu support avx512bw")
        return lambda x: x

    monkeypatch.setattr("xc_core.encoders.packed.packed", product)
    multiplies_packed_bf16.cache_clear()
    try:
        assert [multiplies_packed_bf16() for _ in range(2)] == [supported] * 2
        assert tried == [torch.bfloat16]
    finally:
        multiplies_packed_bf16.cache_clear()


@pytest.mark.parametrize("change", [{"model_type": "distilbert"}, {"hidden_act": "gelu_new"}, {"is_decoder": True},
                                    {"position_embedding_type": "relative_key"}])  # fmt: skip
def test_another_backbone_is_not_packed(bert: Path, change: dict[str, Any]) -> None:
    facts = json.loads((bert / "config.json").read_text())
    assert packs(facts)
    assert not packs(facts | change)


def test_another_backbone_and_a_gpu_get_the_trained_encoder(
    bert: Path, distilbert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(distilbert, tmp_path)
    assert not isinstance(load_encoder(tmp_path, to_answer=True), PackedBert)
    trained(bert, tmp_path)
    monkeypatch.setattr(Device, "chosen", lambda: Device("cuda:0"))
    assert not isinstance(load_encoder(tmp_path, to_answer=True), PackedBert)


def test_weights_of_another_shape_are_reported(bert: Path, tmp_path: Path) -> None:
    trained(bert, tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    facts["shape"]["num_hidden_layers"] += 1
    (tmp_path / "encoder.json").write_text(json.dumps(facts))
    with pytest.raises(CorruptError, match=r"encoder\.safetensors"):
        load_encoder(tmp_path, to_answer=True)


def test_weights_of_a_shape_that_the_configuration_does_not_have_are_reported(bert: Path, tmp_path: Path) -> None:
    """Products of other shapes would fail on a text, or on a longer one."""
    trained(bert, tmp_path)
    tensors = load_file(tmp_path / "encoder.safetensors")
    for name in tensors:
        if not name.startswith("backbone.pooler."):
            cut = {**tensors, name: tensors[name][:-1].contiguous()}
            save_file(cut, tmp_path / "encoder.safetensors")
            with pytest.raises(CorruptError, match=rf"RuntimeError: {name.removeprefix('backbone.')} of shape"):
                load_encoder(tmp_path, to_answer=True)


def test_it_is_opened_without_transformers(bert: Path, tmp_path: Path) -> None:
    trained(bert, tmp_path)
    code = (
        "import sys; from pathlib import Path; from xc_core.encoders import load_encoder; "
        f"load_encoder(Path({str(tmp_path)!r}), to_answer=True); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_not_saved(bert: Path, tmp_path: Path) -> None:
    trained(bert, tmp_path)
    with pytest.raises(TypeError, match="not saved"):
        save_encoder(load_encoder(tmp_path, to_answer=True), tmp_path)
    assert np.asarray(load_file(tmp_path / "encoder.safetensors")["backbone.pooler.dense.bias"]).size
