"""Estimates how long a recipe takes on this machine, from a few timed steps, and scales epochs to a budget.

The timed objects are those that a training builds (``encoder_task``, ``table_task``), and the scores themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from xc_core import manifests, memory
from xc_core.chain.costs import processor
from xc_core.chain.experiment import Experiment
from xc_core.chain.fingerprints import input_folder, outside_digests
from xc_core.chain.kept import TRAINED
from xc_core.chain.registry import STAGES
from xc_core.chain.workspace import Workspace
from xc_core.cluster import cluster_sizes
from xc_core.data.corpus import Corpus
from xc_core.data.folds import folds
from xc_core.data.splits import TRAIN
from xc_core.data.tokens import SIDES, Tokenised, TokenStore
from xc_core.devices import Device
from xc_core.encoders import Encoder, build_encoder, embed_rows
from xc_core.errors import UsageError
from xc_core.params import in_use
from xc_core.planning.data_size import DataSize
from xc_core.planning.frozen import frozen_share
from xc_core.planning.stage_costs import Case
from xc_core.planning.step_memory import keeps_activations
from xc_core.progress import quiet, report
from xc_core.recipes import Recipe
from xc_core.sampling import Documents, load_random
from xc_core.scores import Sample, ScoreData
from xc_core.seeds import generator
from xc_core.train.classifier import TableData, table_task
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.state import Task

_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_FIXED: Final = ("encoding", "scores")
"""Parts of an estimate whose time is fixed; that of the others, the trainings (``TRAINED``), grows with the epochs."""
_WARMUP_STEPS, _TIMED_STEPS = 2, 6
"""Steps before the clock starts, and steps that are timed."""
_BUSY_RATIO: Final = 1.5
"""If a step takes this many times its running time by the wall clock, other processes are reported."""
_OVER_BUDGET: Final = 2.0
"""A run that takes this many times its budget is worth a warning."""
_MIN_TRAINING_SHARE: Final = 0.25
"""Share of a budget that trainings get even if encoding and scores leave less."""
_TIMED_TEXTS: Final = 1_024
"""Texts per side whose encoding is timed."""
_SAMPLE_DOCUMENTS: Final = 8_000
"""Documents that the timed scores are fitted on."""
_WARMUP_TEXTS: Final = 64
"""Texts encoded, and documents fitted on, before the clock starts: first calls import and allocate."""
_CLUSTER_SIZE: Final = 8
_HARD_NEGATIVES: Final = 20
"""Documents per cluster and hard negatives per document of the random data on which M4 is timed."""


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as 90s, 10m or 1.5h; raise UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found or float(found[1]) == 0:
        raise UsageError(f"--budget {text}", expected="a duration above 0: 90s, 10m, 1.5h; or none", do="fix the value")
    return float(found[1]) * _UNIT_SECONDS[found[2]]


def scaled_epochs(
    workspace: Workspace, experiment: Experiment, seconds: float, *, again: bool = False
) -> dict[str, Any]:
    """Return changes that scale the epochs of M1 and M4 alike, so that a model is trained in about ``seconds``.

    The estimate counts the steps of both, the encoding of all texts and the fitting of scores that report a cost, but
    not search, fusion and evaluation. A recipe that needs less is not changed. If encoding and scores leave less than a
    quarter of ``seconds``, the trainings get that quarter. Epochs keep three figures. The warm-up before the first
    clustering or search shrinks too. An estimate is made once per dataset and settings, so that the same budget gives
    the same epochs and a killed training resumes; ``again`` makes a new one. Nothing is timed for a recipe without
    epochs.
    """
    recipe = experiment.recipe
    if not any(getattr(recipe, name).epochs for name in TRAINED):
        report(f"budget: {recipe.name} has no epochs to scale; xc plan estimates its time")
        return {}
    costs = _cached_estimate(workspace, experiment, again=again)
    steps, fixed = (sum(costs.get(part, 0.0) for part in names) for names in (TRAINED, _FIXED))
    share = min(max(seconds - fixed, _MIN_TRAINING_SHARE * seconds) / steps, 1.0) if steps else 1.0
    fixed_parts = "encoding and scores" if costs.get("scores") else "encoding"
    report(
        f"budget: {recipe.name} is estimated at {steps + fixed:.0f} s on this machine, {fixed:.0f} s of it for "
        f"{fixed_parts}; {seconds:.0f} s are allowed" + (f", so epochs are scaled by {share:.3g}" if share < 1 else "")
    )
    total = fixed + share * steps
    if total > 1.01 * seconds:
        report(f"budget: {fixed_parts} cannot be shortened, so it will take about {total:.0f} s")
    if total > _OVER_BUDGET * seconds:
        report(f"warning: that is {total / seconds:.1f} times the budget; xc plan shows every stage")
    if share == 1.0:
        return {}
    report("budget: a larger --budget trains more of the epochs, --budget none all of them")
    epochs = {name: getattr(recipe, name).epochs for name in TRAINED}
    scaled = {name: {"epochs": float(f"{full * share:.3g}")} for name, full in epochs.items() if full}
    if recipe.encoder.epochs:
        scaled["encoder"] |= shortened(recipe.encoder, scaled["encoder"]["epochs"])
    return scaled


def training_seconds(workspace: Workspace, experiment: Experiment) -> dict[str, float]:
    """Return the seconds of the steps of M1 and M4 on the corpus of ``experiment``, timed now and not kept."""
    return _Estimate.of(workspace, experiment).trainings()


def shortened(settings: EncoderSettings, epochs: float) -> dict[str, Any]:
    """Return changes that let clusters and searches begin in the last of fewer ``epochs`` at the latest.

    Otherwise recipes that differ only in clusters or searches would be the same training.
    """
    changes = {
        "order": settings.order.shortened(epochs),
        "negatives": settings.negatives.shortened(epochs, of=settings.epochs),
    }
    return {part: values for part, values in changes.items() if values}


def _cached_estimate(workspace: Workspace, experiment: Experiment, *, again: bool) -> dict[str, float]:
    """Return the estimate of an earlier call on this machine; make and store one if there is none."""
    recipe = experiment.recipe
    settings = in_use((recipe.encoder, recipe.classifier, recipe.scores))
    tokens = manifests.read_manifest(input_folder(workspace, "tokens", experiment), "tokens").digest()
    device = Device.chosen()
    accelerator = [] if device.is_cpu else [device.in_words()]
    twice = ["texts are encoded twice"] if device.is_cpu and _is_short_of_memory(workspace, experiment) else []
    model = [*filter(None, outside_digests(workspace, STAGES["encoder"], experiment).values())]
    parts = {*_FIXED, *(name for name in TRAINED if getattr(recipe, name).epochs)}

    def file_of(*machine: str) -> Path:
        content = json.dumps([workspace.digest("corpus", experiment.dataset.name), tokens, settings, *machine])
        key = hashlib.sha256(content.encode()).hexdigest()[:16]
        return workspace.state / "budget" / f"{experiment.dataset.name}-{key}.json"

    path = file_of(*model, *accelerator, *twice, processor())
    estimate = None if again else _read_estimate(path, parts)
    if not model and not twice and estimate is None and not again:
        # up to 0.2.0 the name had no processor; a training that was killed then has these epochs
        estimate = _read_estimate(file_of(*accelerator), parts)
    if estimate is None:
        estimate = _Estimate.of(workspace, experiment).seconds()
        workspace.write(path, json.dumps(estimate) + "\n")
    else:
        report("budget: using the timings of an earlier call; --force times, and trains, again")
    return estimate


def _is_short_of_memory(workspace: Workspace, experiment: Experiment) -> bool:
    """Return True if M1 will encode texts twice on this machine (GradCache), so that a step takes longer."""
    tokens = Tokenised.open(input_folder(workspace, "tokens", experiment))
    world = DataSize.of(workspace.open(Corpus, experiment.dataset.name), tokens, experiment.recipe.encoder)
    return not keeps_activations(Case(experiment.recipe, world, 0, memory=memory.total_bytes()))


def _read_estimate(path: Path, parts: set[str]) -> dict[str, float] | None:
    """Return a stored estimate of these parts; None if there is none or it is damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
        estimate = {part: float(content[part]) for part in parts}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return estimate if all(0 <= seconds < math.inf for seconds in estimate.values()) else None


@dataclass(frozen=True)
class _Estimate:
    """What an estimate times: an encoder on the corpus, and trainings of M4 on ``sizes`` documents."""

    recipe: Recipe
    corpus: Corpus
    tokens: Tokenised
    encoder: Encoder
    sizes: tuple[int, ...]
    folder: Path
    """Where an unnamed file may be: in the project, but beside no artefact, which may be read-only."""

    @classmethod
    def of(cls, workspace: Workspace, experiment: Experiment) -> _Estimate:
        """Open the corpus and the tokens, and build the encoder."""
        recipe, name = experiment.recipe, experiment.dataset.name
        corpus = workspace.open(Corpus, name)
        tokens = Tokenised.open(input_folder(workspace, "tokens", experiment))
        encoder = build_encoder(recipe.encoder.encoder, tokens.tokenizer.vocabulary_size, recipe.encoder.seed)
        encoder.on(Device.chosen())
        settings, seen = recipe.classifier, recipe.encoder.sees_validation
        trained_folds = folds(corpus, refit=settings.refit, enough=settings.enough, seen=seen)
        sizes = tuple(len(fold.documents(corpus)) for fold in trained_folds)
        return cls(recipe, corpus, tokens, encoder, sizes, workspace.root)

    def seconds(self) -> dict[str, float]:
        """Return the estimated seconds of encoding and scores, and of each training."""
        documents, labels = (encoding_seconds(self.encoder, self.tokens.side(side)) for side in SIDES)
        encoding = documents + labels
        if self.recipe.encoder.epochs:
            task = self._encoder_task
            initial_share = 1.0 if task.fill_banks else frozen_share(self.recipe.encoder) * task.keeps_states
            trained = len(task.data.rows_N) / self.corpus.num_documents
            encoding += initial_share * (documents * trained + labels)
        return {"encoding": encoding, "scores": self._scores(), **self.trainings()}

    def trainings(self) -> dict[str, float]:
        """Return the estimated seconds of the steps of M1 and M4, of those that the recipe trains."""
        seconds = {}
        if epochs := self.recipe.encoder.epochs:
            seconds["encoder"] = epochs * _epoch_seconds(self._encoder_task)
        if self.recipe.classifier.epochs:
            seconds["classifier"] = self._classifier()
        return seconds

    @cached_property
    def _encoder_task(self) -> EncoderTask:
        """Return M1 with random hard negatives if it searches for any, or a source that is fitted on random vectors.

        A step costs as much with them as in a training. The layers that are not trained are computed for the texts of
        the timed batches alone.
        """
        settings = self.recipe.encoder
        with quiet():  # the training reports by itself that it keeps fewer activations
            task = encoder_task(settings, self.encoder, EncoderData.of(self.corpus, self.tokens, settings))
        random = generator(settings.seed, "budget-hard")
        if settings.negatives.searches is not None and "hard" in task.negatives.arrays():
            shape = (len(task.data.rows_N), settings.negatives.kept)
            load_random(task.negatives, shape, self.corpus.num_labels, random)
        elif settings.negatives.adapts:
            vectors_ND = random.standard_normal((len(task.data.rows_N), self.encoder.width), np.float32)
            task.negatives.refresh(0, vectors_ND, task.vectors)
        task.keep_states(self.folder, timed=_WARMUP_STEPS + _TIMED_STEPS)
        return task

    def _classifier(self) -> float:
        """Return the seconds of M4 on random vectors, clusters and hard negatives: the cost of a step is the same."""
        settings, rows = self.recipe.classifier, self.corpus.rows(TRAIN)
        random, size, labels = generator(settings.seed, "budget"), len(rows), self.corpus.num_labels
        documents = Documents(
            self.corpus.labels.rows(rows),
            clusters=lambda: (np.arange(size), cluster_sizes(size, _CLUSTER_SIZE)),
            hard=lambda: random.integers(0, labels, (size, _HARD_NEGATIVES), dtype=np.int32),
        )
        doc_ND, rows_LD = (random.standard_normal((n, self.encoder.width), np.float32) for n in (size, labels))
        task = table_task(settings, TableData(doc_ND, rows_LD, rows_LD, documents), Device.chosen())
        task.start_epoch(0)  # a source that draws from a tree fits it now
        added = labels if settings.augment else 0
        epochs = sum(fold_size + added for fold_size in self.sizes) / size * settings.epochs
        return epochs * _epoch_seconds(task)

    def _scores(self) -> float:
        """Return the seconds of fitting the scores on all folds, by the wall clock, because they use threads."""
        sample = self._sample()
        return float(sum(score.cost(sample) for score in self.recipe.scores.values()))

    def _sample(self) -> Sample:
        """Return a sample of train and validation documents, with as large a share of the label texts."""
        random, published = generator(0, "budget-words"), self.corpus.published_rows()
        rows = np.sort(random.choice(published, min(_SAMPLE_DOCUMENTS, len(published)), replace=False))
        left_out = random.random(self.corpus.num_labels) >= len(rows) / len(published)

        def label_texts() -> list[str]:
            return ["" if out else text for text, out in zip(self.corpus.label_texts(), left_out, strict=True)]

        def data(rows: Any) -> ScoreData:
            return ScoreData(
                self.corpus.labels.rows(rows),
                texts=lambda: self.corpus.texts_of("documents", rows),
                label_texts=label_texts,
            )

        return Sample(data(rows), data(rows[:_WARMUP_TEXTS]), self.sizes)


def encoding_seconds(encoder: Encoder, store: TokenStore) -> float:
    """Return the seconds that the texts of a side take to encode, from the tokens of a sample."""
    lengths = store.lengths(np.arange(len(store)), encoder.config.max_length)
    random = generator(0, "budget-encoding")
    rows = np.sort(random.choice(len(store), min(_TIMED_TEXTS, len(store)), replace=False))
    out = np.empty((len(rows), encoder.width), np.float32)
    embed_rows(encoder, store, rows[:_WARMUP_TEXTS], out[:_WARMUP_TEXTS], "timing the encoding")
    clock = Device.chosen().clock()
    start = clock()
    embed_rows(encoder, store, rows, out, "timing the encoding")
    return (clock() - start) * float(lengths.sum() / max(lengths[rows].sum(), 1))


def _epoch_seconds(task: Task) -> float:
    """Return the seconds of an epoch, from the median of a few steps on batches of the first epoch."""
    clock = Device.chosen().clock()
    batches = task.batches(0)
    times, wall_start = [], time.perf_counter()
    for step in range(_WARMUP_STEPS + _TIMED_STEPS):
        start = clock()
        task.step(batches[step % len(batches)], step, 0.0)
        times.append(clock() - start)
    slowdown = (time.perf_counter() - wall_start) / max(sum(times), 1e-9)
    if slowdown > _BUSY_RATIO:
        report(
            f"budget: other processes are running, so training the {task.name} may take {slowdown:.1f} times as long "
            "as estimated"
        )
    return len(batches) * float(np.median(times[_WARMUP_STEPS:]))
