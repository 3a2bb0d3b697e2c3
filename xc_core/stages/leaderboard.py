"""Stage leaderboard: all evaluated recipes of a dataset in one table: intervals, costs, a test against the best.

Takes: evaluations and what they cost.                      Gives: leaderboard.parquet, .md, .png.
May import: artifacts, metrics, seeds, stages.              Never: evaluates anything itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from xc_core import artifacts
from xc_core.errors import MissingError
from xc_core.metrics.ranking import unpacked
from xc_core.progress import report
from xc_core.seeds import generator
from xc_core.stages import plots
from xc_core.stages.registry import STAGES
from xc_core.stages.runner import Context, read_costs
from xc_core.stages.workspace import Workspace

METRICS: Final = ("P_at_1", "P_at_3", "P_at_5", "nDCG_at_5", "PSP_at_1", "PSP_at_3", "PSP_at_5", "R_at_10")
COSTS: Final = (
    "train_seconds",
    "mining_share",
    "peak_memory_mb",
    "latency_p50_ms",
    "latency_p99_ms",
    "index_recall",
)
_RESAMPLES: Final = 2000


def run(context: Context) -> None:
    """Gather, test, write."""
    dataset = context.experiment.dataset
    rows = [row for pair in context.workspace.experiments(dataset) if (row := entry(context.workspace, *pair))]
    if not rows:
        raise MissingError(
            f"no recipe of {dataset} evaluated on its present corpus",
            expected="at least one",
            do=f"xc evaluate --dataset {dataset} --recipe NAME, after xc train",
        )
    rows.sort(key=lambda row: -(row["P_at_1"] or 0.0))
    for row in rows:
        row["p_value"] = _p_value(context.workspace, dataset, row["recipe"], rows[0]["recipe"])
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(context.build.path / "leaderboard.parquet")
    table = markdown(rows)
    (context.build.path / "leaderboard.md").write_text(f"# {dataset}\n\n{table}\n", "utf-8")
    plots.leaderboard(context.build.path / "leaderboard.png", rows, dataset)
    context.build.facts |= {"recipes": [row["recipe"] for row in rows], "best": rows[0]["recipe"]}
    report(f"leaderboard: {len(rows)} recipes, best by P@1 is {rows[0]['recipe']}")


def entry(workspace: Workspace, dataset: str, recipe: str) -> dict[str, Any] | None:
    """Return the row of one recipe; None where it is not evaluated, or on other documents than there are now."""
    folder = workspace.folder("evaluation", dataset, recipe)
    try:
        judged_on = artifacts.verify(folder, kind="evaluation").facts.get("corpus")
    except MissingError:
        return None
    if judged_on != workspace.corpus_digest(dataset):
        report(f"leaderboard: {recipe} is left out, it was evaluated on another corpus (xc train, then again)")
        return None
    if _first_hits(folder) is None:
        report(f"leaderboard: {recipe} is left out, an older version of xc evaluated it (xc evaluate, then again)")
        return None
    content = json.loads((folder / "report.json").read_text("utf-8"))
    costs = {
        name: read_costs(workspace, STAGES[name], dataset, recipe)
        for name in STAGES
        if STAGES[name].scope == "experiment"
    }
    trained = [costs["encoder"].get("train_seconds"), costs["classifier"].get("train_seconds")]
    mined = sum(costs[stage].get("mining_seconds", 0.0) for stage in ("encoder", "classifier"))
    known = [seconds for seconds in trained if seconds is not None]
    recall = artifacts.read_manifest(workspace.folder("index", dataset, recipe)).facts["recall_by_row"]
    return {
        "recipe": recipe,
        **{name: content["metrics"][name] for name in METRICS},
        "P_at_1_low": content["intervals"]["P_at_1"][0],
        "P_at_1_high": content["intervals"]["P_at_1"][1],
        "PSP_at_5_low": content["intervals"]["PSP_at_5"][0],
        "PSP_at_5_high": content["intervals"]["PSP_at_5"][1],
        "train_seconds": sum(known) if known else None,
        "mining_share": mined / sum(known) if known and sum(known) else None,
        "peak_memory_mb": max((cost.get("peak_memory_mb", 0.0) for cost in costs.values()), default=None),
        "latency_p50_ms": costs["evaluation"].get("latency_p50_ms"),
        "latency_p99_ms": costs["evaluation"].get("latency_p99_ms"),
        "index_recall": recall,
    }


def _p_value(workspace: Workspace, dataset: str, recipe: str, best: str) -> float | None:
    """Return a two-sided paired randomisation p-value of P@1 against the best recipe; None for the best itself."""
    if recipe == best:
        return None
    ours, theirs = (_first_hits(workspace.folder("evaluation", dataset, name)) for name in (recipe, best))
    difference = ours - theirs
    observed = abs(float(difference.sum()))
    rng = generator(0, "leaderboard")
    changed = difference[difference != 0]
    draws = [abs(float((rng.integers(0, 2, len(changed)) * 2 - 1) @ changed)) for _ in range(_RESAMPLES)]
    return (1 + int(np.sum(np.array(draws) >= observed - 1e-9))) / (1 + _RESAMPLES)


def _first_hits(folder: Path) -> Any:
    """Return whether each document's first label is right; None where an older version wrote the figures."""
    figures = unpacked(np.load(folder / "per_document.npz"), "fusion")
    return None if figures is None else figures.num["P_at_1"]


def _p_text(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table as Markdown, metrics in percent."""
    names = ["recipe", *METRICS, "P@1 95 %", "p", *COSTS]
    lines = ["| " + " | ".join(name.replace("_at_", "@").replace("_", " ") for name in names) + " |"]
    lines.append("| --- |" + " ---: |" * (len(names) - 1))
    for row in rows:
        cells = [row["recipe"], *("-" if row[name] is None else f"{row[name]:.2f}" for name in METRICS)]
        cells += [f"{row['P_at_1_low']:.1f} to {row['P_at_1_high']:.1f}"]
        cells += ["best" if row["p_value"] is None else _p_text(row["p_value"])]
        cells += [
            "-" if row[name] is None else f"{row[name]:.3g}" if abs(row[name]) < 100 else f"{row[name]:.0f}"
            for name in COSTS
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
