"""Stage embeddings: unit vectors of all documents and labels, and the rows that were trained with the encoder.

Takes: corpus, tokens, encoder.   Gives: documents.npy, labels.npy (float32), perhaps rows.npy, starts.npy.
May import: data, encoders, stages.runner.       Never: trains.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.lib.format import open_memmap

from xc_core.artifacts import building, reserve, sha256_file, verify
from xc_core.data.corpus import Corpus
from xc_core.data.tokens import KIND, SIDES, TokenStore, write_store
from xc_core.encoders import Encoder, embed_rows, load_encoder
from xc_core.progress import report
from xc_core.stages.encoder import ROWS, TOKENIZER, tokenizer_of
from xc_core.stages.runner import Context
from xc_core.stages.workspace import store_name

STARTS: Final = "starts.npy"
"""With two heads: where the row of a label starts, its text's vector in the half that faces rows."""


def run(context: Context) -> None:
    """Encode both sides, block by block, straight into mapped files."""
    verify(context.input("encoder"), kind="encoder")
    encoder = load_encoder(context.input("encoder")).to("cuda" if torch.cuda.is_available() else "cpu")
    with _stores(context, encoder) as stores:
        for side, store in stores.items():
            shape = (len(store), encoder.width)
            path = context.build.path / f"{side}.npy"
            out = open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
            reserve(path)
            embed_rows(encoder, store, np.arange(len(store), dtype=np.int64), out, f"encoding {side}")
            if side == "labels" and encoder.config.heads > 1:
                vectors = torch.from_numpy(np.array(out))
                np.save(context.build.path / STARTS, encoder.as_rows(encoder.views(vectors)[1]).numpy())
                out[:] = encoder.as_label(vectors).numpy()
            out.flush()
            context.build.facts[side] = {"rows": shape[0], "width": shape[1]}
    context.build.facts["heads"] = encoder.config.heads
    if (context.input("encoder") / ROWS).is_file():
        shutil.copyfile(context.input("encoder") / ROWS, context.build.path / ROWS)


@contextmanager
def _stores(context: Context, encoder: Encoder) -> Iterator[dict[str, TokenStore]]:
    """Yield the token stores of both sides, in the ids that the encoder was trained on.

    A vocabulary made from the corpus changes with new documents; an encoder that is kept (refresh) still wants its own.
    """
    shared = context.input("tokens") / store_name(encoder.config.tokenizer)
    tokenizer = tokenizer_of(context.input("encoder"), encoder)
    if sha256_file(shared / TOKENIZER) == sha256_file(context.input("encoder") / TOKENIZER):
        yield {side: TokenStore.open(shared, side) for side in SIDES}
        return
    report("embeddings: the vocabulary is newer than the encoder, so the texts are tokenised with the encoder's own")
    corpus = Corpus.open(context.input("corpus"))
    config = context.experiment.tokens
    sizes = {"documents": corpus.num_documents, "labels": corpus.num_labels}
    texts = {side: (sizes[side], corpus.texts(side, config.fields)) for side in SIDES}
    with tempfile.TemporaryDirectory(dir=context.build.path) as scratch:
        folder = Path(scratch) / "store"
        with building(folder, kind=KIND) as build:
            write_store(build, tokenizer, texts, config.max_tokens)
        yield {side: TokenStore.open(folder, side) for side in SIDES}
