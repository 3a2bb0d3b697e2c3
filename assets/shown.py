"""What Dagster and MLflow show of a stage's artefact, besides its facts and plots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import dagster as dg

from assets.metadata import Shown, numbers, short, table
from xc_core.artifacts import read_made
from xc_core.chain import changelog
from xc_core.data.history import read_history
from xc_core.metrics.names import NARROW

_MODEL: Final = "fusion (the model)"
"""The row of the ablation that the model predicts with, as people know it."""

_NEARNESS: Final = {
    "mean": "mean similarity",
    "above_0.5": "above 50 %",
    "above_0.75": "above 75 %",
    "twins": "same text",
}
"""Figures of the nearest train document, and their names for people."""


def _training(folder: Path) -> Shown:
    """Show the last loss, and the figures of the last refresh of the clusters behind a click: few people need them."""
    history = read_history(folder) or {"losses": [], "refreshes": []}
    metrics = {"last_loss": float(history["losses"][-1])} if history["losses"] else {}
    last = {name: short(value) for name, value in (history["refreshes"] or [{}])[-1].items()}
    return Shown(
        metadata={**metrics, **({"last_refresh": dg.MetadataValue.json(last)} if last else {})}, metrics=metrics
    )


def _audit(folder: Path) -> Shown:
    """Show both sides of Theorem 1."""
    from xc_core.sampling.audit import Audit

    theorem = Audit.open(folder).figures["theorem1"]
    figures = {f"theorem1_{name}": value for name, value in theorem.items() if value is not None}
    return Shown(metadata=dict(figures), metrics=figures)


def _corpus(folder: Path) -> Shown:
    """Show how near validation and test documents are to train documents, in percent, and the last change."""
    nearness = read_made(folder).facts.get("nearness") or {}
    splits = {name: figures for name, figures in nearness.items() if isinstance(figures, dict)}
    rows = {name: {shown: 100 * figures[key] for key, shown in _NEARNESS.items()} for name, figures in splits.items()}
    head, columns = "nearest train document, percent", list(_NEARNESS.values())
    metadata: dict[str, Any] = {"nearness": table(head, rows, columns)} if rows else {}
    if last := changelog.last(folder):
        metadata |= {
            "last_change": changelog.sentence(last),
            "change": dg.MetadataValue.json(changelog.with_counts(last)),
        }
    return Shown(metadata=metadata)


def _fusion(folder: Path) -> Shown:
    """Show each score, their sum and the fusion on validation documents, and the dial between P@k and PSP@k."""
    facts, columns = read_made(folder).facts, ("P_at_1", "P_at_5", "PSP_at_5")
    rows = facts["validation"]
    first: dict[str, Any] = {"validation": table("ranked by", rows, columns)}
    if "tail" in facts:
        curve = {f"{point['tail']:g}": point for point in facts["tail"]["curve"]}
        first |= {"tail": table("dial", curve, columns), "default_tail": facts["tail"]["default"]}
    if "new_by_sum" in facts:
        first["new_by_sum"] = facts["new_by_sum"]["used"]
    return Shown(first=first, metrics=numbers(rows))


def _evaluation(folder: Path) -> Shown:
    """Show the metrics, the ablation, and what was learnt from. Texts stay in the report: events outlive a forget."""
    from xc_core.metrics.evaluation import Evaluation

    evaluation = Evaluation.open(folder)
    metrics = {name: value for name, value in evaluation.metrics.items() if value is not None}
    ablation = dict(evaluation.report["ablation"])
    model = _MODEL + (f": {evaluation.learnt.instead} alone" if evaluation.learnt.instead else "")
    rows = {model: ablation.pop("fusion"), **ablation} if "fusion" in ablation else ablation
    first = {"metrics": table("ranked by", rows, NARROW)}
    learnt = "; ".join(f"{part}: {words}" for part, words in evaluation.learnt.words().items())
    return Shown(first, {**metrics, "learnt_from": learnt}, metrics, [evaluation.report_file])


def _leaderboard(folder: Path) -> Shown:
    """Show the table."""
    from xc_core.metrics.leaderboard import Leaderboard

    leaderboard = Leaderboard.open(folder)
    return Shown(metadata={"table": dg.MetadataValue.md(leaderboard.text)}, files=[leaderboard.file])


SHOWN: Final[dict[str, Callable[[Path], Shown]]] = {
    "corpus": _corpus,
    "encoder": _training,
    "classifier": _training,
    "audit": _audit,
    "fusion": _fusion,
    "evaluation": _evaluation,
    "leaderboard": _leaderboard,
}
"""By stage; a stage without an entry shows its facts and plots."""
