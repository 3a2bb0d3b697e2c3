"""Folders of encoders as boundaries: settings, weights, the pooling of sentence-transformers, a saved encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor

from tests.encoders.conftest import save_tokenizer
from tests.fuzz import mutate
from tests.fuzz.targets import Target, in_file
from xc_core.data.tokenizer import TextTokenizer, load
from xc_core.encoders import Encoder, EncoderConfig, build_encoder, load_encoder, save_encoder
from xc_core.errors import DataError
from xc_core.pretrained import declared_pooling

VOCABULARY = 17
POOLING = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


MODERN = b'{"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": true}'


def save_small(folder: Path, tokenizer: Path) -> Path:
    """Save a BERT of one layer, width 8, that fits into a case, and its tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    shape = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, initializer_range=0.5, **sizes)
    transformers.BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    return folder


def _vectors(encoder: Encoder) -> Tensor:
    """Encode two texts."""
    ids_BT = torch.tensor([[2, 5, 6, 3], [2, 9, 3, 0]])
    with torch.no_grad():
        vectors_BD: Tensor = encoder.eval()(ids_BT, ids_BT > 0)
    return vectors_BD


def _encodes(encoder: Encoder) -> None:
    """Encode two texts: whatever was accepted gives finite unit vectors."""
    vectors_BD = _vectors(encoder)
    assert bool(torch.isfinite(vectors_BD).all()), "vectors that are not finite"
    assert bool(((vectors_BD.norm(dim=1) - 1).abs() < 1e-3).all()), "no unit vectors"


def _pooling(folder: Path) -> None:
    """Read the pooling, which is only a hint: another file than one that names a kind counts as refused."""
    found = declared_pooling(str(folder))
    if found is None:
        raise DataError("no pooling", expected="one kind", do="nothing")
    assert found.isprintable() and 0 < len(found) <= 80, "a kind of pooling that no line of a report can show"


def targets(root: Path) -> list[Target]:
    """Return the boundaries of encoder folders, with their files under ``root``."""
    root.mkdir()
    save_tokenizer(root)
    settings = EncoderConfig(name=str(root / "config"), precision="fp32", max_length=8)  # type: ignore[arg-type]
    folders = {name: save_small(root / name, root / "tokenizer.json") for name in ("config", "weights", "words")}
    found = []

    def add(name: str, path: Path, change: mutate.Mutate, run: Callable[[], object], weight: int, *more: bytes) -> None:
        call = in_file(path.parent, path.name, run)
        found.append(Target(name, "models", (path.read_bytes(), *more), change, call, weight))

    def built(folder: Path) -> Callable[[], None]:
        own = EncoderConfig(name=str(folder), precision="fp32", max_length=8)  # type: ignore[arg-type]
        return lambda: _encodes(build_encoder(own, VOCABULARY, 0))

    add("model config.json", folders["config"] / "config.json", mutate.settings_changed, built(folders["config"]), 10)
    weights = folders["weights"] / "model.safetensors"
    add("model.safetensors", weights, mutate.tensors_changed, built(folders["weights"]), 10)
    _add_words(folders["words"], add)
    pooling = root / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    pooling.write_text(json.dumps(POOLING))
    add("1_Pooling config.json", pooling, mutate.document_changed, lambda: _pooling(root), 10, MODERN)
    encoder = build_encoder(settings, VOCABULARY, 0)
    for file, change in (("encoder.safetensors", mutate.tensors_changed), ("encoder.json", mutate.settings_changed)):
        for to_answer in (False, True):
            saved = root / f"{file}-{to_answer}"
            saved.mkdir()
            save_encoder(encoder, saved)
            # the digest of a manifest stands before these files: any numbers may be in them
            run = lambda saved=saved, to_answer=to_answer: _vectors(load_encoder(saved, to_answer=to_answer))  # noqa: E731
            add(f"{file}{' to answer' if to_answer else ''}", saved / file, change, run, 5)
    return found


def _add_words(folder: Path, add: Callable[..., None]) -> None:
    """Add the settings of a tokenizer that transformers makes of a list of words."""
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.__getitem__)) + "\n")
    own = folder / "tokenizer_config.json"
    own.write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]"}))

    def read() -> None:
        tokenizer: TextTokenizer = load(str(folder))
        ids, counts = tokenizer.encode(["the old river", ""])
        assert len(ids) == counts.sum() and counts[1] == 0, "tokens of nothing"
        assert not len(ids) or 0 <= ids.min() <= ids.max() < tokenizer.vocabulary_size, "ids out of range"

    add("tokenizer_config.json", own, mutate.document_changed, read, 5)
