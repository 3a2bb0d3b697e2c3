"""Comparison: a step of M1, whose frozen layers were computed before and whose passes save padding."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from xc_core.data.tokens import Tokenised, store_name
from xc_core.encoders import TrainedEncoder
from xc_core.recipes import RECIPES
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task

_RECIPE = "ngame"


@case
def m1(world: World) -> list[Row]:
    """A step of M1 of ``ngame``, against one that computes all layers, in passes that are full."""
    ours, full = _task(world), _task(world)
    ours.keep_states(world.corpus.folder, timed=1)
    all_layers = _task(world)
    for task in (full, all_layers):
        task.encoder.pass_cost = None
    full.keep_states(world.corpus.folder, timed=1)
    docs = ours.batches(0)[0]

    def step(task: EncoderTask) -> float:
        loss, count = task.step(docs, 0, 0.0)
        return float(loss / count)

    def row(name: str, theirs: EncoderTask) -> Row:
        return compare(
            f"{len(docs)} documents and their labels",
            lambda: step(ours),
            name,
            lambda: step(theirs),
            note=f"losses {step(ours):.6f} and {step(theirs):.6f}",
        )

    return [row("all layers, full passes", all_layers), row("full passes", full)]


def _task(world: World) -> EncoderTask:
    """Return M1 of ``ngame`` with the encoder of the experiment."""
    settings = RECIPES[_RECIPE].encoder
    encoder = world.read(TrainedEncoder).encoder.train()
    tokens = Tokenised.open(world.workspace.folder("tokens", world.dataset) / store_name(encoder.config.tokenizer))
    settings = replace(settings, encoder=encoder.config)
    return encoder_task(settings, encoder, EncoderData.of(world.corpus, tokens, settings))
