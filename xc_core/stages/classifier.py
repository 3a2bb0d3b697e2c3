"""Stage classifier (M3 and M4): a row for every label, started at its text's vector, trained on frozen vectors.

Takes: corpus, embeddings, clusters, negatives.                    Gives: rows.npy (L x D, unit), history.json.
May import: classifiers, data, losses, sampling, train, stages.runner.  Never: reads validation or test rows.
"""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import torch

from xc_core.artifacts import verify
from xc_core.classifiers import LabelTable
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.distributed import alone
from xc_core.errors import MovedError
from xc_core.sampling import NEGATIVES
from xc_core.shapes import F32, Embeddings
from xc_core.stages.clusters import batch_order
from xc_core.stages.encoder import summary
from xc_core.stages.runner import Context
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.loop import Plan, fit


def run(context: Context) -> None:
    """Train and write unit rows."""
    alone("the stage classifier")
    config = context.config
    corpus = Corpus.open(context.input("corpus"))
    for name in ("embeddings", "clusters"):
        verify(context.input(name), kind=name)
    rows = corpus.rows(TRAIN)
    truth = corpus.labels.rows(rows)
    doc_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND[rows]
    label_LD = torch.from_numpy(np.array(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND))
    task = ClassifierTask(
        doc_ND,
        truth,
        LabelTable(label_LD, config.table),
        batch_order(context, config, len(rows)),
        NEGATIVES[config.negatives.kind](config.negatives, truth, config.seed),
        config.loss.build(),
        config.dropout,
        config.seed,
    )
    plan = Plan(epochs=config.epochs, warmup=config.warmup, checkpoint_seconds=context.checkpoint_seconds)
    history = fit(task, plan, Checkpoints(context.resume_folder, context.fingerprint))
    unit = torch.nn.functional.normalize(task.table.rows_LD, dim=1).numpy()
    _write(context, corpus, unit, summary(history))
    context.build.facts |= {"steps": len(history.losses), "rows_trained": int((task.table.steps_L > 0).sum())}
    context.costs.update({"train_seconds": history.seconds, "mining_seconds": history.refresh_seconds})


def refresh(context: Context) -> None:
    """Keep every trained row whose label is still there, by uid; a new label's row is its text's vector."""
    corpus = Corpus.open(context.input("corpus"))
    verify(context.input("embeddings"), kind="embeddings")
    folder = context.workspace.folder("classifier", context.experiment.dataset, context.recipe)
    verify(folder, kind="classifier")
    old = pl.read_parquet(folder / "labels.parquet").with_row_index("old")
    new = corpus.table("labels").select("uid").join(old, on="uid", how="left", maintain_order="left")
    known = new["old"].is_not_null().to_numpy()
    rows = np.array(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
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
    context.build.facts |= {
        "steps": len(history["losses"]),
        "rows_kept": int(known.sum()),
        "rows_new": int((~known).sum()),
    }


def _write(context: Context, corpus: Corpus, rows_LD: F32, history: dict[str, object]) -> None:
    """Write rows, the labels they belong to, and the history."""
    np.save(context.build.path / "rows.npy", rows_LD)
    corpus.table("labels").select("uid").write_parquet(context.build.path / "labels.parquet")
    context.build.json("history.json", history)
    context.build.facts |= {"rows": len(rows_LD), "finite": bool(np.isfinite(rows_LD).all())}
