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
