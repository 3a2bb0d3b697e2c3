"""Encoders: turn the tokens of a text into a vector.

To add a family, add a module to this folder; importing the package registers all of them.
"""

from xc_core.encoders.base import ENCODERS, Encoder, EncoderConfig, build_encoder, load_encoder, save_encoder
from xc_core.encoders.embed import Cached, Passes, embed_rows, encode_passes, encode_rows
from xc_core.encoders.pooling import Pooling
from xc_core.encoders.trained import TrainedEncoder, open_encoder, write_encoder
from xc_core.plugins import import_all

import_all(__name__, __path__)

__all__ = [
    "ENCODERS",
    "Cached",
    "Encoder",
    "EncoderConfig",
    "Passes",
    "Pooling",
    "TrainedEncoder",
    "build_encoder",
    "embed_rows",
    "encode_passes",
    "encode_rows",
    "load_encoder",
    "open_encoder",
    "save_encoder",
    "write_encoder",
]
