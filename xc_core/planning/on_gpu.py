"""A plan for a GPU: the stages that compute there at rates that ``make gpu-proof`` recorded, all others as on the CPU.

Nothing is estimated from data sheets. Without recorded rates, or for another encoder, there is no estimate.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, Final

from xc_core.chain.workspace import Workspace
from xc_core.planning import planned
from xc_core.planning.estimator import Cost, Estimator
from xc_core.planning.frozen import passes
from xc_core.planning.pilots import Rates
from xc_core.planning.stage_costs import Case, searches, trained_documents
from xc_core.recipes import find_recipe
from xc_core.sampling import All

GPU_RATES: Final = "gpu-rates.json"
"""File in ``.xc`` with the rates of a GPU."""
_TIMED_RECIPE: Final = "ngame"
"""Recipe whose steps of M1 ``make gpu-proof`` times."""

_PRODUCTS: Final = 3
"""Products of all documents and labels in a step with every label as a negative."""

_NAMES: Final = ("device", "date", "encoder")
_RATES: Final = ("tokens_per_second", "step_seconds", "step_documents", "step_width", "pairs_per_second")


def gpu_rates(workspace: Workspace) -> dict[str, Any]:
    """Return the rates of a GPU that ``make gpu-proof`` recorded here; empty if there are none, or are damaged."""
    try:
        content = json.loads((workspace.state / GPU_RATES).read_text("utf-8"))
        names, rates = {name: str(content[name]) for name in _NAMES}, {name: float(content[name]) for name in _RATES}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {**names, **rates} if all(0 < rate < math.inf for rate in rates.values()) else {}


def on_gpu(
    name: str, subject: planned.Subject, rates: Rates, recorded: dict[str, Any], processes: int = 1
) -> tuple[list[Cost], str]:
    """Return the costs with M1, embeddings, M4 and searches on a GPU, and a note; no costs without fitting rates.

    Each of ``processes`` has a GPU of its own, at the recorded rates.
    """
    config = subject.recipe.encoder.encoder
    if not recorded:
        return [], f"{name}: no rates of a GPU are recorded here, so nothing is estimated; record them: make gpu-proof"
    if config.name != recorded["encoder"]:
        return (
            [],
            f"{name}: the recorded rates are of {recorded['encoder']}, not of {config.name}; nothing is estimated",
        )
    case = Case(subject.recipe, subject.world, rates.width, processes)
    seconds = _seconds(case, recorded)
    seconds["encoder"] += Estimator(subject.recipe, rates).refresh(case)  # clusters as on a CPU: no card has timed them
    cpu_costs = planned.costs_of(subject, rates, processes)
    costs = [replace(cost, seconds=seconds.get(cost.stage, cost.seconds)) for cost in cpu_costs]
    note = f"{name}: {recorded['device']}, rates of {recorded['date']}; memory is that of the process, not of the card"
    return costs, note


def _seconds(case: Case, recorded: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of the stages that compute on a GPU; every search there is exact.

    A step of M1 takes as long per token and operation as the recorded one; a table that it trains along, as wide as one
    head, is computed whole by each process.
    """
    world, recipe = case.world, case.recipe
    settings = recipe.encoder
    documents = world.published if settings.refit else world.train
    timed = find_recipe(_TIMED_RECIPE).changed({"encoder": {"encoder": {"name": settings.encoder.name}}}).encoder
    forward = 1 / passes(timed)
    added = world.labels if settings.augment else 0  # label texts as documents, each with a label text of the pool
    read = settings.epochs * (case.read(documents) + case.encoded(0, 2 * added)) * passes(settings) * forward
    embedded = case.encoded(world.documents, world.labels) * forward
    filled = case.encoded(documents, world.labels) * forward if case.fills_banks else 0.0
    seconds = {
        "encoder": (read + filled) / recorded["tokens_per_second"],
        "embeddings": embedded / recorded["tokens_per_second"],
        "classifier": _label_steps("classifier", case, recorded),
    }
    seconds = {stage: value / case.processes for stage, value in seconds.items()}
    for stage in ("encoder", "negatives"):
        compared = sum(search.queries * search.among for search in searches(case).get(stage, [])) * case.width
        seconds[stage] = seconds.get(stage, 0.0) + compared / recorded["pairs_per_second"]
    if settings.joint:
        seconds["encoder"] += _label_steps("encoder", case, recorded) / settings.encoder.heads
    return seconds


def _label_steps(name: str, case: Case, recorded: dict[str, Any]) -> float:
    """Return the seconds of a training's steps on a table of labels, at the recorded time per document and dimension.

    With every label as a negative, products of all documents and labels (scores, both gradients) at the rate of search.
    """
    settings: Any = getattr(case.recipe, name)
    read = settings.epochs * trained_documents(name, case) * case.width
    if isinstance(settings.negatives, All):
        return float(_PRODUCTS * read * case.world.labels / recorded["pairs_per_second"])
    return float(read * recorded["step_seconds"] / recorded["step_documents"] / recorded["step_width"])
