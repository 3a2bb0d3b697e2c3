"""Stage classifier (M3 and M4): a row for every label, started at its text's vector, trained on frozen vectors.

Takes: corpus, embeddings, clusters, negatives.  Gives: rows.npy (L x D), history.json, perhaps noise, lexical/, held/.
May import: classifiers, data, fusion, losses, sampling, train, stages.runner.  Never: reads test rows.

With ``refit`` what serves has learnt on validation documents too. The fusion needs documents that are as new to the
rows as a test document is, so there are two trainings before, each without one half of the validation documents:
``held/0`` and ``held/1`` have the same files of these. Where one half is as many as the fusion reads, one is enough.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import torch

from xc_core.artifacts import verify
from xc_core.classifiers import LabelTable, foreseen_rows
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.distributed import alone
from xc_core.errors import MovedError
from xc_core.fusion import LEXICAL, Lexical
from xc_core.fusion import NOISE as NOISE_FEATURE
from xc_core.fusion.lexical import require
from xc_core.progress import report
from xc_core.recipes.base import ClassifierStage, Recipe
from xc_core.sampling import NEGATIVES, save_noise
from xc_core.sampling.noise import FILE as NOISE
from xc_core.shapes import F32, I64, Bool, Embeddings
from xc_core.stages.clusters import batch_order, refits, trainings
from xc_core.stages.embeddings import STARTS
from xc_core.stages.encoder import ROWS, summary
from xc_core.stages.runner import Context
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

LABELS: Final = "labels.parquet"
_RENAMED: Final = 0.2
"""Share of labels whose text may have been edited between a training and a refresh."""


@dataclass(frozen=True)
class Fold:
    """The documents that one of the trainings learns on, and the folder for what it makes."""

    rows_N: I64
    folder: Path
    name: str
    """The folder's name, empty for what serves."""


def _folds(context: Context, corpus: Corpus) -> list[Fold]:
    """Return the trainings; the last one makes what serves."""
    made = []
    recipe = context.experiment.recipe
    assert recipe is not None
    for name, rows_N in trainings(corpus, refit=refits(corpus, context.config), enough=recipe.fusion.rows).items():
        folder = context.build.path / name
        folder.mkdir(parents=True, exist_ok=True)
        made.append(Fold(rows_N, folder, name))
    return made


def run(context: Context) -> None:
    """Train and write the rows as serving scores them; without epochs hand on those they would start from."""
    alone("the stage classifier")
    config = context.config
    if config.lexical.use:
        require()  # said now, not after the training
    corpus = Corpus.open(context.input("corpus"))
    for name in ("embeddings", "clusters"):
        verify(context.input(name), kind=name)
    costs = {"train_seconds": 0.0, "mining_seconds": 0.0}
    for fold in _folds(context, corpus):
        history = _train(context, corpus, fold)
        costs["train_seconds"] += history.seconds
        costs["mining_seconds"] += history.refresh_seconds
    context.costs.update(costs)


def _train(context: Context, corpus: Corpus, fold: Fold) -> History:
    """Train on one fold and write what came of it."""
    config = context.config
    joint = context.input("embeddings") / ROWS
    rows_LD = np.load(joint) if joint.is_file() else _starts(context)
    history, facts = History(), {"rows_trained": 0}
    if config.epochs > 0:
        if joint.is_file() and not config.table.unit:
            rows_LD = rows_LD * np.float32(config.loss.temperature)  # what was trained along is released as logits
        task = _task(context, corpus, rows_LD, fold)
        plan = Plan(epochs=config.epochs, warmup=config.warmup, checkpoint_seconds=context.checkpoint_seconds)
        resume = context.resume_folder / (fold.name.replace("/", "-") or "whole")
        history = fit(task, plan, Checkpoints(resume, context.fingerprint))
        rows_LD = task.table.released(config.loss.temperature).numpy()
        facts["rows_trained"] = int((task.table.steps_L > 0).sum())
        if (noise := task.negatives.noise()) is not None:
            save_noise(noise, fold.folder)
    _write(context, corpus, rows_LD, summary(history), fold)
    context.build.facts |= {"steps": len(history.losses), "documents": len(fold.rows_N), **facts}
    return history


def _task(context: Context, corpus: Corpus, rows_LD: F32, fold: Fold) -> ClassifierTask:
    """Return the training of a table that starts at ``rows_LD`` on the vectors of the fold's documents."""
    config = context.config
    truth, filters = corpus.labels.rows(fold.rows_N), corpus.filters.rows(fold.rows_N)
    doc_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND[fold.rows_N]
    if config.augment:
        labels = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
        doc_ND, size = np.concatenate([doc_ND, labels]), len(labels)
        truth, filters = truth.above(LabelMatrix.identity(size)), filters.above(LabelMatrix.none(size, size))
    return ClassifierTask(
        doc_ND,
        truth,
        LabelTable(torch.from_numpy(rows_LD), config.table),
        batch_order(context, config, len(doc_ND), _kept(corpus, config, fold)),
        NEGATIVES[config.negatives.kind](config.negatives, truth, config.seed, filters),
        config.loss.build(),
        config.dropout,
        config.seed,
    )


def _kept(corpus: Corpus, config: ClassifierStage, fold: Fold) -> Bool | None:
    """Return which train and validation documents the fold learns on; None where it is the train documents, once."""
    return np.isin(corpus.published_rows(), fold.rows_N) if refits(corpus, config) else None


def _starts(context: Context) -> F32:
    """Return where the label's rows start: their texts' vectors, those that face rows where there are two heads."""
    folder = context.input("embeddings")
    name = STARTS if (folder / STARTS).is_file() else "labels.npy"
    return np.array(np.load(folder / name), np.float32)


def unit_rows(recipe: Recipe) -> bool:
    """Return whether rows are released as unit vectors."""
    trained = recipe.classifier.epochs > 0 or not recipe.encoder.joint
    return (recipe.classifier if trained else recipe.encoder).table.unit


def refresh(context: Context) -> None:
    """Keep every trained row whose label is still there, by uid; a new label's row is foreseen from its text's vector.

    The lexical score is fitted anew: that takes seconds to minutes.
    """
    corpus = Corpus.open(context.input("corpus"))
    verify(context.input("embeddings"), kind="embeddings")
    folder = context.workspace.folder("classifier", context.experiment.dataset, context.recipe)
    verify(folder, kind="classifier")
    old = pl.read_parquet(folder / LABELS).with_row_index("old")
    new = _labels(context, corpus).join(old, on="uid", how="left", maintain_order="left", suffix="_then")
    known = new["old"].is_not_null().to_numpy()
    _check_names(new.filter(known), folder)
    history = json.loads((folder / "history.json").read_text("utf-8"))
    for fold in _folds(context, corpus):
        own = folder / fold.name
        rows_LD = _kept_rows(context, own, new["old"])
        _keep_noise(context, own, new["old"], fold)
        _write(context, corpus, rows_LD, history, fold)
    context.build.facts |= {
        "steps": len(history["losses"]),
        "rows_kept": int(known.sum()),
        "rows_new": int((~known).sum()),
    }


def _labels(context: Context, corpus: Corpus) -> pl.DataFrame:
    """Return uid and a hash of the text of every label."""
    texts = corpus.own_texts("labels", np.arange(corpus.num_labels), context.experiment.tokens.fields)
    hashes = [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
    return corpus.table("labels").select("uid").with_columns(text=pl.Series(hashes, dtype=pl.String))


def _check_names(known: pl.DataFrame, folder: Path) -> None:
    """Raise MovedError where many labels have another text than when their rows were trained: the uids have moved.

    Line numbers stand in for uids in layouts without any, and a line put in between gives all below it another one.
    """
    if "text_then" not in known.columns or not len(known):
        return  # trained before texts were noted
    other = int((known["text"] != known["text_then"]).sum())
    if other > _RENAMED * len(known):
        raise MovedError(
            f"{other:,} of {len(known):,} labels of {folder} with another text than the one their row was trained for",
            expected=f"at most {_RENAMED:.0%}: uids, or line numbers that stand for them, that name the same labels",
            do="append new labels at the end, or give labels uids; or train: xc run classifier, without --refresh",
        )


def _kept_rows(context: Context, folder: Path, old: pl.Series) -> F32:
    """Return the rows in ``folder``, in the order of the labels now; ``old`` is where each stood, null for a new one.

    Raises MovedError where they are of another width, or where there are none.
    """
    recipe = context.experiment.recipe
    assert recipe is not None
    texts = _starts(context)
    kept = np.load(folder / "rows.npy") if (folder / "rows.npy").is_file() else np.zeros((0, 0), np.float32)
    if kept.shape[1] != texts.shape[1]:
        raise MovedError(
            f"trained rows of width {kept.shape[1]} in {folder} and label vectors of width {texts.shape[1]}",
            expected="an encoder, and a setting classifier.refit, as they were when the classifier was trained",
            do="train the classifier: xc run classifier, without --refresh",
        )
    known, rows = old.is_not_null().to_numpy(), np.empty_like(texts)
    rows[known] = kept[old.drop_nulls().to_numpy()]
    rows[~known] = foreseen_rows(texts[~known], texts[known], rows[known], unit=unit_rows(recipe))
    return rows


def _keep_noise(context: Context, folder: Path, old: pl.Series, fold: Fold) -> None:
    """Hand on the noise distribution, where prediction needs it; raise MovedError where it is over other labels."""
    recipe = context.experiment.recipe
    assert recipe is not None
    if NOISE_FEATURE not in recipe.fusion.needed:
        return
    trained = len(np.load(folder / "rows.npy", mmap_mode="r"))
    if old.null_count() or trained != len(old):
        raise MovedError(
            f"{len(old)} labels, and a noise distribution over {trained} others",
            expected="the labels that the classifier was trained on",
            do="train the classifier: xc run classifier, without --refresh",
        )
    shutil.copyfile(folder / NOISE, fold.folder / NOISE)


def _write(context: Context, corpus: Corpus, rows_LD: F32, history: dict[str, Any], fold: Fold) -> None:
    """Write rows and, where it is asked for, the lexical score; beside what serves also its labels and the history."""
    np.save(fold.folder / "rows.npy", rows_LD)
    if context.config.lexical.use:
        _write_lexical(context, corpus, fold)
    if not fold.name:
        _labels(context, corpus).write_parquet(context.build.path / LABELS)
        context.build.json("history.json", history)
        context.build.facts |= {"rows": len(rows_LD), "finite": bool(np.isfinite(rows_LD).all())}


def _write_lexical(context: Context, corpus: Corpus, fold: Fold) -> None:
    """Fit the lexical score on the fold's documents and write it."""
    started = time.monotonic()
    fields = context.experiment.tokens.fields
    texts = corpus.own_texts("documents", fold.rows_N, fields)
    labels = corpus.own_texts("labels", np.arange(corpus.num_labels), fields)
    truth = corpus.labels.rows(fold.rows_N)
    fitted = Lexical.fit(texts, truth, context.config.lexical, context.build.path, labels)
    folder = fold.folder / LEXICAL
    folder.mkdir()
    fitted.save(folder)
    context.build.facts["terms"] = fitted.terms
    seconds = context.costs.get("lexical_seconds", 0.0) + time.monotonic() - started
    context.costs["lexical_seconds"] = round(seconds, 3)
    report(f"classifier: the lexical score of {len(texts):,} documents knows {fitted.terms:,} terms")
