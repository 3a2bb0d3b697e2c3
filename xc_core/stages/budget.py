"""How long a recipe would train here, found by timing a few of its steps; and epochs scaled to a budget.

Takes: a workspace whose corpus and tokens are made, an experiment, seconds.  Gives: changes of epochs.
May import: data, encoders, classifiers, sampling, train, stages.            Never: changes a step; only their number.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from typing import Any, Final

import numpy as np
import torch

from xc_core.artifacts import read_manifest, write_file
from xc_core.classifiers import LabelTable
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.data.tokenizer import TextTokenizer
from xc_core.encoders import build_encoder
from xc_core.errors import UsageError
from xc_core.progress import report
from xc_core.recipes.base import EncoderStage, Recipe
from xc_core.sampling import NEGATIVES, ORDERS, NegativesConfig, OrderConfig
from xc_core.seeds import generator
from xc_core.stages.clusters import refits, trainings
from xc_core.stages.encoder import TOKENIZER, task_of
from xc_core.stages.workspace import Workspace, store_name
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask
from xc_core.train.state import Task

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_WARM, _TIMED = 2, 6
"""Steps before the clock starts, and those it times."""
_BUSY: Final = 1.5
"""Seconds by the clock on the wall for one of running, above which other work is mentioned."""


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as 90s, 10m or 1.5h; raise UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found or float(found[1]) == 0:
        raise UsageError(
            f"--budget {text}", expected="a duration above 0: 90s, 10m, 1.5h; or none", do="mend the value"
        )
    return float(found[1]) * _UNITS[found[2]]


def scaled_epochs(
    workspace: Workspace, dataset: str, recipe: Recipe, seconds: float, *, anew: bool = False
) -> dict[str, Any]:
    """Return changes that scale the epochs of M1 and M4 alike, so that both train ``seconds`` at most, roughly.

    A recipe that needs less is left as it is. Encoding, search and evaluation are not counted. Epochs keep three
    figures. What is counted in epochs before clusters or searches begin shrinks with them. An estimate is made once for
    a dataset and the recipe's settings, or ``anew``, so that the same budget gives the same epochs, and a training that
    was killed goes on.
    """
    whole = sum(_remembered(workspace, dataset, recipe, anew=anew).values())
    share = min(seconds / whole, 1.0) if whole else 1.0
    told = "fits" if share == 1.0 else f"is scaled by {share:.3g}"
    report(f"budget: {recipe.name} would train about {whole:.0f} s here and {told} ({seconds:.0f} s allowed)")
    if share == 1.0:
        return {}
    report("budget: for another, --budget 3h; for all epochs, however long they take, --budget none")
    stages = {"encoder": recipe.encoder.epochs, "classifier": recipe.classifier.epochs}
    scaled = {name: {"epochs": float(f"{epochs * share:.3g}")} for name, epochs in stages.items() if epochs}
    if recipe.encoder.epochs:
        scaled["encoder"] |= shortened(recipe.encoder, share)
    return scaled


def shortened(stage: EncoderStage, share: float) -> dict[str, Any]:
    """Return changes with which clusters and searches still begin in ``share`` of the epochs, in their last at least.

    Without them all recipes that differ in these alone would be one and the same training.
    """
    last = math.ceil(stage.epochs * share) - 1
    changes: dict[str, Any] = {}
    if last < 1:  # vectors to cluster or search come from the first epoch
        return changes
    if stage.order.clusters and stage.order.warmup_epochs > last:
        changes["order"] = {"warmup_epochs": last}
    negatives = stage.negatives
    if negatives.searches and negatives.warmup_epochs > last:
        changes["negatives"] = {"warmup_epochs": last, "ahead": min(negatives.ahead, last - 1)}
    if negatives.curriculum:
        changes.setdefault("negatives", {})["curriculum"] = float(f"{negatives.curriculum * share:.3g}")
    return changes


def _remembered(workspace: Workspace, dataset: str, recipe: Recipe, *, anew: bool) -> dict[str, float]:
    """Return the estimate of an earlier call on this machine, or make one, ``anew`` in any case, and keep it."""
    corpus = read_manifest(workspace.folder("corpus", dataset)).digest()
    key = hashlib.sha256(f"{corpus} {recipe.encoder} {recipe.classifier}".encode()).hexdigest()[:16]
    path = workspace.state / "budget" / f"{dataset}-{key}.json"
    if anew or not path.is_file():
        write_file(path, json.dumps(_estimate(workspace, dataset, recipe)) + "\n")
    else:
        report("budget: by the steps that an earlier call timed here; --force times them, and trains, anew")
    kept: dict[str, float] = json.loads(path.read_text("utf-8"))
    return kept


def _estimate(workspace: Workspace, dataset: str, recipe: Recipe) -> dict[str, float]:
    """Return the estimated seconds of M1 and M4."""
    corpus = Corpus.open(workspace.folder("corpus", dataset))
    store = workspace.folder("tokens", dataset) / store_name(recipe.encoder.encoder.tokenizer)
    tokenizer = TextTokenizer.from_file(recipe.encoder.encoder.tokenizer, store / TOKENIZER)
    encoder = build_encoder(recipe.encoder.encoder, tokenizer.vocabulary_size, recipe.encoder.seed)
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")
    estimate = {}
    if recipe.encoder.epochs:
        task = task_of(recipe.encoder, encoder, corpus, store)
        if recipe.encoder.negatives.searches:
            _search_anything(task, recipe.encoder.negatives)
        estimate["encoder"] = recipe.encoder.epochs * _epoch_seconds(task)
    if recipe.classifier.epochs:
        table = _table_task(corpus, recipe, encoder.width)
        table.start_epoch(0)  # a source that draws from a tree fits it now
        documents = sum(
            len(rows)
            for rows in trainings(corpus, refit=refits(corpus, recipe.classifier), enough=recipe.fusion.rows).values()
        )
        estimate["classifier"] = documents / len(table.doc_ND) * recipe.classifier.epochs * _epoch_seconds(table)
    return estimate


def _search_anything(task: EncoderTask, config: NegativesConfig) -> None:
    """Give every document hard negatives, random ones: a step costs as much with them."""
    random, hard = generator(task.seed, "budget-hard"), max(config.search, config.hard)
    found = random.integers(0, task.data.truth.num_labels, (len(task.data.rows_N), hard), dtype=np.int32)
    task.negatives.load({**task.negatives.arrays(), "hard": found})


def _table_task(corpus: Corpus, recipe: Recipe, width: int) -> ClassifierTask:
    """Return M4 on random vectors and random batches: what a step costs depends on neither."""
    config = recipe.classifier
    rows = corpus.rows(TRAIN)
    truth = corpus.labels.rows(rows)
    random = generator(config.seed, "budget")
    order = OrderConfig(kind="random", batch_size=config.order.batch_size, cluster_size=1)
    return ClassifierTask(
        random.standard_normal((len(rows), width), dtype=np.float32),
        truth,
        LabelTable(torch.from_numpy(random.standard_normal((truth.num_labels, width), dtype=np.float32)), config.table),
        ORDERS["random"](order, len(rows), config.seed),
        NEGATIVES[config.negatives.kind](config.negatives, truth, config.seed),
        config.loss.build(),
        config.dropout,
        config.seed,
    )


def _epoch_seconds(task: Task) -> float:
    """Return the seconds of an epoch by the median of a few steps on batches of the first epoch.

    Without a GPU they are counted while this thread runs, not while it waits for its turn: other work on the machine
    then makes an estimate longer by half, where by the clock on the wall it was three times as long.
    """
    now = time.perf_counter if torch.cuda.is_available() else time.thread_time
    batches = task.batches(0)
    times, began = [], time.perf_counter()
    for step in range(_WARM + _TIMED):
        started = now()
        task.step(batches[step % len(batches)], step, 0.0)
        times.append(now() - started)
    waited = (time.perf_counter() - began) / max(sum(times), 1e-9)
    if waited > _BUSY:
        report(f"budget: steps took {waited:.1f} times as long as they run, for other work runs here; so will training")
    return len(batches) * float(np.median(times[_WARM:]))
