"""Settings that change because a part is replaced by another kind, which starts from its own defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from xc_core.plugins import Part


def reset(before: Any, after: Any, given: Collection[str]) -> list[str]:
    """Return the settings that two kinds of a part share, and whose values are not those of ``before``.

    ``before`` and ``after`` are recipes, or configs of them. A setting is described by its dotted name and both values
    ("classifier.order.batch_size 128 instead of 1024"). The dotted names in ``given`` were asked for.
    """
    return [f"{name} {new} instead of {old}" for name, old, new in _reset(before, after, "") if name not in given]


def sentence(changed: list[str]) -> str:
    """Return what a user should know of the settings that ``reset`` found."""
    return f"another kind has its own defaults: {', '.join(changed)}; --set keeps a value"


def _reset(before: Any, after: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, old and new value of each such setting below ``where``."""
    ours, theirs = _fields(before), _fields(after)
    another_kind = isinstance(before, Part) and isinstance(after, Part) and before.kind != after.kind
    for name in [name for name in ours if name in theirs and (another_kind or type(before) is type(after))]:
        if _fields(ours[name]) or _fields(theirs[name]):
            yield from _reset(ours[name], theirs[name], f"{where}{name}.")
        elif another_kind and ours[name] != theirs[name]:
            yield f"{where}{name}", ours[name], theirs[name]


def _fields(config: Any) -> dict[str, Any]:
    """Return the settings of a config, or the named parts of a mapping; none of another value."""
    if isinstance(config, Mapping):
        return dict(config)
    if not dataclasses.is_dataclass(config):
        return {}
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
