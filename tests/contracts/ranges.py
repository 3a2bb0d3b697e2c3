"""Every settings class of a recipe, a dataset and a server, and the range of each of its numbers.

The ranges stand here a second time, beside the code that checks them: a new setting without one is found by a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from xc_core.ann import INDEXES
from xc_core.chain.dataset import Dataset
from xc_core.chain.params_file import PARTS
from xc_core.fusion import FUSIONS
from xc_core.losses import LOSSES
from xc_core.recipes.settings import StageSettings
from xc_core.sampling import NEGATIVES, ORDERS
from xc_core.scores import SCORES
from xc_core.serve.limits import Limits
from xc_core.train.heads import SCORERS

TABLES: tuple[Any, ...] = (FUSIONS, INDEXES, LOSSES, NEGATIVES, ORDERS, SCORERS, SCORES)
MAY_BE_NEGATIVE = {"seed", "bias"}
"""A seed, and an offset of logits."""
ABOVE_ZERO = {
    "batch_size", "size", "draws", "search", "width", "heads", "max_length", "tokens_per_pass", "refresh_every",
    "hardest", "enough", "sample", "rows", "candidates", "nearest", "probes", "links", "build_effort", "search_effort",
    "rounds", "depth", "leaves", "min_leaf", "most", "truncation", "trees", "clusters", "passes", "beam", "labels",
    "ngrams", "min_documents", "terms", "tolerance", "shrinkage", "clip", "q", "BiasedRows.epochs", "AuditSettings.k",
    "Mined.hard", "Stored.hard", "Mixture.uniform", "Tree.regulariser", "Triplet.positives", "Boosted.share",
    "Neighbours.temperature", "OptimConfig.lr", "TableConfig.lr", "max_line_bytes", "test_fraction", "max_tokens",
    "vocabulary", "keep",
    *(f"Limits.{field.name}" for field in fields(Limits) if field.name != "max_wait_ms"),
    *(f"{type(loss).__name__}.temperature" for loss in (LOSSES[name]() for name in LOSSES) if loss.kind != "triplet"),
}  # fmt: skip
"""Counts of something that a part cannot do without, and factors; elsewhere 0 switches something off."""
ABOVE_ONE = {"clusters", "leaves"}
"""Counts that divide something."""
BELOW_ONE = {"dropout", "average", "recall", "warmup", "TableConfig.decay", "validation_fraction", "test_fraction"}
SHARES = {"share", "shrinkage", "forward", "decay", "min_index_recall", "allow_loss", "unknown_labels",
          "untrained_labels", "query_auc", "tolerance"}  # fmt: skip
AT_MOST_ONE = BELOW_ONE | SHARES | {"acceptance_fraction", "OptimConfig.lr"}
POINTS = {"min_P_at_1", "max_drop", "max_bin_drop", "tail_cost", "recall_drop"}
"""Percentages, and differences of two."""
EPOCHS = {"epochs", "curriculum"}
GREATEST: Mapping[str, float] = {
    "heads": 2, "width": 65_536, "projection": 65_536, "max_length": 65_536, "tokens_per_pass": 1 << 24,
    "links": 1024, "build_effort": 1_000_000, "search_effort": 1_000_000, "LightGBM.leaves": 64, "characters": 64,
    "margin": 2, "bias": 100, "prior": 100, "weight_decay": 100, "BiasConfig.lr": 100, "TableConfig.lr": 100,
    "WithBinary.weight": 100, "NegativeSampling.regulariser": 100, "temperature": 100, "threshold": 100, "radius": 2,
    "tail": 10, "depth": 64, "rounds": 100_000, "Lexical.trees": 1000, "Characters.trees": 1000, "ngrams": 64,
    "max_tokens": 1 << 20, "vocabulary": 10_000_000, "DriftConfig.sample": 100_000,
    **dict.fromkeys(AT_MOST_ONE, 1), **dict.fromkeys(BELOW_ONE, math.nextafter(1, 0)), "acceptance_fraction": 0.5,
    **dict.fromkeys(POINTS, 100), **dict.fromkeys(EPOCHS, 1_000_000),
    **{f"Limits.{field.name}": 1 << 31 for field in fields(Limits)},
    "Limits.seconds": 86_400, "Limits.max_wait_ms": 60_000,
}  # fmt: skip
SMALLEST: Mapping[str, float] = {
    "bias": -100, "OptimConfig.lr": 1e-8, "TableConfig.lr": 1e-8, "clip": 1e-3, "tolerance": 1e-6, "shrinkage": 1e-6,
    "Boosted.share": 1e-6, "max_slower": 1, "max_larger": 1, "query_auc": 0.5, "fewest": 4, "DriftConfig.sample": 4,
    "Limits.seconds": 0.01, "Neighbours.temperature": 1e-6,
    **{f"{type(loss).__name__}.temperature": 1e-3 for loss in (LOSSES[name]() for name in LOSSES)},
}  # fmt: skip
"""The least numbers that are neither 0 nor the first whole number above."""
BY_OTHERS = {"Clustered.size", "ahead"}
"""Their greatest number depends on other settings."""


def parts(settings: Any) -> Iterator[Any]:
    """Yield settings, and those inside them."""
    yield settings
    for field in fields(settings):
        value = getattr(settings, field.name)
        for inner in value.values() if isinstance(value, Mapping) else [value]:
            if is_dataclass(inner):
                yield from parts(inner)


SETTINGS: dict[type[Any], Any] = {
    type(part): part
    for made in [
        StageSettings(), Limits(), *(getattr(Dataset("toy"), part) for part in PARTS),
        *(table[name]() for table in TABLES for name in table.names()),
    ]
    for part in parts(made)
}  # fmt: skip


def is_among(names: set[str], settings: Any, name: str) -> bool:
    """Return True if a setting is among ``names``, by its name or by that of its class and its own."""
    return not names.isdisjoint({name, f"{type(settings).__name__}.{name}"})


def numbers(settings: Any) -> dict[str, type]:
    """Return the names of all numbers, each with its type."""
    kinds = {field.name: type(getattr(settings, field.name)) for field in fields(settings)}
    return {name: kind for name, kind in kinds.items() if kind in (int, float)}


def bound(bounds: Mapping[str, float], settings: Any, name: str) -> float | None:
    """Return the bound of a setting; None if it has none."""
    return bounds.get(f"{type(settings).__name__}.{name}", bounds.get(name))


def limits(settings: Any, name: str) -> tuple[float, float]:
    """Return the least and the greatest number that a setting may have."""
    least, most = bound(SMALLEST, settings, name), bound(GREATEST, settings, name)
    if is_among(MAY_BE_NEGATIVE, settings, name):
        least = -math.inf if least is None else least
    elif least is None:
        above_zero = 1 if numbers(settings)[name] is int else math.nextafter(0, 1)
        least = 2 if is_among(ABOVE_ONE, settings, name) else above_zero
        least = least if is_among(ABOVE_ZERO, settings, name) else 0
    return least, math.inf if most is None else most


def in_range(settings: Any, name: str, number: float) -> bool:
    """Return True for a number that a setting may have, whatever the others are."""
    least, most = limits(settings, name)
    return least <= number <= most or (type(settings).__name__ == "Triplet" and name == "temperature" and number == 0)
