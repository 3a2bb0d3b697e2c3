"""Text to vectors; importing this fills the table of encoders."""

from xc_core.encoders import bag, transformer
from xc_core.encoders.base import ENCODERS, Encoder, EncoderConfig, build_encoder, load_encoder, save_encoder
from xc_core.encoders.embed import CachedRows, embed_rows, encode_rows

__all__ = [
    "ENCODERS",
    "CachedRows",
    "Encoder",
    "EncoderConfig",
    "bag",
    "build_encoder",
    "embed_rows",
    "encode_rows",
    "load_encoder",
    "save_encoder",
    "transformer",
]
