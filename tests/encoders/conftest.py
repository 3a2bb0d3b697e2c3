"""Tiny transformers with a tokenizer, built and saved as folders by fixtures, and token stores to encode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from xc_core.data.tokenizer import TextTokenizer, load
from xc_core.data.tokens import TokenStore

WORDS = ["river", "castle", "engine", "violin", "glacier", "falcon", "##s", "##y", "old", "new", "the", "of"]
TEXTS = [
    "the old river",
    "castles",
    "a new engine of the castle",
    "glacier",
    "violin violin violin violin violin violin violin violin violin violin",
    "falcons of the old glacier",
    "",
]


def save_tokenizer(folder: Path) -> None:
    """Save a WordPiece tokenizer that puts [CLS] and [SEP] around a text, as BERT's does."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.save(str(folder / "tokenizer.json"))


def save_transformer(kind: str, folder: Path) -> Path:
    """Save a model with 2 layers of width 16 and random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    size, spread = len(WORDS) + 5, 0.5  # large enough that the attention distinguishes texts
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=spread,
        )
        model = transformers.BertModel(config)
    else:
        config = transformers.DistilBertConfig(
            vocab_size=size, dim=16, n_layers=2, n_heads=2, hidden_dim=32, initializer_range=spread
        )
        model = transformers.DistilBertModel(config)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_transformer("bert", tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_transformer("distilbert", tmp_path_factory.mktemp("tiny-distilbert"))


@pytest.fixture(scope="session")
def tokenizer(bert: Path) -> TextTokenizer:
    return load(str(bert))


@pytest.fixture(scope="session")
def store(tokenizer: TextTokenizer) -> TokenStore:
    return TokenStore.of_texts(TEXTS, tokenizer)


@pytest.fixture
def rows() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(len(TEXTS), dtype=np.int64)
