"""How long a recipe would take here, found by timing a little of all that takes long; and epochs scaled to a budget.

Takes: a workspace whose corpus and tokens are made, an experiment, seconds.  Gives: changes of epochs.
May import: data, encoders, classifiers, fusion, sampling, train, stages.    Never: changes a step; only their number.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch

from xc_core.artifacts import write_file
from xc_core.classifiers import LabelTable
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import SIDES, TokenStore
from xc_core.encoders import Encoder, build_encoder, embed_rows
from xc_core.errors import DataError, MissingError, UsageError
from xc_core.fusion import Lexical, LexicalConfig
from xc_core.progress import report
from xc_core.recipes.base import EncoderStage, Recipe
from xc_core.sampling import NEGATIVES, ORDERS, NegativesConfig, OrderConfig
from xc_core.seeds import generator
from xc_core.stages.clusters import refits, trainings
from xc_core.stages.encoder import TOKENIZER, task_of
from xc_core.stages.workspace import Experiment, Workspace, store_name
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask
from xc_core.train.state import Task

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_STEPS: Final = ("encoder", "classifier")
_REST: Final = ("encoding", "words")
"""What an estimate has seconds of: trainings, which epochs scale, and what they do not."""
_WARM, _TIMED = 2, 6
"""Steps before the clock starts, and those it times."""
_BUSY: Final = 1.5
"""Seconds by the clock on the wall for one of running, above which other work is mentioned."""
_LEAST: Final = 0.25
"""Part of a budget that trainings have, though encoding and label trees leave less."""
_ENCODED: Final = 1_024
"""Texts of a side whose encoding is timed."""
_WORDS: Final = 8_000
"""Documents of the lexical score that is timed."""
_FIRST: Final = 64
"""Texts encoded, and documents of a lexical score, before the clock starts: first calls import and allocate."""
_GROWTH: Final = 1.2
"""A label tree of N documents takes (N / n)^1.2 times as long as one of n: it is deeper too."""


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as 90s, 10m or 1.5h; raise UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found or float(found[1]) == 0:
        raise UsageError(
            f"--budget {text}", expected="a duration above 0: 90s, 10m, 1.5h; or none", do="mend the value"
        )
    return float(found[1]) * _UNITS[found[2]]


def scaled_epochs(
    workspace: Workspace, experiment: Experiment, seconds: float, *, anew: bool = False
) -> dict[str, Any]:
    """Return changes that scale the epochs of M1 and M4 alike, so that a model is trained in ``seconds``, roughly.

    Counted are the steps of both, the encoding of all texts and the label trees of the lexical score, but not search,
    fusion and evaluation. A recipe that needs less is left as it is. Where encoding and trees leave less than a quarter
    of ``seconds``, the trainings have that quarter. Epochs keep three figures. What is counted in epochs before
    clusters or searches begin shrinks with them. An estimate is made once for a dataset and the experiment's settings,
    or ``anew``, so that the same budget gives the same epochs, and a training that was killed goes on.
    """
    recipe = experiment.recipe
    assert recipe is not None
    takes = _remembered(workspace, experiment, recipe, anew=anew)
    steps, rest = (sum(takes.get(part, 0.0) for part in parts) for parts in (_STEPS, _REST))
    share = min(max(seconds - rest, _LEAST * seconds) / steps, 1.0) if steps else 1.0
    what = "encoding and label trees" if "words" in takes else "encoding"
    report(
        f"budget: {recipe.name} would take about {steps + rest:.0f} s here, {rest:.0f} of them for {what}; "
        f"{seconds:.0f} s are allowed" + (f", so its epochs are scaled by {share:.3g}" if share < 1 else "")
    )
    if rest + share * steps > 1.01 * seconds:
        report(f"budget: {what} cannot be shortened, so it will take about {rest + share * steps:.0f} s")
    if share == 1.0:
        return {}
    report("budget: for another, --budget 3h; for all epochs, however long they take, --budget none")
    stages = {"encoder": recipe.encoder.epochs, "classifier": recipe.classifier.epochs}
    scaled = {name: {"epochs": float(f"{epochs * share:.3g}")} for name, epochs in stages.items() if epochs}
    if recipe.encoder.epochs:
        scaled["encoder"] |= shortened(recipe.encoder, scaled["encoder"]["epochs"])
    return scaled


def shortened(stage: EncoderStage, epochs: float) -> dict[str, Any]:
    """Return changes with which clusters and searches still begin in fewer ``epochs``, in their last at least.

    Without them all recipes that differ in these alone would be one and the same training.
    """
    last = math.ceil(epochs) - 1
    changes: dict[str, Any] = {}
    if last < 1:  # vectors to cluster or search come from the first epoch
        return changes
    if stage.order.clusters and stage.order.warmup_epochs > last:
        changes["order"] = {"warmup_epochs": last}
    negatives = stage.negatives
    if negatives.searches and negatives.warmup_epochs > last:
        changes["negatives"] = {"warmup_epochs": last, "ahead": min(negatives.ahead, last - 1)}
    if negatives.curriculum:
        changes.setdefault("negatives", {})["curriculum"] = float(f"{negatives.curriculum * epochs / stage.epochs:.3g}")
    return changes


def _remembered(workspace: Workspace, experiment: Experiment, recipe: Recipe, *, anew: bool) -> dict[str, float]:
    """Return the estimate of an earlier call on this machine, or make one, ``anew`` in any case, and keep it."""
    corpus = workspace.corpus_digest(experiment.dataset)
    counts = f"{corpus} {experiment.tokens} {recipe.encoder} {recipe.classifier} {recipe.fusion.rows}"
    key = hashlib.sha256(counts.encode()).hexdigest()[:16]
    path = workspace.state / "budget" / f"{experiment.dataset}-{key}.json"
    if anew or not path.is_file():
        write_file(path, json.dumps(_estimate(workspace, experiment, recipe)) + "\n")
    else:
        report("budget: by what an earlier call timed here; --force times it, and trains, anew")
    kept: dict[str, float] = json.loads(path.read_text("utf-8"))
    return kept


def _estimate(workspace: Workspace, experiment: Experiment, recipe: Recipe) -> dict[str, float]:
    """Return the estimated seconds of M1 and M4, of encoding and, where there is one, of the lexical score."""
    corpus = Corpus.open(workspace.folder("corpus", experiment.dataset))
    store = workspace.folder("tokens", experiment.dataset) / store_name(recipe.encoder.encoder.tokenizer)
    tokenizer = TextTokenizer.from_file(recipe.encoder.encoder.tokenizer, store / TOKENIZER)
    encoder = build_encoder(recipe.encoder.encoder, tokenizer.vocabulary_size, recipe.encoder.seed)
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")
    folds = trainings(corpus, refit=refits(corpus, recipe.classifier), enough=recipe.fusion.rows)
    sizes = [len(rows) for rows in folds.values()]
    estimate = {}
    if recipe.classifier.lexical.use:
        estimate["words"] = _words_seconds(corpus, recipe.classifier.lexical, experiment.tokens.fields, sizes)
    documents, labels = (_encoding_seconds(encoder, TokenStore.open(store, side)) for side in SIDES)
    estimate["encoding"] = documents + labels
    if recipe.encoder.epochs:
        task = task_of(recipe.encoder, encoder, corpus, store)
        if task.fill_banks:
            estimate["encoding"] += documents * len(task.data.rows_N) / corpus.num_documents + labels
        if recipe.encoder.negatives.searches:
            _search_anything(task, recipe.encoder.negatives)
        estimate["encoder"] = recipe.encoder.epochs * _epoch_seconds(task)
    if recipe.classifier.epochs:
        table = _table_task(corpus, recipe, encoder.width)
        table.start_epoch(0)  # a source that draws from a tree fits it now
        more = corpus.num_labels if recipe.classifier.augment else 0
        epochs = sum(size + more for size in sizes) / len(table.doc_ND) * recipe.classifier.epochs
        estimate["classifier"] = epochs * _epoch_seconds(table)
    return estimate


def _encoding_seconds(encoder: Encoder, store: TokenStore) -> float:
    """Return the seconds that the texts of a side take to encode, by the tokens of some."""
    every = store.lengths(np.arange(len(store)), encoder.config.max_length)
    random = generator(0, "budget-encoding")
    rows = np.sort(random.choice(len(store), min(_ENCODED, len(store)), replace=False))
    out = np.empty((len(rows), encoder.width), np.float32)
    embed_rows(encoder, store, rows[:_FIRST], out[:_FIRST], "timing the encoding")
    now = _clock()
    started = now()
    embed_rows(encoder, store, rows, out, "timing the encoding")
    return (now() - started) * float(every.sum() / max(every[rows].sum(), 1))


def _words_seconds(corpus: Corpus, config: LexicalConfig, fields: tuple[str, ...], sizes: list[int]) -> float:
    """Return the seconds that the lexical scores of trainings on ``sizes`` documents take, by one of some documents.

    Its threads are not this one, so that they are counted by the clock on the wall. Zero where there is nothing to
    learn, or a package lacks, which the stage will say.
    """
    random, published = generator(0, "budget-words"), corpus.rows(TRAIN)
    rows = np.sort(random.choice(published, min(_WORDS, len(published)), replace=False))
    texts = corpus.own_texts("documents", rows, fields)
    labels = corpus.own_texts("labels", np.arange(corpus.num_labels), fields)
    left_out = random.random(len(labels)) >= len(rows) / len(published)
    labels = ["" if out else text for text, out in zip(labels, left_out, strict=True)]
    truth = corpus.labels.rows(rows)
    with suppress(DataError, MissingError):
        Lexical.fit(texts[:_FIRST], truth.rows(np.arange(min(_FIRST, len(rows)))), config)
    started = time.perf_counter()
    try:
        Lexical.fit(texts, truth, config, label_texts=labels)
    except (DataError, MissingError):
        return 0.0
    seconds = time.perf_counter() - started
    return seconds * math.fsum((size / len(rows)) ** _GROWTH for size in sizes)


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
    """Return the seconds of an epoch by the median of a few steps on batches of the first epoch."""
    now = _clock()
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


def _clock() -> Callable[[], float]:
    """Return what times steps and encoding.

    Without a GPU they are counted while this thread runs, not while it waits for its turn: other work on the machine
    then makes an estimate longer by half, where by the clock on the wall it was three times as long.
    """
    return time.perf_counter if torch.cuda.is_available() else time.thread_time
