"""A model folder that is damaged, inconsistent or of another kind is refused, never trained quietly."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests import forks
from tests.encoders.conftest import save_tokenizer
from xc_core.data.beginning import encode_beginning
from xc_core.data.tokenizer import TextTokenizer, load
from xc_core.data.word_ids import WordIds
from xc_core.encoders import EncoderConfig, build_encoder, pretrained_model
from xc_core.errors import ConfigError, DataError, XCError

Spoil = Callable[[Path], object]


def config(**changes: object) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(content))

    return spoil


def tokenizer_of(text: str) -> Spoil:
    return lambda folder: (folder / "tokenizer.json").write_text(text)


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = {name: value.clone() for name, value in load_file(folder / "model.safetensors").items()}
        save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})

    return spoil


def with_value(tensors: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    next(iter(tensors.values())).view(-1)[0] = value
    return tensors


def without_words(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def with_tokenizer(**parts: object) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text()) | parts
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return spoil


def around(*tokens: tuple[str, int]) -> Spoil:
    """Put [CLS] and [SEP] with these ids around a text."""
    return with_tokenizer(post_processor={"type": "BertProcessing", "cls": tokens[0], "sep": tokens[1]})


BACKTRACKING = {"type": "Replace", "pattern": {"Regex": r"(a|aa|aaa)*(?=b)\1*$"}, "content": ""}
"""Onig gives up on a long text, and the library panics."""


BAD: dict[str, tuple[Spoil, str]] = {
    "no tokenizer": (without("tokenizer.json"), "no tokenizer in"),
    "a tokenizer of special tokens": (without_words, "a vocabulary of 5 special tokens"),
    "a tokenizer of nothing": (tokenizer_of("{}"), "a tokenizer that cannot be loaded"),
    "a tokenizer that is no JSON": (tokenizer_of("{"), "a tokenizer that cannot be loaded"),
    "a tokenizer with half a surrogate": (tokenizer_of('{"version": "\\ud800"}'), "a tokenizer that cannot be loaded"),
    "a tokenizer without an end": (
        lambda f: os.truncate(f / "tokenizer.json", (1 << 27) + 1),
        "a tokenizer of 134,217,729 bytes",
    ),
    "a first token that is not in the vocabulary": (around(("[CLS]", 99_999), ("[SEP]", 3)), "token of id 99,999"),
    "a last token that is not in the vocabulary": (around(("[CLS]", 2), ("[SEP]", 17)), "a special token of id 17"),
    "a tokenizer without the unknown token": (
        with_tokenizer(model={"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"river": 0}}),
        "a tokenizer that fails on a text",
    ),
    "fewer layers than weights": (config(num_hidden_layers=1), "weights of 16 tensors of layers that the model lacks"),
    "more layers than weights": (config(num_hidden_layers=3), "no weights for 16 tensors"),
    "a width that does not fit": (config(hidden_size=24), "no usable model"),
    "no heads": (config(num_attention_heads=0), "num_attention_heads = 0"),
    "heads that do not divide": (config(num_attention_heads=3), "hidden_size 16 with 3 heads"),
    "a negative width": (config(hidden_size=-16), "hidden_size = -16"),
    "a huge width": (config(hidden_size=10**12), "hidden_size = 1000000000000"),
    "a width of text": (config(hidden_size="wide"), "hidden_size"),
    "too small a vocabulary": (config(vocab_size=16), "a tokenizer of 17 token ids for a model of 16"),
    "an encoder with a decoder": (lambda f: (f / "config.json").write_text('{"model_type": "t5"}'), "has a decoder"),
    "a decoder of an encoder's type": (config(is_decoder=True), "a model of type bert, which has a decoder"),
    "a model of images": (config(model_type="vit", architectures=["ViTModel"], vocab_size=None), "no"),
    "a config of a list": (lambda f: (f / "config.json").write_text("[1]"), "no usable model"),
    "a config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "no usable model"),
    "a config without an end": (
        lambda f: (f / "config.json").write_bytes(b" " * (1 << 23)),
        "more than 4,194,304 bytes",
    ),
    "no weights": (weights(lambda tensors: dict(list(tensors.items())[:3])), "no weights for"),
    "weights that are not numbers": (
        weights(lambda tensors: with_value(tensors, float("nan"))),
        "weights that are not finite",
    ),
    "a weight without an end": (weights(lambda t: with_value(t, float("inf"))), "weights that are not finite"),
    "a huge weight": (weights(lambda tensors: with_value(tensors, -3e38)), "a weight of 3e+38 in embeddings."),
    "a huge weight above 0": (weights(lambda tensors: with_value(tensors, 2e9)), "a weight of 2e+09 in embeddings."),
    "damaged weights": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * (1 << 17)), "no usable model"),
    "weights of another size": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64),
        "and weights of 64 bytes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_model_folder_is_refused(bert: Path, tmp_path: Path, name: str) -> None:
    spoil, found = BAD[name]
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    spoil(folder)
    with pytest.raises(XCError) as caught:
        build_encoder(EncoderConfig(name=str(folder)), load(str(folder)).vocabulary_size, 0)
    assert found in caught.value.found
    assert 64 <= caught.value.exit_code <= 78 and caught.value.exit_code != 70
    assert "\n" not in caught.value.found


@pytest.mark.parametrize(
    ("size", "most"),
    [
        ("hidden_size", 65_536),
        ("num_attention_heads", 4096),
        ("num_hidden_layers", 1024),
        ("intermediate_size", 1_048_576),
        ("vocab_size", 10_000_000),
        ("max_position_embeddings", 10_000_000),
    ],
)
def test_the_largest_sizes_are_accepted_and_larger_ones_are_not(size: str, most: int) -> None:
    def check(number: int) -> None:
        sizes = {"vocab_size": 17, "hidden_size": 65_536} | {size: number}
        pretrained_model._check_shape(SimpleNamespace(model_type="bert", **sizes), "mine", 17)

    check(most)
    with pytest.raises(DataError, match=rf"{size} = {most + 1} in config.json\n  expected: .* from 1 to {most:,}"):
        check(most + 1)


def test_padding_is_tried_with_a_known_token_if_that_of_the_model_is_none(bert: Path) -> None:
    """Some models are saved with the number of tokens as the padding."""
    model = build_encoder(EncoderConfig(name=str(bert)), 17, 0).backbone
    for padding in (17, -1, None):
        model.config.pad_token_id = padding
        pretrained_model._check_padding(model, "mine")


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_how_far_padding_may_change_a_state_depends_on_the_size_of_the_states(
    monkeypatch: pytest.MonkeyPatch, size: float
) -> None:
    """Rounding does; a model that reads padding changes more than it."""

    def states(model: Any, name: str, ids: list[int], padding: Any = ()) -> torch.Tensor:
        return size * (torch.linspace(-1, 0.5, len(ids) * 2).view(-1, 2) + (change if padding else 0))

    monkeypatch.setattr(pretrained_model, "_states", states)
    model = SimpleNamespace(config=SimpleNamespace(model_type="bert", vocab_size=17))
    change = 1e-6
    pretrained_model._check_padding(model, "mine")
    change = 1e-2
    with pytest.raises(DataError, match="changes with padding"):
        pretrained_model._check_padding(model, "mine")


def save_model(kind: str, folder: Path, task: str = "Model") -> None:
    """Save a tiny model of transformers, by default without the head of a task, with random weights."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    own = {"num_key_value_heads": 2} if kind == "Llama" else {}
    settings = getattr(transformers, f"{kind}Config")(vocab_size=17, pad_token_id=0, **sizes, **own)
    torch.manual_seed(0)
    getattr(transformers, f"{kind}{task}")(settings).save_pretrained(folder)


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "OPT", "Mamba"])
def test_a_decoder_is_found_by_what_it_computes(bert: Path, tmp_path: Path, kind: str) -> None:
    """Nothing in config.json says that a token sees earlier ones alone."""
    save_model(kind, tmp_path)
    with pytest.raises(
        DataError, match=r"a decoder: no token changes the vector of an earlier one\n  expected: an enc"
    ):
        build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)


@pytest.mark.parametrize("kind", ["Roberta", "Albert", "DebertaV2", "ModernBert", "MPNet", "Longformer", "BigBird"])
def test_encoders_of_other_kinds_are_none(tmp_path: Path, kind: str) -> None:
    """Some attend to a window, by distance or in blocks."""
    save_model(kind, tmp_path)
    build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra", "DebertaV2", "ModernBert", "MPNet"])
def test_the_head_of_a_task_is_left_out_without_a_word_and_layers_are_not(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A model with a head names its weights with the name of the encoder before them."""
    save_model(kind, tmp_path, "ForMaskedLM")
    caplog.clear()
    build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)
    assert caplog.text == ""
    config(num_hidden_layers=1, n_layers=1, layer_types=["full_attention"])(tmp_path)
    with pytest.raises(DataError, match=r"weights of \d+ tensors of layers that the model lacks, the first is "):
        build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)


@pytest.mark.parametrize("kind", ["FNet", "ConvBert"])
def test_a_model_whose_vectors_change_with_padding_is_refused(tmp_path: Path, kind: str) -> None:
    """FNet has no mask at all, ConvBERT convolves masked positions with others."""
    save_model(kind, tmp_path)
    with pytest.raises(DataError, match=rf"a model of type {kind.lower()}, whose vector of a text changes with padd"):
        build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)


def test_a_model_that_reads_something_else_than_tokens_is_refused(tmp_path: Path) -> None:
    """CANINE reads characters, at least four."""
    save_model("Canine", tmp_path)
    with pytest.raises(DataError, match="a model of type canine, which fails on a text of three tokens"):
        build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)


@pytest.mark.parametrize("panics", [True, False])
def test_a_tokenizer_that_fails_on_a_later_text_is_refused(bert: Path, tmp_path: Path, panics: bool) -> None:
    """The library panics, which is no Exception in Python; or it raises Exception, here in the look-up of words."""
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    if panics:
        with_tokenizer(normalizer=BACKTRACKING)(folder)
    else:
        model = json.loads((folder / "tokenizer.json").read_text())["model"]
        with_tokenizer(model=model | {"unk_token": "[NO]", "vocab": {**model["vocab"], "a": 17}})(folder)
    found = load(str(folder))
    assert (WordIds.of(found.backend) is None) == panics
    for encode in (found.encode, lambda texts: encode_beginning(found, texts, 64)):
        with pytest.raises(DataError, match="found a tokenizer that fails on a text"):
            encode(["a" * 3_000 + " b"])
    assert list(found.encode(["a"])[1]) == [1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, TypeError, MemoryError])
def test_other_errors_while_texts_are_encoded_stay_as_they_are(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    def encode(self: WordIds, texts: list[str]) -> None:
        raise stop

    monkeypatch.setattr(WordIds, "encode", encode)
    with pytest.raises(stop):
        tokenizer.encode(["river"])


def read_model() -> None:
    """Read the model or the tokenizer of a folder, as a program does whose standard input says yes to everything."""
    folder, part = sys.argv[1:]
    try:
        load(folder) if part == "tokenizer" else build_encoder(EncoderConfig(name=folder), 17, 0)
    except XCError as error:
        print(error)
        sys.exit(error.exit_code)


@pytest.mark.parametrize("part", ["model", "model of a known type", "tokenizer", "tokenizer by the config"])
def test_code_of_a_model_folder_is_never_run_whatever_is_typed(bert: Path, tmp_path: Path, part: str) -> None:
    """transformers asks "Do you wish to run the custom code? [y/N]" and takes the answer from stdin."""
    folder, ran = Path(shutil.copytree(bert, tmp_path / "model")), tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    own = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoTokenizer": ["evil.Tokens", "evil.Tokens"]}
    kind = "bert" if "known" in part else "evil"
    if "tokenizer" in part:
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("[UNK]\nriver\n")
    if part == "tokenizer":
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": own}))
    else:
        config(auto_map=own, model_type=kind)(folder)
    done = forks.run(f"{__name__}:read_model", folder, part.split()[0], stdin="y\n" * 9)
    assert not ran.exists()
    assert done.returncode == 65, done.stderr
    assert "found code of its own, named by auto_map in" in done.stdout
    assert "expected: a model and a tokenizer that transformers has itself" in done.stdout
    assert "[y/N]" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_labels": 10**9}, "num_labels = 1000000000"),
        ({"num_labels": -(10**9)}, "num_labels = -1000000000"),
        ({"num_labels": 10**6}, "num_labels = 1000000"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000"),
        ({"model_type": "distilbert", "n_layers": 10**6}, "n_layers = 1000000"),
        ({"model_type": "albert", "num_hidden_groups": 10**6}, "num_hidden_groups = 1000000"),
        ({"model_type": "funnel", "block_sizes": [1000] * 10}, "block_sizes = 10000"),
        ({"type_vocab_size": 10**9}, "type_vocab_size = 1000000000"),
        ({"max_position_embeddings": 10**10}, "max_position_embeddings = 10000000000"),
        ({"text_config": {"deeper": [{"num_labels": 10**9}]}}, "num_labels = 1000000000"),
    ],
)
@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_numbers_that_take_all_memory_are_refused_before_anything_is_made_of_them(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], found: str, part: str
) -> None:
    """transformers makes a dictionary of num_labels names while it reads config.json."""

    def allocates(*_: object, **__: object) -> None:
        pytest.fail("transformers reads the file")

    for reader in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoTokenizer):
        monkeypatch.setattr(reader, "from_pretrained", allocates)
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    config(**changes)(folder)
    if part == "tokenizer":
        (folder / "tokenizer.json").rename(folder / "vocab.txt")
    with pytest.raises(DataError) as caught:
        load(str(folder)) if part == "tokenizer" else build_encoder(EncoderConfig(name=str(folder)), 17, 0)
    assert caught.value.found == f"{found} in config.json"


@pytest.mark.parametrize(
    "changes",
    [
        {"max_position_embeddings": 10**7},
        {"type_vocab_size": 10**7},
        {"intermediate_size": 10**6},
        {"num_hidden_layers": 200, "intermediate_size": 10**5},
    ],
)
def test_a_model_that_its_weights_cannot_fill_is_refused_before_its_memory_is_taken(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """transformers would allocate 0.1 to 2.6 GB and then report what is missing."""
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    config(**changes)(folder)
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", lambda *_, **__: pytest.fail("memory is taken"))
    with pytest.raises(DataError, match=r"a model of [\d,]+ parameters in config.json, and weights of [\d,]+ bytes"):
        build_encoder(EncoderConfig(name=str(folder)), 17, 0)


def test_the_count_of_parameters_draws_no_random_number(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new weights of an encoder are drawn after it from the same generator."""
    found = build_encoder(EncoderConfig(name=str(bert), projection=4), 17, 0).state_dict()
    monkeypatch.setattr(pretrained_model, "_check_parameters", lambda *_: None)
    without = build_encoder(EncoderConfig(name=str(bert), projection=4), 17, 0).state_dict()
    assert torch.equal(found["head.weight"], without["head.weight"])


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 21_841},
        {"rope_theta": 10**9},
        {"suppress_tokens": [250_000] * 50},
        {"label2id": {f"{i} layers": i for i in range(100_000)}},
    ],
)
def test_large_numbers_that_take_little_memory_are_accepted(
    bert: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    config(**changes)(folder)
    build_encoder(EncoderConfig(name=str(folder)), 17, 0)


def test_texts_longer_than_the_positions_of_a_model_are_refused(bert: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_length 513\n  expected: at most 512"):
        build_encoder(EncoderConfig(name=str(bert), max_length=513), 17, 0)


@pytest.mark.parametrize(("kind", "most"), [("RoFormer", 64), ("Roberta", 62), ("XLM", 64)])
def test_the_positions_of_other_models_are_known_too(tmp_path: Path, kind: str, most: int) -> None:
    """RoFormer and XLM have no table beside the embeddings."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes = {"emb_dim": 16, "n_layers": 2, "n_heads": 2} if kind == "XLM" else sizes
    settings = getattr(transformers, f"{kind}Config")(
        vocab_size=17, pad_token_id=1, max_position_embeddings=64, **sizes
    )
    torch.manual_seed(0)
    getattr(transformers, f"{kind}Model")(settings).save_pretrained(tmp_path)
    build_encoder(EncoderConfig(name=str(tmp_path), max_length=most), 17, 0)
    with pytest.raises(ConfigError, match=rf"max_length {most + 1}\n  expected: at most {most}"):
        build_encoder(EncoderConfig(name=str(tmp_path), max_length=most + 1), 17, 0)


def test_positions_at_any_distance_have_no_bound(tmp_path: Path) -> None:
    save_model("DebertaV2", tmp_path)
    config(max_position_embeddings=8, position_biased_input=False)(tmp_path)
    build_encoder(EncoderConfig(name=str(tmp_path), max_length=20), 17, 0)


def test_a_pooler_may_be_absent_because_it_is_not_used(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    weights(lambda tensors: {n: t for n, t in tensors.items() if not n.startswith("pooler.")})(folder)
    build_encoder(EncoderConfig(name=str(folder)), 17, 0)


def test_a_folder_with_a_tokenizer_alone_is_no_model(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    assert load(str(tmp_path)).vocabulary_size == 17
    with pytest.raises(XCError, match="no usable model"):
        build_encoder(EncoderConfig(name=str(tmp_path)), 17, 0)
