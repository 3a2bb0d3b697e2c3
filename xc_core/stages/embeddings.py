"""Stage embeddings: unit vectors of all documents and labels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from xc_core.artifacts import building
from xc_core.chain.context import Context
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings, EmbeddingsWriter
from xc_core.data.tokens import SIDES, Tokenised, TokenStore, store_name, write_tokens
from xc_core.devices import Device
from xc_core.distributed import World
from xc_core.encoders import Encoder, TrainedEncoder, embed_rows
from xc_core.recipes.settings import EmbeddingsSettings
from xc_core.shapes import F32


def run(context: Context[EmbeddingsSettings]) -> None:
    """Encode both sides, block by block, into memory-mapped files; several processes share the blocks."""
    trained, world = context.read(TrainedEncoder), World.from_environment()
    encoder = trained.encoder.on(Device.chosen())
    writer = EmbeddingsWriter(context.build, world.first)
    with _tokens(context, trained) as tokens:
        for side in SIDES:
            store = tokens.side(side)
            out = writer.allocate(side, len(store), encoder.width)
            embed_rows(encoder, store, np.arange(len(store), dtype=np.int64), out, f"encoding {side}", world)
            if side == "labels" and encoder.config.heads > 1 and world.first:
                starts_LD, out[:] = _two_heads(encoder, out)
                writer.starts(starts_LD)
    writer.finish(encoder.config.heads)


def extend(context: Context[EmbeddingsSettings]) -> None:
    """Encode the texts of labels that are new at the end; all other vectors stay as they are, bit for bit."""
    previous, trained, corpus = Embeddings.open(context.previous), context.read(TrainedEncoder), context.read(Corpus)
    encoder, writer = trained.encoder.on(Device.chosen()), EmbeddingsWriter(context.build)
    num_old = len(previous.labels_LD)
    texts = corpus.label_texts(num_old)
    store = TokenStore.of_texts(texts, trained.tokenizer, encoder.config.max_length)
    vectors_ND = np.empty((len(texts), encoder.width), np.float32)
    embed_rows(encoder, store, np.arange(len(texts), dtype=np.int64), vectors_ND, "encoding new labels")
    writer.same_documents(previous)
    out_LD = writer.allocate("labels", corpus.num_labels, previous.width)
    if previous.heads > 1:
        starts_ND, vectors_ND = _two_heads(encoder, vectors_ND)
        writer.starts(np.concatenate([previous.starts_LD, starts_ND]))
    out_LD[:num_old], out_LD[num_old:] = previous.labels_LD, vectors_ND
    writer.finish(previous.heads)


def _two_heads(encoder: Encoder, vectors_LD: F32) -> tuple[F32, F32]:
    """Return the initial rows and the vectors of labels, from what an encoder with two heads makes of their texts."""
    vectors = torch.from_numpy(np.array(vectors_LD))
    return encoder.as_rows(encoder.views(vectors)[1]).numpy(), encoder.as_label(vectors).numpy()


@contextmanager
def _tokens(context: Context[EmbeddingsSettings], trained: TrainedEncoder) -> Iterator[Tokenised]:
    """Yield the tokens of both sides, in the ids that the encoder was trained on.

    A vocabulary made from the corpus changes with new documents; an encoder that a refresh keeps needs its own.
    """
    tokens = context.read(Tokenised)
    if tokens.tokenizer.same_as(trained.tokenizer):
        yield tokens
        return
    context.report("embeddings: the vocabulary is newer than the encoder; tokenising with the encoder's own vocabulary")
    texts = context.read(Corpus).sides()
    with tempfile.TemporaryDirectory(dir=context.build.path) as scratch:
        folder = Path(scratch) / "tokens"
        with building(folder, kind=Tokenised.kind) as build:
            write_tokens(build, trained.tokenizer, texts, tokens.max_tokens)
        yield Tokenised.open(folder / store_name(trained.tokenizer.name))
