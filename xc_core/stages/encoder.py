"""Stage encoder (M1): trains the encoder, or hands it on as it came where epochs is 0.

Takes: corpus, tokens.                                             Gives: an encoder, its tokenizer, its history.
May import: classifiers, data, encoders, sampling, losses, train, stages.runner.  Never: reads validation or test rows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
import torch

from xc_core.classifiers import LabelTable, TableHead
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.distributed import alone
from xc_core.encoders import Encoder, build_encoder, save_encoder
from xc_core.errors import MissingError
from xc_core.progress import report
from xc_core.recipes.base import EncoderStage
from xc_core.sampling import NEGATIVES, ORDERS
from xc_core.stages.runner import Context
from xc_core.stages.workspace import store_name
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.encoder import EncoderData, EncoderTask
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

TOKENIZER: Final = "tokenizer.json"
ROWS: Final = "rows.npy"
"""Rows of a table trained with the encoder, where the recipe has one."""


def run(context: Context) -> None:
    """Train and save."""
    alone("the stage encoder")
    config = context.config
    store = context.input("tokens") / store_name(config.encoder.tokenizer)
    tokenizer = TextTokenizer.from_file(config.encoder.tokenizer, store / TOKENIZER)
    encoder = build_encoder(config.encoder, tokenizer.vocabulary_size, config.seed)
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")
    history = History()
    if config.epochs > 0:
        _say_if_short(config)
        task = task_of(config, encoder, Corpus.open(context.input("corpus")), store)
        plan = Plan(epochs=config.epochs, warmup=config.optim.warmup, checkpoint_seconds=context.checkpoint_seconds)
        history = fit(task, plan, Checkpoints(context.resume_folder, context.fingerprint))
        if task.table is not None:
            rows_LD = encoder.as_rows(task.table.table.released(config.table_loss.temperature))
            np.save(context.build.path / ROWS, rows_LD.cpu().numpy())
    save_encoder(encoder, context.build.path)
    tokenizer.backend.save(str(context.build.path / TOKENIZER))
    context.build.json("history.json", summary(history))
    context.build.facts |= {"steps": len(history.losses), "width": encoder.width}
    context.costs.update({"train_seconds": history.seconds, "mining_seconds": history.refresh_seconds})


def _say_if_short(config: EncoderStage) -> None:
    """Report a training that ends before the first clustering or the first search of its recipe."""
    epochs, order, negatives = range(math.ceil(config.epochs)), config.order, config.negatives
    told = f"encoder: {config.epochs:g} epochs end before the first"
    if order.clusters and not any(order.due(epoch) for epoch in epochs):
        report(f"{told} clustering, so that all batches are random")
    if negatives.searches and not any(negatives.due(epoch) for epoch in epochs):
        report(f"{told} search for hard negatives, so that it sees none")


def task_of(config: EncoderStage, encoder: Encoder, corpus: Corpus, store: Path) -> EncoderTask:
    """Return the training of ``encoder`` on the train rows of ``corpus``, whose tokens are in ``store``."""
    rows = corpus.rows(TRAIN)
    make = EncoderData.with_label_texts if config.augment else EncoderData
    stores = TokenStore.open(store, "documents"), TokenStore.open(store, "labels")
    data = make(*stores, rows, corpus.labels.rows(rows), corpus.filters.rows(rows))
    return EncoderTask(
        encoder,
        data,
        ORDERS[config.order.kind](config.order, len(data.rows_N), config.seed),
        NEGATIVES[config.negatives.kind](config.negatives, data.truth, config.seed, data.filters),
        config.loss.build(),
        config.optim,
        config.seed,
        config.radius,
        fill_banks=config.order.due(0) or config.negatives.due(0),
        table=_table_of(config, encoder, corpus.num_labels) if config.joint else None,
        text_share=config.text_share,
        cache=config.cache,
        search_rows=config.negatives.search_in == "rows",
    )


def _table_of(config: EncoderStage, encoder: Encoder, size: int) -> TableHead:
    """Return a table of rows as wide as the vectors that face them, at nothing until the training begins."""
    width = encoder.width // encoder.config.heads
    rows_LD = torch.zeros((size, width), device=encoder.device)
    return TableHead(LabelTable(rows_LD, config.table), config.table_loss.build())


def tokenizer_of(folder: Path, encoder: Encoder) -> TextTokenizer:
    """Return the tokenizer of the ``encoder`` in ``folder``: its ids are those the weights were trained on."""
    if not (folder / TOKENIZER).is_file():
        raise MissingError(
            f"no {TOKENIZER} in {folder}",
            expected="an encoder with its tokenizer",
            do="make it anew: xc run encoder --force, with its --dataset and --recipe",
        )
    return TextTokenizer.from_file(encoder.config.tokenizer, folder / TOKENIZER)


def summary(history: History) -> dict[str, object]:
    """Return the part of a history that is the same in every run: losses and refresh figures, no times."""
    return {"losses": history.losses, "epochs": history.epochs, "refreshes": history.refreshes}
