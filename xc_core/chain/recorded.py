"""Settings that an artefact records, with those that came later: what they were when it was made."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from xc_core.params import KIND, WAS, plain
from xc_core.plugins import Part


def with_earlier_values(config: Any, recorded: Any) -> Any:
    """Return ``recorded``, the ``plain`` of a config, with the earlier value of each field that came ``later``.

    ``config`` is any config of this class; its values do not matter. A part of an unknown kind stays as it is.
    """
    if not isinstance(recorded, dict):
        return recorded
    if isinstance(config, Part):
        return _part_with_earlier_values(config.table, {KIND: config.kind, **recorded})
    return _fields_with_earlier_values(config, recorded) if dataclasses.is_dataclass(config) else recorded


def _part_with_earlier_values(table: Any, recorded: dict[str, Any]) -> dict[str, Any]:
    kind = recorded.get(KIND)
    return _fields_with_earlier_values(table[kind](), recorded) if kind in table else recorded


def _fields_with_earlier_values(config: Any, recorded: dict[str, Any]) -> dict[str, Any]:
    filled, hints = dict(recorded), typing.get_type_hints(type(config))
    for one in dataclasses.fields(config):
        value, hint = recorded.get(one.name), hints[one.name]
        if one.name not in recorded:
            filled |= {one.name: plain(one.metadata[WAS])} if WAS in one.metadata else {}
        elif typing.get_origin(hint) is Mapping and isinstance(value, dict):
            table = typing.get_args(hint)[1].table
            filled[one.name] = {name: _part_with_earlier_values(table, part) for name, part in value.items()}
        else:
            filled[one.name] = with_earlier_values(getattr(config, one.name), value)
    return filled
