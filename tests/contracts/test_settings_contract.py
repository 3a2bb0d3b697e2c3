"""The contract of settings, for every part in a table and every stage: frozen, by keyword, numbers within bounds."""

from __future__ import annotations

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
AT_LEAST_ONE = {
    "batch_size", "size", "draws", "search", "width", "heads", "max_length", "tokens_per_pass", "refresh_every",
    "hardest", "enough", "sample", "rows", "candidates", "nearest", "probes", "links", "build_effort", "search_effort",
    "rounds", "depth", "leaves", "min_leaf", "most", "truncation", "trees", "clusters", "passes", "beam", "labels",
    "ngrams", "min_documents", "terms",
}  # fmt: skip
"""Counts of something that a part cannot do without; elsewhere 0 switches something off."""
AT_LEAST_TWO = {"clusters", "leaves"}
"""Counts that divide something."""


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


@all_settings
def test_the_least_counts_in_range_are_accepted(settings: Any) -> None:
    counts = {field.name for field in fields(settings) if type(getattr(settings, field.name)) is int} & AT_LEAST_ONE
    replace(settings, **{name: 2 if name in AT_LEAST_TWO else 1 for name in counts})


@all_settings
def test_numbers_out_of_range_are_refused(settings: Any) -> None:
    for field in fields(settings):
        value, name = getattr(settings, field.name), field.name
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        wrong = ([] if name in MAY_BE_NEGATIVE else [-1]) + ([0] if name in AT_LEAST_ONE else [])
        for number in wrong:
            with pytest.raises(ConfigError, match=name):
                replace(settings, **{name: type(value)(number)})
                pytest.fail(f"{type(settings).__name__}.{name} = {number} is accepted; refuse it with at_least")
