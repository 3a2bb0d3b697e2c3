"""Stage leaderboard: compares all evaluated recipes of a dataset: intervals, costs, a test against the best."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xc_core.chain.context import Context
from xc_core.errors import MissingError, XCError
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.leaderboard import METRICS, write_leaderboard
from xc_core.seeds import generator

_RESAMPLES: Final = 2000


def run(context: Context[None]) -> None:
    """Collect the evaluations, test each against the best, write the table."""
    others = context.others
    if others is None:
        raise MissingError("no experiments", expected="a dataset with experiments", do="xc train")
    evaluated: dict[str, Evaluation] = {}
    for recipe in others.recipes:
        try:
            evaluated[recipe] = others.open(recipe, Evaluation)
        except XCError as error:
            context.report(f"leaderboard: {recipe} is left out: {error.found}")
    if not evaluated:
        raise MissingError(
            f"no evaluated recipe of {context.run.dataset}",
            expected="at least one that is up to date",
            do=f"xc train --dataset {context.run.dataset} --recipe NAME",
        )
    rows = [_row(recipe, found, others.costs(recipe)) for recipe, found in evaluated.items()]
    rows.sort(key=lambda row: -(row["P_at_1"] or 0.0))
    best = rows[0]["recipe"]
    for row in rows:
        row["p_value"] = None if row["recipe"] == best else _p_value(evaluated[row["recipe"]], evaluated[best])
    write_leaderboard(context.build, rows, context.run.dataset)
    context.report(f"leaderboard: {len(rows)} recipes, best by P@1 is {best}")


def _row(recipe: str, found: Evaluation, costs: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return metrics, intervals and costs of one recipe."""
    trained = [costs[stage].get("train_seconds") for stage in ("encoder", "classifier")]
    mined = sum(costs[stage].get("mining_seconds", 0.0) for stage in ("encoder", "classifier"))
    known = [seconds for seconds in trained if seconds is not None]
    intervals, recalls = found.report["intervals"], found.report["index_recall"]
    return {
        "recipe": recipe,
        **{name: found.metrics[name] for name in METRICS},
        "P_at_1_low": intervals["P_at_1"][0],
        "P_at_1_high": intervals["P_at_1"][1],
        "PSP_at_5_low": intervals["PSP_at_5"][0],
        "PSP_at_5_high": intervals["PSP_at_5"][1],
        "train_seconds": sum(known) if known else None,
        "mining_share": mined / sum(known) if known and sum(known) else None,
        "peak_memory_mb": max((cost.get("peak_memory_mb", 0.0) for cost in costs.values()), default=None),
        "latency_p50_ms": costs["evaluation"].get("latency_p50_ms"),
        "latency_p99_ms": costs["evaluation"].get("latency_p99_ms"),
        "index_recall": min(recalls.values(), default=None),
    }


def _p_value(ours: Evaluation, theirs: Evaluation) -> float:
    """Return a two-sided paired randomisation p-value of P@1."""
    own, other = ours.figures(), theirs.figures()
    if own is None or other is None:
        return float("nan")
    difference = own.num["P_at_1"] - other.num["P_at_1"]
    observed = abs(float(difference.sum()))
    rng = generator(0, "leaderboard")
    changed = difference[difference != 0]
    draws = [abs(float((rng.integers(0, 2, len(changed)) * 2 - 1) @ changed)) for _ in range(_RESAMPLES)]
    return (1 + int(np.sum(np.array(draws) >= observed - 1e-9))) / (1 + _RESAMPLES)
