"""Every number of a loss or an optimiser has a range: a value that can only give wrong results is no setting."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from xc_core.classifiers import BiasConfig, TableConfig
from xc_core.errors import ConfigError
from xc_core.losses import LOSSES
from xc_core.params import MOST_NUMBER, changed
from xc_core.train.optim import OptimConfig

PARTS: dict[str, Any] = {name: LOSSES[name]() for name in LOSSES}
PARTS |= {"optim": OptimConfig(), "table": TableConfig(), "bias": BiasConfig()}
NUMBERS = [(name, own.name) for name, part in PARTS.items() for own in dataclasses.fields(part)
           if get_type_hints(type(part))[own.name] is float]  # fmt: skip
NO_LIMIT = {("optim", "clip")}
"""A large norm clips nothing, which is a choice."""


@pytest.mark.parametrize(("part", "name"), NUMBERS)
def test_a_number_without_a_meaning_is_refused(part: str, name: str) -> None:
    for value in (-MOST_NUMBER, MOST_NUMBER)[: 1 if (part, name) in NO_LIMIT else 2]:
        with pytest.raises(ConfigError, match=rf"{part}: found {name} .*\n  expected: "):
            changed(PARTS[part], {name: value}, part)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("supcon", {"temperature": 1e-9}),
        ("supcon", {"temperature": 1e5}),
        ("triplet", {"margin": 2.1}),
        ("triplet", {"temperature": 1e-9}),
        ("bce", {"bias": 101}),
        ("nce", {"bias": -101}),
        ("augment-reduce", {"decay": 1.1}),
        ("negative-sampling", {"regulariser": 101}),
        ("softmax-and-bce", {"weight": 101}),
        ("optim", {"lr": 1e-12}),
        ("optim", {"lr": 2}),
        ("optim", {"clip": 1e-9}),
        ("optim", {"lr": 0.5, "weight_decay": 2}),
        ("table", {"lr": 1e-12}),
        ("table", {"lr": 0.5, "weight_decay": 2}),
    ],
)
def test_a_number_just_outside_its_range_is_refused(part: str, changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        changed(PARTS[part], changes, part)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("supcon", {"temperature": 0.01}),  # the least of CLIP
        ("supcon", {"temperature": 1}),
        ("triplet", {"margin": 2, "temperature": 0}),
        ("bce", {"bias": 18.5}),  # log of 100 million labels
        ("bce", {"bias": 100}),
        ("nce", {"bias": -100}),
        ("augment-reduce", {"decay": 1}),
        ("optim", {"lr": 0.1, "weight_decay": 1, "clip": MOST_NUMBER}),
        ("table", {"lr": 10, "optimiser": "sgd"}),
    ],
)
def test_numbers_that_people_use_are_settings(part: str, changes: dict[str, Any]) -> None:
    changed(PARTS[part], changes, part)
