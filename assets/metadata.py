"""Facts, tables and plots as Dagster and MLflow show them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import dagster as dg

from xc_core.artifacts import Made, pictures, read_manifest

_HIDDEN: Final = frozenset({"source", "metrics", "theorem1", "validation", "figures"})
_LARGEST_PICTURE: Final = 400_000
"""Largest picture, in bytes, that is stored in an event; of a larger one only the path is stored."""


@dataclass
class Shown:
    """What is shown: metadata for Dagster, metrics and files for MLflow."""

    metadata: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def summary(folder: Path, made: Made, show: Callable[[Path], Shown] | None) -> Shown:
    """Return the facts of an artefact, its size and plots, and what ``show`` adds."""
    shown = show(folder) if show else Shown()
    facts = {key: value for key, value in made.facts.items() if key not in _HIDDEN}
    plain = {key: _value(value) for key, value in facts.items() if value is not None}
    size = read_manifest(folder).bytes
    own = {key: short(value) for key, value in shown.metadata.items() if value is not None}
    shown.metadata = {**plain, "megabytes": round(size / 1e6, 2), **own}
    shown.metrics = {**numbers(facts), **shown.metrics}
    for path in pictures(folder):
        shown.metadata[path.stem] = picture(path)
        shown.files.append(path)
    return shown


def _value(value: Any) -> Any:
    return dg.MetadataValue.json(value) if isinstance(value, dict | list) else short(value)


def short(value: Any) -> Any:
    """Return a float with five significant digits, anything else as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return all numbers of nested facts under dotted names."""
    out: dict[str, float] = {}
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, int | float):
            out[name] = float(value)
        elif isinstance(value, Mapping):
            out |= numbers(value, name)
    return out


def picture(path: Path) -> dg.MetadataValue[Any]:
    """Return a picture as Markdown that the UI renders inline, or its path if it is large."""
    content = path.read_bytes()
    if len(content) > _LARGEST_PICTURE:
        return dg.MetadataValue.path(str(path))
    return dg.MetadataValue.md(f"![{path.stem}](data:image/png;base64,{base64.b64encode(content).decode()})")


def table(rows: Mapping[str, Mapping[str, float | None]], columns: list[str]) -> dg.MetadataValue[Any]:
    """Return named rows of figures as a Markdown table."""
    head = "| | " + " | ".join(name.replace("_at_", "@") for name in columns) + " |"
    lines = [head, "| --- |" + " ---: |" * len(columns)]
    for name, values in rows.items():
        cells = ["-" if values.get(c) is None else f"{values[c]:.2f}" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return dg.MetadataValue.md("\n".join(lines))
