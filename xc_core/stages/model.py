"""Stage model: everything serving needs in one folder; refuses a model below its floor.

Takes: the whole chain.                              Gives: a bundle.
May import: bundle, data, encoders, stages.          Never: talks to a registry (the orchestration does).
"""

from __future__ import annotations

import json

import numpy as np
import polars as pl

from xc_core.artifacts import read_manifest, verify
from xc_core.bundle import Parts, write_bundle
from xc_core.data.corpus import Corpus
from xc_core.encoders import load_encoder
from xc_core.errors import RefusedError
from xc_core.progress import report
from xc_core.stages.encoder import tokenizer_of
from xc_core.stages.released import scorer
from xc_core.stages.runner import Context


def run(context: Context) -> None:
    """Check the floors, then pack."""
    metrics = _checked_metrics(context)
    corpus = Corpus.open(context.input("corpus"))
    verify(context.input("encoder"), kind="encoder")
    encoder = load_encoder(context.input("encoder"))
    tokenizer = tokenizer_of(context.input("encoder"), encoder)
    recipe = context.experiment.recipe
    assert recipe is not None
    facts = {
        "dataset": context.experiment.dataset,
        "recipe": recipe.name,
        "metrics": metrics,
        "test": corpus.test_digest(),
        "inputs": {
            name: read_manifest(context.input(name)).digest() for name in context.stage.deps if name != "tokens"
        },
    }
    labels = corpus.table("labels").with_columns(pl.col("title").fill_null(""))
    write_bundle(context.build, Parts(encoder, tokenizer, scorer(context, corpus), labels), recipe.index.rows, facts)
    report(f"model: packed, {sum(p.stat().st_size for p in context.build.path.rglob('*') if p.is_file()) / 1e6:.0f} MB")


def _checked_metrics(context: Context) -> dict[str, float]:
    """Return the metrics on test rows.

    Raises RefusedError below the recipe's floor, or for an index or rows that cannot be served.
    """
    verify(context.input("evaluation"), kind="evaluation")
    metrics: dict[str, float] = json.loads((context.input("evaluation") / "metrics.json").read_text("utf-8"))
    recall: float | None = read_manifest(context.input("index")).facts["recall_by_row"]
    floors = (
        ("P@1 on test documents", metrics["P_at_1"], "min_P_at_1"),
        ("index recall", recall, "min_index_recall"),
    )
    for name, value, setting in floors:
        floor = getattr(context.config, setting)
        if value is None or not np.isfinite(value) or value < floor:
            raise RefusedError(
                f"a model with {name} of {'no number' if value is None else f'{value:.4g}'}",
                expected=f"at least {floor:g}, the floor model.{setting} of the recipe",
                do=f"look at {context.input('evaluation')}; lower the floor in params.yaml only where that is right",
            )
    return metrics
