"""Changing a frozen tree of configs by name, with a helpful refusal of what does not exist.

Takes: a dataclass, nested dictionaries.   Gives: the changed dataclass; its plain form.
May import: errors.                        Never: guesses a type.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Any, TypeVar

from xc_core.errors import ConfigError, nearest

C = TypeVar("C")


def changed(config: C, changes: dict[str, Any], where: str) -> C:
    """Return ``config`` (a frozen dataclass) with ``changes`` applied, inner dictionaries to inner configs.

    Raises ConfigError for an unknown name or a value of the wrong type; ``where`` names the place in the message.
    """
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
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{where}.{name} = {value!r}",
                    expected="a mapping of its fields",
                    do="name the field to change",
                )
            values[name] = changed(present, value, f"{where}.{name}")
        else:
            values[name] = _fitted(value, hints[name], f"{where}.{name}")
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def _fitted(value: Any, hint: Any, where: str) -> Any:
    """Return ``value`` as the type ``hint``; whole numbers may stand for fractions, lists for tuples."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
        origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        try:
            return hint(value)
        except ValueError:
            hint = " or ".join(member.value for member in hint)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    wanted = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} = {value!r}", expected=f"{wanted}", do="mend the value")


def plain(config: Any) -> Any:
    """Return a config as dictionaries, lists, strings and numbers: the form that is hashed and written down."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Enum):
        return config.value
    if isinstance(config, tuple | list):
        return [plain(item) for item in config]
    return config
