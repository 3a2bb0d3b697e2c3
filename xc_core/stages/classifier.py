"""Stage classifier (M3 and M4): a row for every label, started at its text's vector, trained on frozen vectors.

Takes: corpus, embeddings, clusters, negatives.  Gives: rows.npy (L x D), history.json, perhaps noise, lexical/.
May import: classifiers, data, fusion, losses, sampling, train, stages.runner.  Never: reads validation or test rows.
"""

from __future__ import annotations

import json
import shutil
import time

import numpy as np
import polars as pl
import torch

from xc_core.artifacts import verify
from xc_core.classifiers import LabelTable
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN
from xc_core.distributed import alone
from xc_core.errors import MovedError
from xc_core.fusion import LEXICAL, Lexical
from xc_core.fusion import NOISE as NOISE_FEATURE
from xc_core.fusion.lexical import require
from xc_core.progress import report
from xc_core.recipes.base import Recipe
from xc_core.sampling import NEGATIVES, save_noise
from xc_core.sampling.noise import FILE as NOISE
from xc_core.shapes import F32, Embeddings
from xc_core.stages.clusters import batch_order
from xc_core.stages.embeddings import STARTS
from xc_core.stages.encoder import ROWS, summary
from xc_core.stages.runner import Context
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History


def run(context: Context) -> None:
    """Train and write the rows as serving scores them; without epochs hand on those they would start from."""
    alone("the stage classifier")
    config = context.config
    if config.lexical.use:
        require()  # said now, not after the training
    corpus = Corpus.open(context.input("corpus"))
    for name in ("embeddings", "clusters"):
        verify(context.input(name), kind=name)
    joint = context.input("embeddings") / ROWS
    rows_LD = np.load(joint) if joint.is_file() else _starts(context)
    history, facts = History(), {"rows_trained": 0}
    if config.epochs > 0:
        if joint.is_file() and not config.table.unit:
            rows_LD = rows_LD * np.float32(config.loss.temperature)  # what was trained along is released as logits
        task = _task(context, corpus, rows_LD)
        plan = Plan(epochs=config.epochs, warmup=config.warmup, checkpoint_seconds=context.checkpoint_seconds)
        history = fit(task, plan, Checkpoints(context.resume_folder, context.fingerprint))
        rows_LD = task.table.released(config.loss.temperature).numpy()
        facts["rows_trained"] = int((task.table.steps_L > 0).sum())
        if (noise := task.negatives.noise()) is not None:
            save_noise(noise, context.build.path)
    _write(context, corpus, rows_LD, summary(history))
    context.build.facts |= {"steps": len(history.losses), **facts}
    context.costs.update({"train_seconds": history.seconds, "mining_seconds": history.refresh_seconds})


def _task(context: Context, corpus: Corpus, rows_LD: F32) -> ClassifierTask:
    """Return the training of a table that starts at ``rows_LD`` on the train documents' vectors."""
    config = context.config
    rows = corpus.rows(TRAIN)
    truth = corpus.labels.rows(rows)
    doc_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND[rows]
    if config.augment:
        labels = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
        doc_ND, truth = np.concatenate([doc_ND, labels]), truth.above(LabelMatrix.identity(len(labels)))
    return ClassifierTask(
        doc_ND,
        truth,
        LabelTable(torch.from_numpy(rows_LD), config.table),
        batch_order(context, config, len(doc_ND)),
        NEGATIVES[config.negatives.kind](config.negatives, truth, config.seed),
        config.loss.build(),
        config.dropout,
        config.seed,
    )


def _starts(context: Context) -> F32:
    """Return where the label's rows start: their texts' vectors, those that face rows where there are two heads."""
    folder = context.input("embeddings")
    name = STARTS if (folder / STARTS).is_file() else "labels.npy"
    return np.array(np.load(folder / name), np.float32)


def _temperature(recipe: Recipe) -> float:
    """Return what rows were divided by when they were released: 1 for unit rows."""
    trained = recipe.classifier.epochs > 0 or not recipe.encoder.joint
    own = recipe.classifier if trained else recipe.encoder
    loss = recipe.classifier.loss if trained else recipe.encoder.table_loss
    return 1.0 if own.table.unit else loss.temperature


def refresh(context: Context) -> None:
    """Keep every trained row whose label is still there, by uid; a new label's row is its text's vector.

    The lexical score is fitted anew: that takes seconds to minutes.
    """
    corpus = Corpus.open(context.input("corpus"))
    verify(context.input("embeddings"), kind="embeddings")
    folder = context.workspace.folder("classifier", context.experiment.dataset, context.recipe)
    verify(folder, kind="classifier")
    old = pl.read_parquet(folder / "labels.parquet").with_row_index("old")
    new = corpus.table("labels").select("uid").join(old, on="uid", how="left", maintain_order="left")
    known = new["old"].is_not_null().to_numpy()
    recipe = context.experiment.recipe
    assert recipe is not None
    rows = _starts(context) / np.float32(_temperature(recipe))
    kept = np.load(folder / "rows.npy")
    if kept.shape[1] != rows.shape[1]:
        raise MovedError(
            f"trained rows of width {kept.shape[1]} and label vectors of width {rows.shape[1]}",
            expected="an encoder that has not changed since the classifier was trained",
            do="train the classifier: xc run classifier, without --refresh",
        )
    rows[known] = kept[new["old"].drop_nulls().to_numpy()]
    history = json.loads((folder / "history.json").read_text("utf-8"))
    _write(context, corpus, rows, history)
    if NOISE_FEATURE in recipe.fusion.needed:
        if not (known.all() and len(kept) == len(rows)):
            raise MovedError(
                f"{len(rows)} labels, and a noise distribution over {len(kept)} others",
                expected="the labels that the classifier was trained on",
                do="train the classifier: xc run classifier, without --refresh",
            )
        shutil.copyfile(folder / NOISE, context.build.path / NOISE)
    context.build.facts |= {
        "steps": len(history["losses"]),
        "rows_kept": int(known.sum()),
        "rows_new": int((~known).sum()),
    }


def _write(context: Context, corpus: Corpus, rows_LD: F32, history: dict[str, object]) -> None:
    """Write rows, the labels they belong to, the history and, where it is asked for, the lexical score."""
    np.save(context.build.path / "rows.npy", rows_LD)
    corpus.table("labels").select("uid").write_parquet(context.build.path / "labels.parquet")
    context.build.json("history.json", history)
    context.build.facts |= {"rows": len(rows_LD), "finite": bool(np.isfinite(rows_LD).all())}
    if context.config.lexical.use:
        _write_lexical(context, corpus)


def _write_lexical(context: Context, corpus: Corpus) -> None:
    """Fit the lexical score on train rows and write it."""
    started = time.monotonic()
    rows = corpus.rows(TRAIN)
    fields = context.experiment.tokens.fields
    texts = corpus.own_texts("documents", rows, fields)
    labels = corpus.own_texts("labels", np.arange(corpus.num_labels), fields)
    fitted = Lexical.fit(texts, corpus.labels.rows(rows), context.config.lexical, context.build.path, labels)
    folder = context.build.path / LEXICAL
    folder.mkdir()
    fitted.save(folder)
    context.build.facts["terms"] = fitted.terms
    context.costs["lexical_seconds"] = round(time.monotonic() - started, 3)
    report(f"classifier: the lexical score knows {fitted.terms:,} terms")
