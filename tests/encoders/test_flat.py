"""BERT without padding, as a card computes it, equals the model of transformers: vectors and gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tests.card import CARD
from tests.train.steps import small_bert
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.devices import CPU, Device
from xc_core.encoders import Encoder, EncoderConfig, build_encoder, embed, flat, transformer
from xc_core.encoders.base import Group, Precision
from xc_core.progress import Meter
from xc_core.shapes import TokenBatch

MASK_BT = torch.arange(7) < torch.tensor([[7], [2], [0], [1], [5]])
IDS_BT = torch.randint(1, 30, MASK_BT.shape, generator=torch.Generator().manual_seed(1)) * MASK_BT


def group(ids_BT: Tensor, mask_BT: Tensor) -> Group:
    return Group(ids_BT[mask_BT], mask_BT, mask_BT.flatten().nonzero().squeeze(1))


def in_groups(ids_BT: Tensor, mask_BT: Tensor) -> list[Group]:
    """The first two texts, then the others, each group padded to its longest text."""
    parts = [(ids_BT[part], mask_BT[part]) for part in (slice(2), slice(2, None))]
    lengths = [int(mask.sum(1).max()) for _, mask in parts]
    return [group(ids[:, :length], mask[:, :length]) for (ids, mask), length in zip(parts, lengths, strict=True)]


def made(activation: str = "gelu", **changes: Any) -> Encoder:
    config = EncoderConfig(name="tiny", **{"precision": Precision.FP32, **changes})
    return small_bert(config, 30, hidden_act=activation)


def gradients(encoder: Encoder, encode: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return vectors, and the gradient of each weight for a weighted sum of the vectors of texts with tokens."""
    encoder.zero_grad()
    with encoder.autocast():
        vectors = encode()
    weights = torch.linspace(-1, 1, vectors.numel()).view_as(vectors)
    (vectors * weights)[MASK_BT.any(1)].sum().backward()
    named = encoder.named_parameters()
    return vectors.detach(), {name: value.grad.clone() for name, value in named if value.grad is not None}


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("changes", [{}, {"frozen_layers": 1}, {"projection": 8, "heads": 2, "activation": "relu"}])
def test_vectors_and_gradients_are_those_of_transformers(pooling: str, changes: dict[str, Any]) -> None:
    encoder = made(pooling=pooling, **changes)
    expected, theirs = gradients(encoder, lambda: encoder(IDS_BT, MASK_BT))
    found, ours = gradients(encoder, lambda: encoder.forward_unpadded(in_groups(IDS_BT, MASK_BT)))
    whole = MASK_BT.any(1)
    torch.testing.assert_close(found[whole], expected[whole], rtol=0, atol=1e-6)
    assert found.isfinite().all()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)


def test_all_groups_are_encoded_again_for_their_gradient() -> None:
    encoder, groups = made(), in_groups(IDS_BT, MASK_BT)
    _, expected = gradients(encoder, lambda: encoder.forward_unpadded(groups))
    cached = embed.Cached(encoder, embed.Passes([groups], torch.arange(len(MASK_BT))))
    gradients(encoder, lambda: cached.vectors_UD)
    cached.backward()
    for name, value in encoder.named_parameters():
        torch.testing.assert_close(value.grad, expected.get(name), rtol=1e-4, atol=1e-5)


def test_the_tokens_of_a_text_read_no_other_text_and_no_padding() -> None:
    encoder = made().eval()
    whole = encoder.forward_unpadded([group(IDS_BT, MASK_BT)])
    for row in (0, 1, 3, 4):
        length = int(MASK_BT[row].sum())
        alone = encoder.forward_unpadded([group(IDS_BT[row : row + 1, :length], MASK_BT[row : row + 1, :length])])
        torch.testing.assert_close(whole[row : row + 1], alone, rtol=0, atol=1e-6)


def test_in_bf16_sums_and_normalisations_are_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to fp32 as autocast. With sums in bf16 too, vectors were twice as far."""
    sums: list[Tensor] = []
    monkeypatch.setattr(flat, "layer_norm", lambda given, *more: sums.append(given) or layer_norm(given, *more))
    encoder, half = made().eval(), made(precision=Precision.BF16).eval()
    mask_BT = torch.arange(12) < 1 + torch.arange(200).unsqueeze(1) % 12
    ids_BT = torch.randint(1, 30, mask_BT.shape, generator=torch.Generator().manual_seed(2)) * mask_BT
    with torch.no_grad():
        exact = encoder(ids_BT, mask_BT)
        with half.autocast():
            ours, theirs = half.forward_unpadded([group(ids_BT, mask_BT)]), half(ids_BT, mask_BT)
    assert 0 < (ours - exact).norm() < 1.2 * (theirs - exact).norm()
    assert len(sums) == 5
    assert all(given.dtype == torch.float32 and not torch.equal(given, given.bfloat16().float()) for given in sums)


def test_attention_on_a_card_is_by_the_kernels_that_were_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[list[bool]] = []

    def noted(*given: Any) -> list[Tensor]:
        kinds = ("mem_efficient", "math", "cudnn", "flash")
        allowed.append([getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds])
        return flat.hidden_states(*given)

    monkeypatch.setattr(transformer, "hidden_states", noted)
    made().forward_unpadded(in_groups(IDS_BT, MASK_BT))
    assert allowed == [[True, True, False, False]]


def test_a_token_may_have_the_id_of_padding() -> None:
    batch = TokenBatch(np.array([[5, 0, 7], [3, 0, 0]]), np.array([3, 1]))
    found = embed._unpadded_group(made(), batch)
    assert (found.tokens_M.tolist(), found.places_M.tolist()) == ([5, 0, 7, 3], [0, 1, 2, 3])


@pytest.mark.usefixtures("fake_card")
def test_a_card_skips_padding_if_the_backbone_is_bert(bert: Path, distilbert: Path) -> None:
    def skips(device: Device, folder: Path) -> bool:
        return build_encoder(EncoderConfig(name=str(folder)), 17, 0).on(device).skips_padding

    assert [skips(CARD, bert), skips(CARD, distilbert), skips(CPU, bert)] == [True, False, False]


@pytest.mark.usefixtures("fake_card")
def test_an_encoder_with_its_own_pooled_is_not_computed_in_another_way() -> None:
    class Own(transformer.TransformerEncoder):
        def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
            return -super().pooled(ids_BT, mask_BT)

    bert = made(frozen_layers=1)
    assert isinstance(bert, transformer.TransformerEncoder)
    own = Own(bert.config, bert.backbone)
    assert [bool(one.frozen_width) for one in (own, bert)] == [False, True]
    assert [one.without_gradients() is one for one in (own, bert)] == [True, False]
    assert [one.on(CARD).skips_padding for one in (own, bert)] == [False, True]


@pytest.mark.parametrize(("padding", "most"), [(True, 16_384), (False, 131_072)])
def test_a_pass_without_padding_is_larger(padding: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "_free", lambda _: 4 * 10**12)
    assert Device("cuda:0").tokens_per_pass(2048, 1000, padding=padding) == most


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize(
    ("cost", "most", "expected"),
    [
        (0, 1000, [[3, 4]]),
        (1000, 1000, [[7]]),
        (0, 3 * 8 + 4 * 16, [[3, 4]]),
        (0, 40, [[3], [2], [2]]),
        (1000, 8, [[1]] * 3 + [[1]] * 4),
    ],
    ids=["cheap", "dear", "full pass", "small passes", "one text a pass"],
)
def test_texts_of_similar_length_are_padded_together(
    cost: int,
    most: int,
    expected: list[list[int]],
    bert: Path,
    tokenizer: TextTokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three texts of 4 tokens, four of 12 (8 and 16 when rounded)."""
    monkeypatch.setattr(embed, "_GROUP_COST", cost)
    encoder = build_encoder(EncoderConfig(name=str(bert), precision="fp32"), 17, 0)
    store = TokenStore.of_texts(["violin " * 10, "old river"] * 3 + ["violin " * 10], tokenizer)
    rows = np.arange(7)
    theirs = embed.encode_rows(encoder, store, rows).detach()
    encoder.on(CARD)
    encoder.tokens_per_pass = most
    passes = embed.Passes.of(encoder, store, rows)
    assert [[len(each.mask_BT) for each in groups] for groups in passes.batches] == expected
    torch.testing.assert_close(embed.encode_rows(encoder, store, rows).detach().cpu(), theirs, rtol=0, atol=1e-6)
    out, counted = np.empty((7, encoder.width), np.float32), list[int]()
    monkeypatch.setattr(Meter, "update", lambda _, tokens: counted.append(tokens))
    embed.embed_rows(encoder, store, rows, out, "texts")
    np.testing.assert_allclose(out, theirs.numpy(), rtol=0, atol=1e-6)
    assert sum(counted) == 3 * 4 + 4 * 12


@pytest.mark.usefixtures("fake_card")
def test_a_pass_may_have_only_texts_without_tokens(bert: Path) -> None:
    """A tokenizer without special tokens gives none for an empty text."""
    encoder = build_encoder(EncoderConfig(name=str(bert), precision="fp32"), 17, 0).on(CARD)
    store = TokenStore(np.zeros(0, np.int64), np.zeros(4, np.int64), (), (), 0)
    assert embed.encode_rows(encoder, store, np.arange(3)).detach().cpu().isfinite().all()
