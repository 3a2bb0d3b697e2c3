"""A record of a study, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xc_core.tune.record import StudyRecord, TrialOutcome, TrialRecord

FIGURES = {"P_at_1": 60.0, "P_at_5": 30.0, "PSP_at_5": 45.0}


def trial(number: int, value: float | None = None, **changes: Any) -> TrialRecord:
    state = TrialOutcome.DONE if value is not None else TrialOutcome.PRUNED
    own = TrialRecord(
        number=number,
        state=state,
        value=value,
        values={"fusion.rule.depth": number + 1, "encoder.loss": "triplet"},
        figures=FIGURES if value is not None else {},
        early={"classifier": 40.0 + number},
        served="fusion" if value is not None else "",
        documents=31,
        seconds=2.5,
        taken=("encoder",),
        folder=f"trial-{number}",
    )
    return replace(own, **changes)


def study(*trials: TrialRecord, dataset: str = "toy", name: str = "ngame", **changes: Any) -> StudyRecord:
    asked = {
        "dataset": dataset,
        "recipe": "ngame",
        "base": "ngame",
        "changes": {"classifier.epochs": 3},
        "space": {"encoder.loss": ["triplet", "supcon"], "fusion.rule.depth": [1, 2, 3]},
        "metric": {"P@1": 1.0},
        "sampler": "tpe",
        "seed": 0,
        "pruner": "lowest quarter",
    }
    origin = {"machine": "a processor", "date": "2026-11-22 10:00:00", "commit": "abc"}
    return StudyRecord(name=name, asked=asked, metric="P@1", origin=origin, trials=trials, **changes)


# a study of single changes


def gain(points: float, width: float = 1.0, differing: int = 9) -> dict[str, Any]:
    return {"points": points, "low": points - width, "high": points + width, "differing": differing}


def change(number: int, values: dict[str, Any], *points: float, mean: dict[str, Any], **others: Any) -> TrialRecord:
    """Return a trial whose P@1, P@5 and PSP@5 differ by ``points`` from those of the recipe, the objective by mean."""
    gains = {name: gain(by) for name, by in zip(FIGURES, points, strict=True)} | {"objective": mean}
    return trial(number, 50.0 + mean["points"], **{"values": values, "gains": gains, "stages_seconds": 150.0, **others})


BASE = trial(0, 50.0, own=True, values={}, stages_seconds=100.0)
CHANGES = (
    change(1, {"fusion.rule": "sum"}, 2.0, -1.5, 0.5, mean=gain(0.4)),
    change(2, {"encoder.loss.margin": 0.1}, -3.0, 0.2, 1.01, mean=gain(3.0, differing=5), stages_seconds=None),
    change(3, {"encoder.loss.margin": 0.5}, 0.0, -0.001, 0.0, mean=gain(1.5)),
    change(4, {"encoder.seed": 1}, 0.0, 0.0, 0.0, mean=gain(2.0)),
    trial(5, values={"fusion.rule.depth": 1}, state=TrialOutcome.FAILED, why="odd"),
)


def changes(*trials: TrialRecord, **others: Any) -> StudyRecord:
    own = study(*trials, state="all values tried", **others)
    before = {"encoder.loss.margin": 0.3, "encoder.seed": 0, "fusion.rule": "tree", "fusion.rule.depth": 7}
    return replace(own, asked={**own.asked, "sampler": "one-at-a-time", "pruner": "none", "base values": before})
