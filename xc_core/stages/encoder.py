"""Stage encoder (M1): trains the encoder, or saves it as it was pretrained if epochs is 0.

Test documents are never read, validation documents only with ``refit``.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from typing import Any, Final

from xc_core.chain.context import Context
from xc_core.data.corpus import Corpus
from xc_core.data.history import TrainedOn
from xc_core.data.names import row_labels
from xc_core.data.splits import TRAIN
from xc_core.data.tokens import Tokenised
from xc_core.devices import Device
from xc_core.distributed import World
from xc_core.encoders import ENCODERS, Encoder, TrainedEncoder, build_encoder
from xc_core.encoders.pooling import Pooling
from xc_core.environment import checkpoint_seconds
from xc_core.errors import ConfigError, bare
from xc_core.pretrained import FROM_CORPUS, declared_pooling
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

_MAX_CUT_SHARE: Final = 0.1
"""Share of train documents longer than the encoder reads above which this is reported; a guess."""


def run(context: Context[EncoderSettings]) -> None:
    """Train and save."""
    settings, tokens = context.settings, context.read(Tokenised)
    _report_pooling(context)
    encoder = build_encoder(settings.encoder, tokens.tokenizer.vocabulary_size, settings.seed)
    _limit_length(context, encoder, tokens)
    _report_cut(context, encoder, tokens)
    device, world = Device.chosen(), World.from_environment()
    encoder.on(device)
    history, rows, documents = History(), {}, {}
    if settings.epochs > 0:
        _check_learns(settings, encoder)
        _report_if_short(context)
        corpus = context.read(Corpus)
        task = encoder_task(settings, encoder, EncoderData.of(corpus, tokens, settings), world)
        start = time.monotonic()
        task.keep_states(context.build.path)
        setup_seconds = time.monotonic() - start
        plan = Plan.on(device, settings.epochs, settings.optim.warmup, checkpoint_seconds(), world)
        history = fit(
            task, plan, Checkpoints(context.run.checkpoints, context.run.fingerprint, world, context.run.check)
        )
        history.seconds += setup_seconds
        rows = _joint_rows(task, corpus)
        documents = TrainedOn.of(corpus, validation=settings.refit, augment=settings.augment).recorded()
    TrainedEncoder(encoder, tokens.tokenizer, history.results() | documents, **rows).write(context.build)
    context.build.facts["max_tokens"] = tokens.max_tokens
    context.costs.update({"train_seconds": history.seconds, "mining_seconds": history.refresh_seconds})


def _limit_length(context: Context[EncoderSettings], encoder: Encoder, tokens: Tokenised) -> None:
    """Limit ``max_length`` to what the stage tokens keeps; a served model would read more than the training did."""
    max_length = tokens.max_tokens + len(tokens.tokenizer.prefix) + len(tokens.tokenizer.suffix)
    if max_length < encoder.config.max_length:
        context.report(
            f"encoder: max_length {encoder.config.max_length:,}, but the dataset keeps {tokens.max_tokens:,} token ids "
            f"of a text, so it reads {max_length:,}; to keep more, raise "
            f"datasets.{context.run.dataset}.tokens.max_tokens"
        )
        encoder.config = replace(encoder.config, max_length=max_length)


def _report_cut(context: Context[EncoderSettings], encoder: Encoder, tokens: Tokenised) -> None:
    """Report if the encoder reads only the beginning of many train documents, unless its weights stay random."""
    settings = context.settings
    if not settings.epochs and settings.encoder.tokenizer == FROM_CORPUS:
        return
    read, rows = encoder.config.max_length, context.read(Corpus).rows(TRAIN)
    cut = float((tokens.documents.lengths(rows, sys.maxsize) > read).mean())
    if cut > _MAX_CUT_SHARE:
        context.report(
            f"encoder: {cut:.0%} of the train documents have more than {read:,} tokens, of which it reads the first "
            f"{read:,}; to read more, raise encoder.encoder.max_length"
        )


def _check_learns(settings: EncoderSettings, encoder: Encoder) -> None:
    """Raise ConfigError if the training could change no weight of the encoder."""
    if not encoder.learns():
        raise ConfigError(
            f"frozen_layers {settings.encoder.frozen_layers}, all layers of {bare(settings.encoder.name)}, and no "
            f"projection, with epochs {settings.epochs:g}",
            expected="weights of the encoder to train",
            do="lower frozen_layers, set projection, or set epochs to 0 to use the encoder as it was pretrained",
            where="encoder.encoder",
        )


def _joint_rows(task: EncoderTask, corpus: Corpus) -> dict[str, Any]:
    """Return the rows that were trained along, their kind and their labels; nothing if there are none."""
    if task.head.rows is None:
        return {}
    unit = task.head.rows.table.config.unit
    return {"rows_LD": task.vectors.released(), "unit_rows": unit, "row_labels": row_labels(corpus)}


def _report_pooling(context: Context[EncoderSettings]) -> None:
    """Report if the pretrained encoder was trained with another pooling than the recipe has."""
    config = context.settings.encoder
    declared = None if config.name in ENCODERS else declared_pooling(config.name)
    if declared not in (None, config.pooling):
        advice = "the other is not among the kinds here"
        if declared in list(Pooling):
            advice = f"to use it: --set encoder.encoder.pooling={declared}"
        context.report(
            f"encoder: {config.name} was trained with pooling {declared}, here it is {config.pooling}; {advice}"
        )


def _report_if_short(context: Context[EncoderSettings]) -> None:
    """Report if the training ends before the first clustering or the first search of its recipe."""
    settings = context.settings
    epochs, order, negatives = range(math.ceil(settings.epochs)), settings.order, settings.negatives
    message = f"encoder: with epochs {settings.epochs:g} the training ends before the first"
    if order.adapts and not any(order.due(epoch) for epoch in epochs):
        context.report(f"{message} clustering, so all batches are random")
    if negatives.searches is not None and not any(negatives.due(epoch) for epoch in epochs):
        context.report(f"{message} search for hard negatives, so there are none")
