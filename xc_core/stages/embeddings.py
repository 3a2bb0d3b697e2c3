"""Stage embeddings: unit vectors of all documents and labels.

Takes: corpus, tokens, encoder.                  Gives: documents.npy, labels.npy (float32, one row each).
May import: data, encoders, stages.runner.       Never: trains.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.lib.format import open_memmap

from xc_core.artifacts import verify
from xc_core.data.tokens import SIDES, TokenStore
from xc_core.encoders import embed_rows, load_encoder
from xc_core.stages.runner import Context
from xc_core.stages.workspace import store_name


def run(context: Context) -> None:
    """Encode both sides, block by block, straight into mapped files."""
    verify(context.input("encoder"), kind="encoder")
    encoder = load_encoder(context.input("encoder")).to("cuda" if torch.cuda.is_available() else "cpu")
    folder = context.input("tokens") / store_name(encoder.config.tokenizer)
    for side in SIDES:
        store = TokenStore.open(folder, side)
        shape = (len(store), encoder.width)
        out = open_memmap(context.build.path / f"{side}.npy", mode="w+", dtype=np.float32, shape=shape)
        embed_rows(encoder, store, np.arange(len(store), dtype=np.int64), out, f"encoding {side}")
        out.flush()
        context.build.facts[side] = {"rows": shape[0], "width": shape[1]}
