"""A small tokenizer, and token stores written with it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from xc_core import artifacts
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import Tokenised, TokenStore, store_name, write_tokens

WORDS = ("river", "castle", "engine", "violin", "glacier", "falcon", "##s", "##ing", "a", "b", ",", ".", "ä")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TEXTS = ["river castles", "", "Engine, violin. falconing", "unknowable", "a " * 40, "  ", "ä b", "[SEP] river"]


def backend(extra: int = 0, dressed: bool = True) -> Tokenizer:
    """Return a WordPiece tokenizer; ``extra`` words make ids exceed 16 bits; ``dressed`` adds [CLS] and [SEP]."""
    names = [*SPECIAL, *(f"filler{i}" for i in range(extra)), *WORDS]
    tokenizer = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    if dressed:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def write(folder: Path, tokenizer: TextTokenizer, texts: list[str], block: int = 3, max_tokens: int = 510) -> Path:
    """Write ``texts`` as both sides of a store, in blocks; return the store's folder."""
    blocks = [texts[start : start + block] for start in range(0, len(texts), block)]
    with artifacts.building(folder, kind="tokens") as build:
        sides = {"documents": (len(texts), iter(blocks)), "labels": (len(texts), iter(blocks))}
        write_tokens(build, tokenizer, sides, max_tokens)
    return folder / store_name(tokenizer.name)


def opened(folder: Path, side: str) -> TokenStore:
    """Return one side of the store at ``folder``."""
    return Tokenised.open(folder).side(side)
