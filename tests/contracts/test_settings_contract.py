"""The contract of settings, for every part in a table and every stage: frozen, by keyword, numbers within bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from xc_core.ann import INDEXES
from xc_core.errors import ConfigError
from xc_core.fusion import FUSIONS
from xc_core.losses import LOSSES
from xc_core.recipes.settings import StageSettings
from xc_core.sampling import NEGATIVES, ORDERS
from xc_core.scores import SCORES
from xc_core.train.heads import SCORERS

TABLES: tuple[Any, ...] = (FUSIONS, INDEXES, LOSSES, NEGATIVES, ORDERS, SCORERS, SCORES)
MAY_BE_NEGATIVE = {"seed", "bias", "min_P_at_1", "min_index_recall"}
"""A seed, an offset of logits, and floors that any model passes."""
ABOVE_ZERO = {
    "batch_size", "size", "draws", "search", "width", "heads", "max_length", "tokens_per_pass", "refresh_every",
    "hardest", "enough", "sample", "rows", "candidates", "nearest", "probes", "links", "build_effort", "search_effort",
    "rounds", "depth", "leaves", "min_leaf", "most", "truncation", "trees", "clusters", "passes", "beam", "labels",
    "ngrams", "min_documents", "terms", "tolerance", "shrinkage", "clip", "q", "BiasedRows.epochs", "AuditSettings.k",
    "Mined.hard", "Stored.hard", "Mixture.uniform", "Tree.regulariser", "Triplet.positives", "Boosted.share",
    "Neighbours.temperature", "OptimConfig.lr", "TableConfig.lr",
    *(f"{type(loss).__name__}.temperature" for loss in (LOSSES[name]() for name in LOSSES) if loss.kind != "triplet"),
}  # fmt: skip
"""Counts of something that a part cannot do without, and factors; elsewhere 0 switches something off."""
ABOVE_ONE = {"clusters", "leaves"}
"""Counts that divide something."""
BELOW_ONE = {"dropout", "average", "recall", "warmup", "TableConfig.decay"}
AT_MOST_ONE = BELOW_ONE | {"share", "shrinkage", "forward", "decay", "OptimConfig.lr"}
GREATEST = {
    "heads": 2, "width": 65_536, "projection": 65_536, "max_length": 65_536, "tokens_per_pass": 1 << 24,
    "links": 1024, "build_effort": 1_000_000, "search_effort": 1_000_000, "LightGBM.leaves": 64, "characters": 64,
    "margin": 2, "bias": 100, "prior": 100, "weight_decay": 100, "BiasConfig.lr": 100, "TableConfig.lr": 100,
    "WithBinary.weight": 100, "NegativeSampling.regulariser": 100,
    **{f"{type(loss).__name__}.temperature": 100 for loss in (LOSSES[name]() for name in LOSSES)},
    **dict.fromkeys(AT_MOST_ONE, 1), **dict.fromkeys(BELOW_ONE, math.nextafter(1, 0)),
}  # fmt: skip
SMALLEST = {
    "bias": -100, "OptimConfig.lr": 1e-8, "TableConfig.lr": 1e-8,
    **dict.fromkeys((name for name in GREATEST if name.endswith(".temperature")), 1e-3),
}  # fmt: skip
"""The least numbers that are no counts and are not 0."""
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


SETTINGS = {
    type(part): part
    for made in [StageSettings(), *(table[name]() for table in TABLES for name in table.names())]
    for part in parts(made)
}
all_settings = pytest.mark.parametrize("settings", [pytest.param(one, id=kind.__name__)
                                                    for kind, one in SETTINGS.items()])  # fmt: skip


@all_settings
def test_settings_are_frozen_and_given_by_keyword(settings: Any) -> None:
    assert type(settings).__dataclass_params__.frozen
    assert all(field.kw_only for field in fields(settings))


def is_among(names: set[str], settings: Any, name: str) -> bool:
    return not names.isdisjoint({name, f"{type(settings).__name__}.{name}"})


def numbers(settings: Any) -> dict[str, type]:
    """Return the names of all numbers, each with its type."""
    kinds = {field.name: type(getattr(settings, field.name)) for field in fields(settings)}
    return {name: kind for name, kind in kinds.items() if kind in (int, float)}


def refused(settings: Any, name: str) -> Iterator[int]:
    """Yield those of a few numbers that lie outside the range of a setting."""
    for number, names in ((0, ABOVE_ZERO), (1, ABOVE_ONE | BELOW_ONE), (2, AT_MOST_ONE)):
        if is_among(names, settings, name):
            yield number
    if name not in MAY_BE_NEGATIVE:
        yield -1


@all_settings
def test_the_least_numbers_in_range_are_accepted(settings: Any) -> None:
    counts = [name for name, kind in numbers(settings).items() if kind is int and is_among(ABOVE_ZERO, settings, name)]
    least = replace(settings, **{name: 2 if is_among(ABOVE_ONE, settings, name) else 1 for name in counts})
    for name in numbers(settings):
        if not is_among(ABOVE_ZERO, settings, name):
            replace(least, **{name: 0})


@pytest.mark.parametrize(
    ("settings", "name", "number"),
    [
        pytest.param(settings, name, number, id=f"{kind.__name__}.{name}={number}")
        for kind, settings in SETTINGS.items()
        for name in numbers(settings)
        for number in refused(settings, name)
    ],
)
def test_a_number_out_of_range_is_refused(settings: Any, name: str, number: int) -> None:
    """A new setting is refused below 0 by ``at_least``, or is in one of the sets above."""
    with pytest.raises(ConfigError, match=f"found {name} "):
        replace(settings, **{name: numbers(settings)[name](number)})


def bound(bounds: Mapping[str, float], settings: Any, name: str) -> float | None:
    """Return the bound of a setting; None if it has none."""
    return bounds.get(f"{type(settings).__name__}.{name}", bounds.get(name))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param(settings, name, id=f"{kind.__name__}.{name}")
        for kind, settings in SETTINGS.items()
        for name in numbers(settings)
        if not is_among(BY_OTHERS, settings, name)
    ],
)
def test_numbers_up_to_their_bounds_are_accepted_and_no_others(settings: Any, name: str) -> None:
    """A setting without a greatest number takes any; one with it is in ``GREATEST``."""
    kind, most, least = numbers(settings)[name], bound(GREATEST, settings, name), bound(SMALLEST, settings, name)
    others = {"lr": 1e-3} if name == "weight_decay" else {}  # their product has a bound too
    refused = [] if most is None else [most + 1 if kind is int else math.nextafter(most, math.inf)]
    accepted = [10**9 if most is None else most]
    if least is not None:
        refused, accepted = [*refused, math.nextafter(least, -math.inf)], [*accepted, least]
    for number in accepted:
        replace(settings, **others, **{name: kind(number)})
    for number in refused:
        with pytest.raises(ConfigError, match=f"found {name} "):
            replace(settings, **others, **{name: kind(number)})
