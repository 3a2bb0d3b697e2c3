"""Stage leaderboard: compares all evaluated recipes of a dataset: intervals, costs, a test against the best.

Recipes are grouped by the documents that their encoder was trained on, so that a budget does not look like a method.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xc_core.chain.context import Context
from xc_core.chain.kept import TRAINED
from xc_core.chain.names import first_command
from xc_core.errors import MissingError, XCError
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.leaderboard import group, write_leaderboard
from xc_core.metrics.names import TABLE
from xc_core.seeds import generator
from xc_core.visible import counted

_RESAMPLES: Final = 2000
_FITTING_STAGES: Final = ("scores", "fusion")
"""Stages that fit what a model serves beside its trainings; label trees may take a quarter as long as these."""


def run(context: Context[None]) -> None:
    """Collect the evaluations, test each against the best, write the table."""
    experiments = context.experiments
    assert experiments is not None
    evaluated: dict[str, Evaluation] = {}
    advice: list[str] = []
    for recipe in experiments.recipes:
        try:
            evaluated[recipe] = experiments.open(recipe, Evaluation)
        except XCError as error:
            context.report(f"leaderboard: {recipe} is left out: {error.found}; do this: {error.do}")
            advice.append(error.do)
    if not evaluated:
        raise MissingError(
            f"no evaluated recipe of {context.run.dataset}",
            expected="at least one that is up to date",
            do=advice[0] if advice else first_command(context.run.dataset),
        )
    rows = [
        _row(recipe, evaluation, experiments.costs(recipe), experiments.machines(recipe))
        for recipe, evaluation in evaluated.items()
    ]
    largest = {name: max(row["passes"] for row in rows if row["group"] == name) for name in {r["group"] for r in rows}}
    rows.sort(key=lambda row: (largest[row["group"]], -(row["P_at_1"] or 0.0)))
    best: dict[str, str] = {}
    for row in rows:
        first = best.setdefault(row["group"], row["recipe"])
        row["p_value"] = None if row["recipe"] == first else _p_value(evaluated[row["recipe"]], evaluated[first])
    write_leaderboard(context.build, rows, context.run.dataset)
    names = "; ".join(f"{recipe} ({name})" for name, recipe in best.items())
    context.report(f"leaderboard: {counted(len(rows), 'recipe')}, best by P@1: {names}")


def _row(recipe: str, evaluation: Evaluation, costs: dict[str, dict[str, float]], machines: set[str]) -> dict[str, Any]:
    """Return the row of a recipe: metrics, intervals, training documents and costs."""
    trained = {f"{stage}_seconds": costs[stage].get("train_seconds") for stage in TRAINED}
    mined = sum(costs[stage].get("mining_seconds", 0.0) for stage in TRAINED)
    measured = [seconds for seconds in trained.values() if seconds is not None]
    intervals, recalls, learnt = evaluation.report["intervals"], evaluation.report["index_recall"], evaluation.learnt
    return {
        "recipe": recipe,
        "group": group(learnt.passes),
        "passes": learnt.passes,
        "encoder_learnt_from": learnt.encoder.splits,
        "encoder_documents": learnt.encoder.seen,
        "classifier_learnt_from": "with the encoder" if learnt.joint else learnt.classifier.splits,
        "classifier_documents": learnt.classifier.seen,
        "machines": sorted(machines),
        **trained,
        **{f"{stage}_seconds": costs[stage].get("seconds") for stage in _FITTING_STAGES},
        **{name: evaluation.metrics[name] for name in TABLE},
        "P_at_1_low": intervals["P_at_1"][0],
        "P_at_1_high": intervals["P_at_1"][1],
        "PSP_at_5_low": intervals["PSP_at_5"][0],
        "PSP_at_5_high": intervals["PSP_at_5"][1],
        "train_seconds": sum(measured) if measured else None,
        "mining_share": mined / sum(measured) if measured and sum(measured) else None,
        "peak_memory_mb": max((cost.get("peak_memory_mb", 0.0) for cost in costs.values()), default=None),
        "latency_p50_ms": costs["evaluation"].get("latency_p50_ms"),
        "latency_p99_ms": costs["evaluation"].get("latency_p99_ms"),
        "index_recall": min(recalls.values(), default=None),
    }


def _p_value(ours: Evaluation, theirs: Evaluation) -> float:
    """Return a two-sided paired randomisation p-value of P@1."""
    our_figures, their_figures = ours.figures(), theirs.figures()
    if our_figures is None or their_figures is None:
        return float("nan")
    difference = our_figures.num["P_at_1"] - their_figures.num["P_at_1"]
    observed = abs(float(difference.sum()))
    rng = generator(0, "leaderboard")
    changed = difference[difference != 0]
    draws = [abs(float((rng.integers(0, 2, len(changed)) * 2 - 1) @ changed)) for _ in range(_RESAMPLES)]
    return (1 + int(np.sum(np.array(draws) >= observed - 1e-9))) / (1 + _RESAMPLES)
