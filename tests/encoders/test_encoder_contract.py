"""The contract of an encoder, tested for every kind: unit vectors that depend on their own text only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import (
    Encoder,
    EncoderConfig,
    Passes,
    base,
    build_encoder,
    embed_rows,
    encode_rows,
    load_encoder,
    save_encoder,
)
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.shapes import I64

VOCABULARY = 17
KINDS: dict[str, dict[str, Any]] = {
    "bag": {"name": "bag", "width": 12},
    "bag, projected": {"name": "bag", "width": 12, "projection": 5},
    "bag, two heads": {"name": "bag", "width": 12, "projection": 5, "heads": 2},
    "bert, two heads": {"name": "bert", "heads": 2},
    "bert, mean": {"name": "bert"},
    "bert, cls, projected": {"name": "bert", "pooling": "cls", "projection": 5},
    "bert, last": {"name": "bert", "pooling": "last", "frozen_layers": 1},
    "distilbert, mean": {"name": "distilbert"},
}


def config_of(kind: str, request: pytest.FixtureRequest, **changes: Any) -> EncoderConfig:
    settings = {"precision": "fp32", "max_length": 8, **KINDS[kind], **changes}
    if settings["name"] != "bag":
        settings["name"] = str(request.getfixturevalue(settings["name"]))
    return EncoderConfig(**settings)


@pytest.fixture(params=KINDS)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return build_encoder(config_of(request.param, request), VOCABULARY, seed=3).eval()


def encoded(encoder: Encoder, store: TokenStore, rows: I64) -> torch.Tensor:
    with torch.no_grad(), encoder.autocast():
        return encode_rows(encoder, store, rows)


def test_vectors_are_unit_float32_of_the_promised_width(encoder: Encoder, store: TokenStore, rows: I64) -> None:
    vectors = encoded(encoder, store, rows)
    assert vectors.dtype == torch.float32
    assert vectors.shape == (len(rows), encoder.width)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(rows)), atol=1e-6)
    others = vectors @ vectors.T - 2 * torch.eye(len(rows))
    assert others.max() < 0.9999, "different texts have different vectors"


def test_padding_changes_no_vector(encoder: Encoder, store: TokenStore, rows: I64) -> None:
    batch = store.batch(rows, 8)
    ids, mask = torch.from_numpy(batch.ids_BT), torch.from_numpy(batch.mask_BT)
    garbage = torch.randint(0, VOCABULARY, (len(rows), 5))
    wide = torch.cat([torch.where(mask, ids, garbage[:, :1].expand_as(ids)), garbage], 1)
    with torch.no_grad():
        expected = encoder(ids, mask)
        padded = encoder(wide, torch.cat([mask, torch.zeros_like(garbage, dtype=torch.bool)], 1))
    assert torch.allclose(expected, padded, atol=1e-6)


def test_rows_come_back_in_the_order_they_were_asked_for(encoder: Encoder, store: TokenStore, rows: I64) -> None:
    expected = encoded(encoder, store, rows)
    asked = np.array([4, 0, 3, 3, 6, 1], np.int64)
    assert torch.allclose(encoded(encoder, store, asked), expected[asked], atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 9, 20])
def test_chunking_changes_no_vector(encoder: Encoder, store: TokenStore, rows: I64, tokens: int) -> None:
    expected = encoded(encoder, store, rows)
    encoder.tokens_per_pass = tokens
    assert len(Passes.of(encoder, store, rows).batches) > 1
    assert torch.allclose(encoded(encoder, store, rows), expected, atol=2e-6)


def test_no_rows_give_no_vectors(encoder: Encoder, store: TokenStore) -> None:
    assert encoded(encoder, store, np.zeros(0, np.int64)).shape == (0, encoder.width)


def test_embedding_into_a_file_gives_the_same_vectors_and_leaves_the_mode(
    encoder: Encoder, store: TokenStore, rows: I64, tmp_path: Path
) -> None:
    expected = encoded(encoder, store, rows).numpy()
    out = np.memmap(tmp_path / "x", np.float32, "w+", shape=expected.shape)
    encoder.train()
    embed_rows(encoder, store, rows, out, "texts")
    assert encoder.training
    assert np.allclose(out, expected, atol=1e-6)


def test_a_text_is_read_up_to_max_length_and_no_further(encoder: Encoder, tokenizer: TextTokenizer) -> None:
    """Two special tokens and six words fit into the eight that these encoders read."""
    beginnings = ["violin " * 5 + "old", "violin " * 6]
    texts = [begin + end for begin in beginnings for end in ("", " castle", " engine engine")]
    vectors = encoded(encoder, TokenStore.of_texts(texts, tokenizer), np.arange(6, dtype=np.int64))
    assert torch.allclose(vectors[:3], vectors[:1].expand(3, -1), atol=1e-6)
    assert torch.allclose(vectors[3:], vectors[3:4].expand(3, -1), atol=1e-6)
    assert not torch.allclose(vectors[0], vectors[3], atol=1e-3)


def test_saving_and_loading_gives_the_same_encoder_to_the_byte(
    encoder: Encoder, store: TokenStore, rows: I64, tmp_path: Path
) -> None:
    save_encoder(encoder, tmp_path)
    again = load_encoder(tmp_path)
    assert not again.training
    assert again.config == encoder.config
    assert torch.equal(encoded(again, store, rows), encoded(encoder, store, rows))
    (tmp_path / "second").mkdir()
    save_encoder(again, tmp_path / "second")
    for name in ("encoder.json", "encoder.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_every_trainable_weight_receives_a_gradient(encoder: Encoder, store: TokenStore, rows: I64) -> None:
    encoder.train()
    target = torch.nn.functional.normalize(torch.randn(len(rows), encoder.width), dim=1)
    (encode_rows(encoder, store, rows) * target).sum().backward()
    trained = {name for name, p in encoder.named_parameters() if p.grad is not None and bool(p.grad.any())}
    wanted = {name for name, p in encoder.named_parameters() if p.requires_grad}
    # Adding a constant to all keys changes no softmax, and nothing reads BERT's own pooler.
    wanted = {name for name in wanted if not name.endswith(("key.bias", "k_lin.bias")) and "pooler" not in name}
    assert wanted <= trained


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_stays_near_fp32_and_gives_float32(
    request: pytest.FixtureRequest, kind: str, store: TokenStore, rows: I64
) -> None:
    exact = build_encoder(config_of(kind, request), VOCABULARY, seed=3).eval()
    rough = build_encoder(config_of(kind, request, precision="bf16"), VOCABULARY, seed=3).eval()
    vectors = encoded(rough, store, rows)
    assert vectors.dtype == torch.float32
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(rows)), atol=1e-5)
    assert ((encoded(exact, store, rows) * vectors).sum(1) > 0.995).all()


@pytest.mark.parametrize("kind", ["bag", "bert, cls, projected"])
def test_new_weights_come_from_the_seed_alone(request: pytest.FixtureRequest, kind: str) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.rand(3)
        return build_encoder(config_of(kind, request), VOCABULARY, seed).state_dict()

    new = "tokens.weight" if kind == "bag" else "head.weight"
    assert torch.equal(weights(1)[new], weights(1)[new])
    assert not torch.equal(weights(1)[new], weights(2)[new])


def test_a_text_of_one_token_has_the_same_vector_alone_and_beside_a_longer_one() -> None:
    """Alone it had one in fp32, and `xc serve` gave it other labels alone than in a pass that texts share."""
    encoder: Any = build_encoder(EncoderConfig(name="bag", width=6), VOCABULARY, seed=0)
    ids, mask = torch.tensor([[3, 0], [4, 5]]), torch.tensor([[True, False], [True, True]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        alone, beside = encoder.pooled(ids[:1, :1], mask[:1, :1]), encoder.pooled(ids, mask)
    assert alone.float().tolist() == beside[:1].float().tolist()


def test_a_bag_encodes_a_text_without_tokens_as_zero_with_finite_gradients() -> None:
    encoder = build_encoder(EncoderConfig(name="bag", width=6, projection=3), VOCABULARY, seed=0)
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[True, True, False], [False, False, False]])
    vectors = encoder(ids, mask)
    assert torch.equal(vectors[1], torch.zeros(3))
    vectors.sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in encoder.parameters())


def test_a_new_bag_weighs_all_tokens_alike() -> None:
    encoder: Any = build_encoder(EncoderConfig(name="bag", width=6), VOCABULARY, seed=0)
    ids = torch.tensor([[3, 5, 2, 0]])
    pooled = encoder.pooled(ids, torch.tensor([[True, True, True, False]]))
    assert torch.allclose(pooled, encoder.tokens(ids[:, :3]).mean(1))


@pytest.mark.parametrize("faster", [True, False])
def test_auto_precision_is_bf16_only_if_it_is_faster(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    encoder = build_encoder(EncoderConfig(name="bag", width=4), VOCABULARY, seed=0)
    monkeypatch.setattr("xc_core.devices.Device.multiplies_bf16", lambda device: faster)
    with encoder.autocast():
        assert torch.is_autocast_enabled("cpu") is faster


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        ("max_length", 1, 65_536),
        ("width", 1, 65_536),
        ("projection", 0, 65_536),
        ("frozen_layers", 0, None),
        ("tokens_per_pass", 1, 1 << 24),
        ("heads", 1, 2),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, least: int, most: int | None) -> None:
    ends = [least] if most is None else [least, most]
    for end, beyond in zip(ends, (least - 1, (most or 0) + 1), strict=False):
        EncoderConfig(**{setting: end})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"found {setting} "):
            EncoderConfig(**{setting: beyond})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", " ", "wordpiece", "transformer"])
def test_a_name_of_something_else_than_an_encoder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"found name '{name}'"):
        EncoderConfig(name=name)


def change_config(folder: Path) -> None:
    facts = json.loads((folder / "encoder.json").read_text())
    facts["config"]["unknown"] = 1
    (folder / "encoder.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "encoder.safetensors").unlink(),
        lambda f: (f / "encoder.safetensors").write_bytes(b"xx"),
        lambda f: (f / "encoder.json").write_text("{"),
        lambda f: (f / "encoder.json").write_text("{}"),
        change_config,
        lambda f: (f / "encoder.json").write_text((f / "encoder.json").read_text().replace('"heads": 1', '"heads": 3')),
        lambda f: (
            save_encoder(build_encoder(EncoderConfig(name="bag", width=5), 3, 0), f.parent / "other")
            or (f / "encoder.safetensors").write_bytes((f.parent / "other" / "encoder.safetensors").read_bytes())
        ),
    ],
)
def test_a_damaged_encoder_is_reported(damage: Any, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    save_encoder(build_encoder(EncoderConfig(name="bag", width=4), VOCABULARY, seed=0), folder)
    damage(folder)
    with pytest.raises(CorruptError, match="cannot be loaded"):
        load_encoder(folder)


def test_too_little_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_encoder(build_encoder(EncoderConfig(name="bag", width=4), VOCABULARY, seed=0), tmp_path)
    monkeypatch.setattr(base, "load_file", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        load_encoder(tmp_path)


def test_a_saved_setting_that_only_a_text_shows_to_be_wrong_is_reported(bert: Path, tmp_path: Path) -> None:
    save_encoder(build_encoder(EncoderConfig(name=str(bert)), VOCABULARY, seed=0), tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    facts["shape"]["num_attention_heads"] = 3
    (tmp_path / "encoder.json").write_text(json.dumps(facts))
    with pytest.raises(CorruptError, match="cannot be loaded"):
        load_encoder(tmp_path, to_answer=True)


class Largest(TorchDispatchMode):
    """Remembers the bytes of the largest tensor that was allocated."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not out.is_meta:
            self.size = max(self.size, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("to_answer", [False, True])
@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        ("bag", "shape", {"vocabulary_size": 1 << 20}),
        ("bag", "config", {"width": 1 << 16}),
        ("bag", "config", {"projection": 1 << 16}),
        ("bert, mean", "shape", {"vocab_size": 1 << 16}),
        ("bert, mean", "shape", {"max_position_embeddings": 1 << 16}),
        ("bert, mean", "config", {"projection": 1 << 16}),
        ("bert, two heads", "shape", {"hidden_size": 1 << 10}),
    ],
)
def test_saved_sizes_are_compared_with_the_weights_before_anything_is_allocated(
    kind: str, part: str, change: dict[str, int], to_answer: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    save_encoder(build_encoder(config_of(kind, request), VOCABULARY, seed=0), tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    facts[part] |= change
    (tmp_path / "encoder.json").write_text(json.dumps(facts))
    with Largest() as largest, pytest.raises(CorruptError, match="cannot be loaded"):
        load_encoder(tmp_path, to_answer=to_answer)
    assert largest.size < 1 << 18, "a tensor of a saved size"


@pytest.mark.parametrize(
    ("name", "number"), [("num_hidden_layers", 10**9), ("num_labels", 10**9), ("vocab_size", 10**12)]
)
def test_a_saved_number_of_layers_or_labels_is_bounded(name: str, number: int, bert: Path, tmp_path: Path) -> None:
    """transformers makes objects of each before any weight is read."""
    save_encoder(build_encoder(EncoderConfig(name=str(bert)), VOCABULARY, seed=0), tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    facts["shape"][name] = number
    (tmp_path / "encoder.json").write_text(json.dumps(facts))
    with pytest.raises(CorruptError, match=f"{name} = {number:,}, more than"):
        load_encoder(tmp_path)


def test_a_missing_encoder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="run the stage encoder"):
        load_encoder(tmp_path)
