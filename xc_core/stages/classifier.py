"""Stage classifier (M3 and M4): a row for every label, started at its text's vector, trained on frozen vectors.

With ``refit`` the final training uses validation documents too, and held-out trainings before it leave one half of them
out (``data.folds``). With an encoder that has seen them there is only the final training. Test documents are never
read.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from xc_core import artifacts, manifests
from xc_core.chain.context import Context
from xc_core.classifiers import LabelTables, TableHead, TablesWriter, foreseen_rows
from xc_core.cluster import Clusters
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import Fold, folds
from xc_core.data.history import TrainedOn
from xc_core.data.labels import LabelMatrix
from xc_core.data.learnt import Learnt
from xc_core.data.names import old_places, row_labels
from xc_core.devices import Device
from xc_core.distributed import World
from xc_core.encoders import TrainedEncoder
from xc_core.environment import checkpoint_seconds
from xc_core.errors import MovedError, XCError
from xc_core.sampling import Documents, Noise
from xc_core.sampling.hard import HardNegatives
from xc_core.shapes import F32, I64, Bool, as_slice
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings, TableData, table_task
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

_RETRAIN: Final = "train the classifier: xc run classifier, without --refresh"


@dataclass(frozen=True)
class FoldInputs:
    """The inputs of every fold."""

    corpus: Corpus
    embeddings: Embeddings
    joint_LD: F32 | None
    """Rows that were trained with the encoder."""
    logits: bool
    """True if products with these rows are logits; False if the rows are unit vectors."""

    @property
    def starts_LD(self) -> F32:
        """The initial rows, memory-mapped: the label texts' vectors, or the rows that were trained with the encoder."""
        return self.embeddings.starts_LD if self.joint_LD is None else self.joint_LD


@dataclass(frozen=True)
class FoldResult:
    """Result of one fold."""

    rows: F32 | TableHead
    history: History
    noise: Noise | None
    batches: list[I64] | None
    num_updated: int
    """Rows that were updated."""


def run(context: Context[ClassifierSettings]) -> None:
    """Train every fold and write the rows as a service scores them; with 0 epochs, write the initial rows."""
    settings = context.settings
    trained = context.read(TrainedEncoder)
    corpus = context.read(Corpus)
    inputs = FoldInputs(corpus, context.read(Embeddings), _joint_rows(trained, corpus), not trained.unit_rows)
    all_folds = folds(corpus, refit=settings.refit, enough=settings.enough, seen=trained.saw_validation)
    writer, history = TablesWriter(context.build, writes=World.from_environment().first), History()
    costs = {"train_seconds": 0.0, "mining_seconds": 0.0}
    for fold in all_folds:
        result = _train(context, inputs, fold)
        writer.fold(fold, result.rows, result.noise)
        if fold.final:
            history = result.history
            if result.batches is not None:
                writer.batches(result.batches, len(fold.documents(corpus)))
            context.build.facts["rows_trained"] = result.num_updated
        costs["train_seconds"] += result.history.seconds
        costs["mining_seconds"] += result.history.refresh_seconds
        del result  # the table, before the next fold has its own
    unit = settings.table.unit if settings.epochs > 0 or trained.rows_LD is None else trained.unit_rows
    augment = settings.augment and settings.epochs > 0  # without epochs no result depends on the setting
    documents = TrainedOn.of(corpus, validation=all_folds[-1].refit, augment=augment)
    biased = bool(settings.epochs and settings.bias.lr)
    results = history.results() | documents.recorded()
    writer.finish(all_folds, row_labels(corpus), _learnt(context, corpus, trained), results, unit=unit, biased=biased)
    context.costs.update(costs)


def _learnt(context: Context[ClassifierSettings], corpus: Corpus, trained: TrainedEncoder) -> Learnt:
    """Return what the rows learn from, and what their encoder learnt from if earlier rows had the same one."""
    learnt, encoder = Learnt.of(corpus), manifests.read_manifest(context.inputs["encoder"]).digest()
    if not trained.was_trained or artifacts.read_made(context.previous).depends.get("encoder") != encoder:
        return learnt
    with suppress(XCError):
        return learnt.with_train_of(LabelTables.open(context.previous).learnt())
    return learnt


def _joint_rows(trained: TrainedEncoder, corpus: Corpus) -> F32 | None:
    """Return the rows that were trained with the encoder; raise MovedError if they belong to other labels."""
    if trained.rows_LD is None:
        return None
    do = "train the encoder: xc run encoder; or keep the rows of the classifier: xc run classifier --refresh"
    names, size = row_labels(corpus), len(trained.rows_LD)
    trained_labels = trained.row_labels
    if trained_labels is None or old_places(names, trained_labels, do=do).to_list() != list(range(size)):
        raise MovedError(
            f"{len(names)} labels, and rows trained along with the encoder for {size} others or in another order",
            expected="the labels that the encoder was trained on, in the same order",
            do=do,
        )
    return np.asarray(trained.rows_LD)


def _train(context: Context[ClassifierSettings], inputs: FoldInputs, fold: Fold) -> FoldResult:
    """Train on the documents of one fold."""
    settings = context.settings
    if settings.epochs == 0:
        return FoldResult(inputs.starts_LD, History(), None, None, 0)
    device, world = Device.chosen(), World.from_environment()
    task = table_task(settings, _data(context, inputs, fold), device, world)
    plan = Plan.on(device, settings.epochs, settings.warmup, checkpoint_seconds(), world, task.head.combined)
    folder = context.run.checkpoints / fold.name
    history = fit(task, plan, Checkpoints(folder, context.run.fingerprint, world, context.run.check))
    num_updated = int(world.summed((task.head.table.steps_L > 0).sum()))
    # an order that adapts has only the clusters of its last refresh left
    audited = math.ceil(settings.epochs) - 1 if settings.order.adapts else 0
    batches = task.batches(audited) if fold.final else None
    return FoldResult(task.head, history, task.negatives.noise(), batches, num_updated)


def _data(context: Context[ClassifierSettings], inputs: FoldInputs, fold: Fold) -> TableData:
    """Return the training data of a fold."""
    corpus, embeddings, rows_N = inputs.corpus, inputs.embeddings, fold.documents(inputs.corpus)
    truth, filters = corpus.labels.rows(rows_N), corpus.filters.rows(rows_N)
    doc_ND: F32 = embeddings.documents_ND[rows_N]
    if context.settings.augment:
        size = corpus.num_labels
        doc_ND = np.concatenate([doc_ND, embeddings.labels_LD])
        truth, filters = truth.above(LabelMatrix.identity(size)), filters.above(LabelMatrix.none(size, size))
    documents = Documents(
        truth,
        filters,
        clusters=lambda: context.read(Clusters).among(rows_N),
        hard=lambda: context.read(HardNegatives).of(rows_N),
    )
    scaled = inputs.logits and not context.settings.table.unit  # the loss divides products with rows by its divisor
    factor = context.settings.loss.divisor if scaled else 1.0
    return TableData(doc_ND, inputs.starts_LD, embeddings.labels_LD, documents, factor, context.build.path)


def refresh(context: Context[ClassifierSettings]) -> None:
    """Keep every row whose label is still there, by uid; predict a new label's row from its text's vector.

    The prediction learns from trained rows only, so labels that are added one by one get the same rows as labels
    that are added together. Raises MovedError if the rows learnt from documents that are test, or held out, now.
    """
    corpus, embeddings = context.read(Corpus), context.read(Embeddings)
    tables = LabelTables.open(context.previous)
    names = row_labels(corpus)
    do = f"append new labels at the end, or give labels uids; or {_RETRAIN}"
    positions = old_places(names, tables.labels(), do=do)
    learnt_L = ~positions.cast(pl.Int64).fill_null(-1).is_in([-1, *tables.foreseen]).to_numpy()
    writer = TablesWriter(context.build, foreseen=np.flatnonzero(~learnt_L).tolist())
    settings, seen = context.settings, context.read(TrainedEncoder).saw_validation
    all_folds = folds(corpus, refit=settings.refit, enough=settings.enough, seen=seen)
    _check_same_folds(all_folds, tables.folds)
    learnt = tables.learnt()
    if num_seen := learnt.check(corpus, all_folds):
        context.report(f"classifier: the kept rows learnt from {num_seen:,} of the validation documents held out now")
    for fold in all_folds:
        rows_LD = _kept_rows(tables.rows(fold.name), embeddings.starts_LD, positions, learnt_L, unit=tables.unit)
        writer.fold(fold, rows_LD, _kept_noise(tables, fold, positions, needed=not context.settings.loss.unbiased))
    writer.finish(all_folds, names, learnt, tables.history, unit=tables.unit, biased=tables.biased)
    kept, predicted = len(positions) - positions.null_count(), len(writer.foreseen)
    context.build.facts |= {"rows_kept": kept, "rows_new": positions.null_count(), "rows_predicted": predicted}


def _check_same_folds(expected: list[Fold], trained: list[Fold]) -> None:
    """Raise MovedError if the trained folds are not those of the settings."""
    missing = {fold.name for fold in expected} - {fold.name for fold in trained}
    if missing or expected[-1].refit != trained[-1].refit:
        raise MovedError(
            "trained rows of other folds than the settings ask for",
            expected="settings classifier.refit and classifier.enough as they were when the classifier was trained",
            do=_RETRAIN,
        )


def _kept_rows(kept_LD: F32, starts_LD: F32, positions: pl.Series, learnt_L: Bool, *, unit: bool) -> F32:
    """Return the rows in the order of the present labels.

    ``positions`` has the position of each label in ``kept_LD``, null for a new label; ``learnt_L`` is True for a label
    whose row was trained. Raises MovedError if rows and label vectors differ in width, a bias aside.
    """
    biased = kept_LD.shape[1] == starts_LD.shape[1] + 1
    if kept_LD.shape[1] != starts_LD.shape[1] and not biased:
        raise MovedError(
            f"trained rows of width {kept_LD.shape[1]} and label vectors of width {starts_LD.shape[1]}",
            expected="the encoder that the classifier was trained with",
            do=_RETRAIN,
        )
    kept_L, rows_LD = positions.is_not_null().to_numpy(), np.empty((len(starts_LD), kept_LD.shape[1]), np.float32)
    rows_LD[as_slice(np.flatnonzero(kept_L))] = kept_LD[as_slice(positions.drop_nulls().cast(pl.Int64).to_numpy())]
    learnt = as_slice(np.flatnonzero(learnt_L))  # tables are large, and new labels come last
    rows_LD[~kept_L] = foreseen_rows(starts_LD[~kept_L], starts_LD[learnt], rows_LD[learnt], unit=unit)
    return rows_LD


def _kept_noise(tables: LabelTables, fold: Fold, positions: pl.Series, *, needed: bool) -> Noise | None:
    """Return the noise distribution of a fold, or None if it was fitted on other labels.

    Raises MovedError in that case if prediction needs it.
    """
    noise = tables.noise(fold.name)
    if noise is None or positions.to_list() == list(range(noise.num_labels)):
        return noise
    if needed:
        raise MovedError(
            f"{len(positions)} labels, and a noise distribution over {noise.num_labels} others or in another order",
            expected="the labels that the classifier was trained on, in the same order",
            do=_RETRAIN,
        )
    return None
