"""Changing a frozen tree of configs by name, with a helpful refusal of what does not exist.

Takes: a dataclass, nested dictionaries.   Gives: the changed dataclass; its plain form; checks of its numbers.
May import: errors.                        Never: guesses a type.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum
from typing import Any, Final, TypeVar

from xc_core.errors import ConfigError, nearest

C = TypeVar("C")

_WORDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a finite number",
    str: "text (in quotes where it looks like a number)",
    bool: "true or false",
}


def changed(config: C, changes: Any, where: str) -> C:
    """Return ``config`` (a frozen dataclass) with ``changes`` applied, inner dictionaries to inner configs.

    Raises ConfigError for an unknown name or a value of the wrong type; ``where`` names the place in the message.
    """
    if not isinstance(changes, dict):
        raise ConfigError(f"{where} = {changes!r}", expected="a mapping of its fields", do="name the field to change")
    hints = typing.get_type_hints(type(config))
    names = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            raise ConfigError(
                f"{where}.{name}{nearest(name, names)}",
                expected=f"one of {', '.join(names)}",
                do="mend the name",
            )
        present = getattr(config, name)
        if dataclasses.is_dataclass(present):
            values[name] = changed(present, value, f"{where}.{name}")
        else:
            values[name] = _fitted(value, hints[name], f"{where}.{name}")
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except ConfigError as error:  # of a check at birth, which does not know where the config stands
        place = error.where or where
        raise ConfigError(error.found, expected=error.expected, do=error.do, where=place) from error


def _fitted(value: Any, hint: Any, where: str) -> Any:
    """Return ``value`` as the type ``hint``; whole numbers may stand for fractions, lists for tuples."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_fitted(item, typing.get_args(hint)[0], f"{where}[{i}]") for i, item in enumerate(value))
        wanted = "a list, [a, b]"
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if value in [member.value for member in hint]:
            return hint(value)
        wanted = " or ".join(member.value for member in hint)
    else:
        if hint is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if hint in (int, str, bool) and type(value) is hint:
            return value
        wanted = _WORDS.get(hint, str(hint))
    raise ConfigError(f"{where} = {value!r}", expected=wanted, do="mend the value")


def deep_merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return both nested mappings as one; where both have a value, ``theirs``."""
    merged = {**ours, **theirs}
    for name in ours.keys() & theirs.keys():
        if isinstance(ours[name], dict) and isinstance(theirs[name], dict):
            merged[name] = deep_merged(ours[name], theirs[name])
    return merged


def at_least(config: object, **least: float) -> None:
    """Raise ConfigError where a field of ``config`` is less than its named bound."""
    for name, bound in least.items():
        if not getattr(config, name) >= bound:
            raise ConfigError(f"{name} {getattr(config, name)}", expected=f"at least {bound}", do="mend the value")


def below(config: object, **bounds: float) -> None:
    """Raise ConfigError where a field of ``config`` reaches its named bound."""
    for name, bound in bounds.items():
        if not getattr(config, name) < bound:
            raise ConfigError(f"{name} {getattr(config, name)}", expected=f"less than {bound}", do="mend the value")


def plain(config: Any) -> Any:
    """Return a config as dictionaries, lists, strings and numbers: the form that is hashed and written down."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Enum):
        return config.value
    if isinstance(config, tuple | list):
        return [plain(item) for item in config]
    return config
