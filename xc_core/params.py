"""Configs as data: change a tree of frozen dataclasses by name, and turn one into plain mappings.

``plain`` returns the whole config, for people; ``in_use`` returns what a result depends on, for fingerprints.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from xc_core.errors import ConfigError, bare, nearest, shown
from xc_core.outside import yaml_of
from xc_core.plugins import HasUnused, Part

C = TypeVar("C")

KIND: Final = "kind"
"""The key that names the kind of a part."""
WAS: Final = "was"
"""What the metadata of a field that came ``later`` names its earlier value."""
_hints: Final = functools.cache(typing.get_type_hints)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # of a part, and of its folder
MOST_WHOLE: Final = 2**31 - 1
"""Largest whole number of a config: sizes and seeds fit the integers of every library."""
MOST_NUMBER: Final = 1e9
"""Largest number of a config; its square is a finite float32."""
MAX_EPOCHS: Final = 1_000_000
"""Most passes over the documents of a training."""
MAX_ROUNDS: Final = 100_000  # trees of a boosted rule
MAX_DEPTH: Final = 64  # levels of a tree
_WORDS: Final[dict[Any, str]] = {
    int: f"a whole number, at most {MOST_WHOLE:,}",
    float: f"a finite number, at most {MOST_NUMBER:,.0f}",
    str: "text (in quotes if it looks like a number)",
    bool: "true or false",
}


class UnknownSettingError(ConfigError):
    """A config has no setting of this name."""

    setting: str
    """Its dotted name."""


def later(default: Any, *, was: Any, code_version: str = "1") -> Any:
    """Return a dataclass field that was added when artefacts already existed.

    While it has the value ``was``, which stands for what was done before, fingerprints ignore it, so the new field
    makes no artefact stale. Another ``code_version``, of what its other values do, makes stale only what has these.
    """
    return dataclasses.field(default=default, metadata={WAS: was, "code_version": code_version})


def changed(config: C, changes: Any, where: str) -> C:
    """Return ``config`` (a frozen dataclass) with ``changes`` applied, nested mappings to nested configs.

    A part can be changed by a mapping of its settings, replaced by the name of another kind ("supcon"), or both
    (``{kind: supcon, temperature: 0.1}``). Another kind starts from its defaults. Raises UnknownSettingError for an
    unknown name, ConfigError for a value of the wrong type; ``where`` names the place in the message.
    """
    if isinstance(config, Part):
        config, changes = _part(config, changes, where)
    if not isinstance(changes, dict):
        found = f"{where} = {shown(changes)}"
        raise ConfigError(found, expected="a mapping of its fields", do="name the field to change")
    hints = _hints(type(config))  # type: ignore[arg-type]  # a type is hashable
    names = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            raise _unknown_field(config, name, names, where)
        values[name] = _value(getattr(config, name), value, hints[name], f"{where}.{name}")
    return _replaced(config, values, where)


def _replaced(config: C, values: dict[str, Any], where: str) -> C:
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except ConfigError as error:  # raised by the config's own check, which does not know its place
        location = error.where or where
        raise ConfigError(error.found, expected=error.expected, do=error.do, where=location) from error


def _unknown_field(config: object, name: object, names: list[str], where: str) -> UnknownSettingError:
    available = ", ".join(names) or "none"
    expected = f"one of {available}"
    if isinstance(config, Part):
        expected = f"a setting of the {config.table.family} {config.kind!r}: {available}"
    shown_name = bare(name)
    found = f"{where}.{shown_name}{nearest(shown_name, names)}"
    error = UnknownSettingError(found, expected=expected, do="fix the name")
    error.setting = f"{where}.{name}"
    return error


def _value(present: Any, value: Any, hint: Any, where: str) -> Any:
    """Return the new value of a field whose present value and type hint are given."""
    if typing.get_origin(hint) is Mapping:
        return _parts(present, value, typing.get_args(hint)[1], where)
    if dataclasses.is_dataclass(present):
        return changed(present, value, where)
    return _converted(value, hint, where)


def _part(present: Part, changes: Any, where: str) -> tuple[Any, Any]:
    """Return the part to change and the changes without their kind."""
    if isinstance(changes, str):
        changes = {KIND: changes}
    if not isinstance(changes, dict):
        kinds = ", ".join(present.table.names())
        raise ConfigError(
            f"{where} = {shown(changes)}",
            expected=f"a {present.table.family} ({kinds}) or a mapping of its settings",
            do="fix the value",
        )
    kind = changes.get(KIND, present.kind)
    settings = {name: value for name, value in changes.items() if name != KIND}
    return (present if kind == present.kind else _default_part(present.table, kind, where)), settings


def _parts(present: Mapping[str, Part], changes: Any, family: type[Part], where: str) -> dict[str, Part]:
    """Return named parts with ``changes``: a mapping changes, adds or (null) drops parts, a list names those to keep.

    The kind of a new part is its name, unless the change states another. New parts come last, in the order given.
    """
    if isinstance(changes, list | tuple):
        keep: dict[Any, Any] = {name: {} for name in changes if isinstance(name, str)}
        changes = {**dict.fromkeys(present), **keep} if len(keep) == len(changes) else changes
    if not isinstance(changes, dict):
        expected = "a mapping from names to settings, or a list of names"
        raise ConfigError(f"{where} = {shown(changes)}", expected=expected, do="fix the value")
    parts = dict(present)
    for name, value in changes.items():
        part_where = f"{where}.{_part_name(name, where)}"
        if value is None:
            _drop(parts, name, family, part_where)
            continue
        kind = value.get(KIND, name) if isinstance(value, dict) else value if isinstance(value, str) else name
        part = parts[name] if name in parts else _default_part(family.table, kind, part_where)
        parts[name] = changed(part, value, part_where)
    return parts


def _part_name(name: object, where: str) -> str:
    """Return ``name``; raise ConfigError if it cannot name a part, for instance because it would leave a folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = "a name of lower-case letters, digits, '-' and '_', at most 64"
        raise ConfigError(f"the name {shown(name)} in {where}", expected=expected, do="choose another name")
    return name


def _drop(parts: dict[str, Part], name: str, family: type[Part], where: str) -> None:
    """Remove a part; dropping a known one that is not in use does nothing, so that one change fits many recipes."""
    if name not in parts and name not in family.table:
        found, expected = f"{where} = null{nearest(name, parts)}", f"one of {', '.join(parts) or 'none'}"
        raise ConfigError(found, expected=expected, do="fix the name")
    parts.pop(name, None)


def _default_part(table: Any, kind: object, where: str) -> Part:
    """Return the part ``kind`` with its defaults; raise UnknownPartError, with the place, for an unknown kind."""
    try:
        part: Part = table[kind]()
    except ConfigError as error:
        raise type(error)(error.found, expected=error.expected, do=error.do, where=where) from error
    return part


def _converted(value: Any, hint: Any, where: str) -> Any:
    """Return ``value`` as the type ``hint``; a whole number is accepted for a float, a list for a tuple."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_converted(item, typing.get_args(hint)[0], f"{where}[{i}]") for i, item in enumerate(value))
        expected = "a list, [a, b]"
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if value in [member.value for member in hint]:
            return hint(value)
        expected = " or ".join(member.value for member in hint)
    else:
        if hint is float and type(value) in (int, float) and -MOST_NUMBER <= value <= MOST_NUMBER:
            return float(value)
        if hint is int and type(value) is int and -MOST_WHOLE <= value <= MOST_WHOLE:
            return value
        if hint in (str, bool) and type(value) is hint:
            return value
        expected = _WORDS.get(hint, str(hint))
    raise ConfigError(f"{where} = {shown(value)}", expected=expected, do="fix the value")


def deep_merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return both nested mappings as one; ``theirs`` wins if both have a value.

    If one has the kind of a part and the other its settings, both are kept; settings of another kind are dropped.
    Raises ConfigError if one lists the named parts to keep and the other has settings of such parts.
    """
    merged = {**ours, **theirs}
    for name in ours.keys() & theirs.keys():
        left, right = ours[name], theirs[name]
        if isinstance(left, dict) or isinstance(right, dict):
            left, right = ({KIND: side} if isinstance(side, str) else side for side in (left, right))
        if isinstance(left, dict) and isinstance(right, dict):
            same_kind = KIND not in left or left[KIND] == right.get(KIND, left[KIND])
            merged[name] = deep_merged(left, right) if same_kind else right
        elif {type(left), type(right)} == {dict, list}:
            found = f"a list of {name}, and settings of single {name}"
            raise ConfigError(found, expected="one of them", do=f"leave out by name, not by a list: {name}.NAME=null")
    return merged


def put(changes: dict[str, Any], name: str, value: Any) -> None:
    """Put ``value`` at the dotted ``name`` into nested mappings.

    A part may be given by its kind and its settings in any order: ("encoder.loss", "supcon"),
    ("encoder.loss.temperature", 1). A later value of the same name counts. Raises ConfigError if a name would have both
    a value and settings of its own.
    """
    *parents, last = name.split(".")
    mapping = changes
    for parent in parents:
        child = mapping.setdefault(parent, {})
        if isinstance(child, str):
            child = mapping[parent] = {KIND: child}
        if not isinstance(child, dict):
            raise _conflict_error(name, parent)
        mapping = child
    present = mapping.get(last)
    if isinstance(present, dict) and not isinstance(value, str):
        raise _conflict_error(f"a setting of {last}", last)
    mapping[last] = {**present, KIND: value} if isinstance(present, dict) else value


def _conflict_error(found: str, name: str) -> ConfigError:
    return ConfigError(f"{found} and another value of {name}", expected="one value per setting", do="drop one")


def dotted(changes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as values under dotted names, the reverse of ``put``; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for name, value in changes.items():
        nested = isinstance(value, Mapping) and value
        flat |= dotted(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def option_text(value: Any) -> str:
    """Return the value of a setting as ``--set`` reads it: YAML, in which a text such as "1" or "a: b" needs quotes."""
    try:
        unquoted = isinstance(value, str) and yaml_of(value) == value
    except ConfigError:
        unquoted = False
    return value if unquoted else json.dumps(value, ensure_ascii=False)


def at_least(config: object, **bounds: float) -> None:
    """Raise ConfigError if a field of ``config`` is less than its named bound."""
    for name, bound in bounds.items():
        _require(config, name, getattr(config, name) >= bound, f"at least {bound}")


def at_most(config: object, **bounds: float) -> None:
    """Raise ConfigError if a field of ``config`` exceeds its named bound."""
    for name, bound in bounds.items():
        _require(config, name, getattr(config, name) <= bound, f"at most {bound:,}")


def within(config: object, **bounds: tuple[float, float]) -> None:
    """Raise ConfigError if a field of ``config`` lies outside its named range, whose ends belong to it."""
    for name, (low, high) in bounds.items():
        _require(config, name, low <= getattr(config, name) <= high, f"{low:,} to {high:,}")


def below(config: object, **bounds: float) -> None:
    """Raise ConfigError if a field of ``config`` is not less than its named bound."""
    for name, bound in bounds.items():
        _require(config, name, getattr(config, name) < bound, f"less than {bound}")


def one_of(config: object, **choices: tuple[str, ...]) -> None:
    """Raise ConfigError if a field of ``config`` is not one of its choices."""
    for name, allowed in choices.items():
        _require(config, name, getattr(config, name) in allowed, " or ".join(allowed))


def _require(config: object, name: str, valid: bool, expected: str) -> None:
    if not valid:
        raise ConfigError(f"{name} {shown(getattr(config, name))}", expected=expected, do="fix the value")


def plain(config: Any) -> Any:
    """Return a config as dictionaries, lists, strings and numbers, with every setting."""
    return _plain(config, used=False)


def in_use(config: Any) -> Any:
    """Return ``plain`` without settings that cannot affect the result of a stage.

    These are the fields that the config reports as unused (``unused()``, for instance the optimiser of a training of
    0 epochs; "table.lr" is a field of the config ``table``) and those added with ``later`` that still have their
    earlier value. A part, or a field added with ``later``, whose ``code_version`` is not "1" has that too.
    """
    return _plain(config, used=True)


def _plain(config: Any, *, used: bool, unused_above: frozenset[str] = frozenset()) -> Any:
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        unused = unused_above | (config.unused() if used and isinstance(config, HasUnused) else frozenset())
        return _kind_and_version(config, used=used) | {
            f.name: _marked(f, used, _plain(getattr(config, f.name), used=used, unused_above=_within(unused, f.name)))
            for f in dataclasses.fields(config)
            if f.name not in unused and not (used and WAS in f.metadata and f.metadata[WAS] == getattr(config, f.name))
        }
    if isinstance(config, Mapping):
        named = {str(name): _plain(part, used=used) for name, part in config.items()}
        return [[name, part] for name, part in named.items()] if used else named  # fingerprints depend on order
    if isinstance(config, Enum):
        return config.value
    if isinstance(config, tuple | list):
        return [_plain(item, used=used) for item in config]
    return config


def _kind_and_version(config: Any, *, used: bool) -> dict[str, str]:
    """Return the kind of a part and, for fingerprints, the version of its code."""
    if not isinstance(config, Part):
        return {}
    version = {"code_version": config.code_version} if used and config.code_version != "1" else {}
    return {KIND: config.kind, **version}


def _marked(field: dataclasses.Field[Any], used: bool, value: Any) -> Any:
    """Return the value of a field with, for fingerprints, the version of its code."""
    version = field.metadata.get("code_version", "1") if used else "1"
    return value if version == "1" else {"value": value, "code_version": version}


def _within(names: frozenset[str], field: str) -> frozenset[str]:
    """Return the names of ``names`` that are fields of the config ``field``."""
    return frozenset(name.removeprefix(f"{field}.") for name in names if name.startswith(f"{field}."))
