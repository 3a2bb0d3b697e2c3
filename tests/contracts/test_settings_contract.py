"""The contract of settings, for every part in a table and every stage: frozen, by keyword, numbers within bounds."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.contracts.ranges import BY_OTHERS, SETTINGS, in_range, is_among, limits, numbers
from xc_core.cli.train import changes_of
from xc_core.errors import ConfigError
from xc_core.outside import yaml_of
from xc_core.params import MOST_NUMBER, MOST_WHOLE, changed, dotted, in_use, option_text, plain

EACH = [
    pytest.param(config, name, id=f"{kind.__name__}.{name}")
    for kind, config in SETTINGS.items()
    for name in numbers(config)
]
OTHERS: dict[str, dict[str, Any]] = {"weight_decay": {"lr": 1e-3}, "Clustered.batch_size": {"size": 1}}
"""Settings with which another one may have its whole range."""
ANY_NUMBER = st.one_of(
    st.integers(-MOST_WHOLE, MOST_WHOLE), st.integers(-200, 200), st.floats(), st.floats(-3, 3), st.just(10**30)
)


def others(config: Any, name: str) -> dict[str, Any]:
    return OTHERS.get(f"{type(config).__name__}.{name}", OTHERS.get(name, {}))


@pytest.mark.parametrize("config", [pytest.param(one, id=kind.__name__) for kind, one in SETTINGS.items()])
def test_settings_are_frozen_and_given_by_keyword(config: Any) -> None:
    assert type(config).__dataclass_params__.frozen
    assert all(field.kw_only for field in fields(config))


@pytest.mark.parametrize(("config", "name"), EACH)
def test_numbers_up_to_their_bounds_are_accepted_and_no_others(config: Any, name: str) -> None:
    """A new setting is refused below 0 by ``at_least``, or has its range in ``tests/contracts/ranges.py``."""
    kind, (least, most), free = numbers(config)[name], limits(config, name), others(config, name)
    replace(config, **free, **{name: kind(max(least, -MOST_NUMBER))})
    if not is_among(BY_OTHERS, config, name):
        replace(config, **free, **{name: kind(min(most, MOST_NUMBER))})
    beyond = [
        bound + step if kind is int else math.nextafter(bound, math.inf * step)
        for bound, step in ((least, -1), (most, 1))
        if math.isfinite(bound)
    ]
    for number in beyond:
        with pytest.raises(ConfigError, match=f"found {name} "):
            replace(config, **free, **{name: number})


@pytest.mark.parametrize(("config", "name"), EACH)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_any_number_is_within_its_range_and_stays_the_same_or_is_refused(
    config: Any, name: str, data: st.DataObject
) -> None:
    """It is read as from params.yaml; what is accepted can be written, read again and hashed."""
    number = data.draw(ANY_NUMBER)
    start = replace(config, **others(config, name))
    try:
        accepted = changed(start, {name: number}, "toy")
    except ConfigError as error:
        assert error.found and error.expected and error.do and error.exit_code == 78
        assert name in f"{error.where}{error.found}"
        fits = numbers(config)[name] is not int or isinstance(number, int)
        large = not abs(number) <= (MOST_WHOLE if numbers(config)[name] is int else MOST_NUMBER)
        assert is_among(BY_OTHERS, config, name) or large or not (fits and in_range(config, name, number))
        return
    assert in_range(config, name, getattr(accepted, name))
    assert changed(config, read_again(plain(accepted)), "toy") == accepted
    json.dumps(in_use(accepted), allow_nan=False)


def read_again(content: Any) -> Any:
    """Return what params.yaml would give."""
    text = io.StringIO()
    YAML().dump(content, text)
    return yaml_of(text.getvalue())


@pytest.mark.parametrize(("config", "name"), EACH)
def test_a_bound_can_be_given_on_the_command_line(config: Any, name: str) -> None:
    kind, (least, most) = numbers(config)[name], limits(config, name)
    for number in (kind(max(least, -MOST_NUMBER)), kind(min(most, MOST_NUMBER))):
        given_settings = [f"a.{key}={option_text(value)}" for key, value in dotted({name: number}).items()]
        found = changes_of(given_settings)["a"]
        assert isinstance(found, Mapping) and found[name] == number and type(found[name]) is kind
