"""Stage model: packs all that a service needs into one folder; refuses a model below its floors."""

from __future__ import annotations

import numpy as np
import polars as pl

from xc_core.chain.context import Context
from xc_core.data.corpus import Corpus
from xc_core.encoders import TrainedEncoder
from xc_core.errors import RefusedError
from xc_core.fusion import FittedFusion
from xc_core.infer.bundle import ModelFacts, Parts, write_model
from xc_core.metrics.evaluation import Evaluation
from xc_core.recipes.settings import ModelSettings
from xc_core.scores import Scores


def run(context: Context[ModelSettings]) -> None:
    """Check the floors, then pack."""
    evaluation, scores, corpus = context.read(Evaluation), context.read(Scores), context.read(Corpus)
    _check_floors(context, evaluation.metrics, scores.recalls)
    facts = ModelFacts(
        dataset=context.run.dataset,
        recipe=context.run.recipe,
        metrics=evaluation.metrics,
        test=corpus.test_digest(),
        max_drop=context.settings.max_drop,
    )
    labels = corpus.table("labels").with_columns(pl.col("title").fill_null(""))
    parts = Parts(context.read(TrainedEncoder), scores, context.read(FittedFusion), labels)
    write_model(context.build, parts, facts)
    context.report(f"model: packed, {sum(p.stat().st_size for p in context.build.path.rglob('*')) / 1e6:.0f} MB")


def _check_floors(context: Context[ModelSettings], metrics: dict[str, float], recalls: dict[str, float]) -> None:
    """Raise RefusedError for a model below its floors."""
    floors = [("P@1 on test documents", metrics["P_at_1"], "min_P_at_1")]
    floors += [(f"index recall of the score {name}", recall, "min_index_recall") for name, recall in recalls.items()]
    for name, value, setting in floors:
        floor = getattr(context.settings, setting)
        if value is None or not np.isfinite(value) or value < floor:
            raise RefusedError(
                f"a model with {name} of {'no number' if value is None else f'{value:.4g}'}",
                expected=f"at least {floor:g}, the floor model.{setting} of the recipe",
                do=f"look at the evaluation of {context.run.title}; lower the floor only if that is right",
            )
