"""Facts, tables and plots as Dagster and MLflow show them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

import dagster as dg

from assets import links
from xc_core.artifacts import Made
from xc_core.manifests import pictures, read_manifest
from xc_core.metrics.names import titled
from xc_core.params import dotted
from xc_core.visible import cut

_HIDDEN: Final = frozenset({"source", "metrics", "theorem1", "validation", "figures", "test", "max_drop"})
_LARGEST_PICTURE: Final = 400_000
"""Largest picture, in bytes, that is stored in an event; of a larger one only the path is stored."""
_PICTURE: Final = ".png"
_BREAKS: Final = re.compile(r"[/?-]")
"""Characters of an address behind which a browser may begin a new line."""
_WIDEST: Final = 40
"""Characters without a break that fit into the panel of metadata."""


@dataclass
class Shown:
    """What is shown: metadata for Dagster, metrics and files for MLflow."""

    first: dict[str, Any] = field(default_factory=dict)
    """Metadata above the plots."""
    metadata: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def summary(folder: Path, made: Made, show: Callable[[Path], Shown] | None) -> Shown:
    """Return what ``show`` says of an artefact, then its other facts and its size; its plots are among the files."""
    shown = show(folder) if show else Shown()
    facts = {key: value for key, value in made.facts.items() if key not in _HIDDEN}
    fact_metadata = {key: _value(value) for key, value in facts.items() if not _is_empty(value)}
    size = read_manifest(folder).bytes
    stage_metadata = {key: short(value) for key, value in shown.metadata.items() if value is not None}
    shown.metadata = {
        **stage_metadata,
        **{key: value for key, value in fact_metadata.items() if key not in {*stage_metadata, *shown.first}},
    }
    shown.metadata["megabytes"] = round(size / 1e6, 2)
    shown.metrics = {**numbers(facts), **shown.metrics}
    shown.files += pictures(folder)
    return shown


def _is_empty(value: Any) -> bool:
    """Return True for a fact that says nothing, such as accepted rows of which there are none."""
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    return value is None or value in ("", [])


def _value(value: Any) -> Any:
    return dg.MetadataValue.json(value) if isinstance(value, dict | list) else short(value)


def short(value: Any) -> Any:
    """Return a float with five significant digits, anything else as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers of nested facts under dotted names."""
    return {name: float(value) for name, value in dotted(values).items() if isinstance(value, int | float)}


def plots(files: Iterable[Path], address: Callable[[str], str | None]) -> dict[str, dg.MetadataValue[Any]]:
    """Return the pictures among ``files`` by name; ``address`` gives the address of a file, None if it has none."""
    return {path.stem: picture(path, address(path.name)) for path in files if path.suffix == _PICTURE}


def picture(path: Path, address: str | None = None) -> dg.MetadataValue[Any]:
    """Return a picture as Markdown, or its path if it is large and has no address.

    Dagster shows Markdown of less than 1,000 characters at once. A picture that is stored in the event is longer, so it
    needs a click on "Show Markdown"; one that is loaded from its address does not.
    """
    if address is not None:
        return dg.MetadataValue.md(f"![{path.stem}]({address})")
    content = path.read_bytes()
    if len(content) > _LARGEST_PICTURE:
        return dg.MetadataValue.path(str(path))
    return dg.MetadataValue.md(f"![{path.stem}](data:image/png;base64,{base64.b64encode(content).decode()})")


def table(head: str, rows: Mapping[str, Mapping[str, float | None]], columns: Sequence[str]) -> dg.MetadataValue[Any]:
    """Return named rows of figures as a table, with two decimals; ``head`` says what the names are."""
    titles = {column: titled(column) for column in columns}
    return texts([{head: name} | {titles[c]: figure(values.get(c)) for c in columns} for name, values in rows.items()])


def texts(rows: list[dict[str, str]]) -> dg.MetadataValue[Any]:
    """Return rows of texts as a table; Dagster shows it at once, however long it is."""
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in (rows[0] if rows else ())])
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=schema)


def figure(value: float | None) -> str:
    """Return a figure with two decimals, - if there is none."""
    return "-" if value is None else f"{value:.2f}"


def link(address: str | None, otherwise: str) -> dg.MetadataValue[Any]:
    """Return a link, or a text if the address is not known.

    Dagster shows a link as its address, and a browser breaks that only at some marks. With a longer part, such as the
    name of a host, the table would be wider than its panel. Then ``otherwise`` is shown, as a link in Markdown, which
    opens in the same tab.
    """
    if address is None:
        return dg.MetadataValue.text(otherwise)
    if max(map(len, _BREAKS.split(address))) <= _WIDEST:
        return dg.MetadataValue.url(address)
    return dg.MetadataValue.md(links.markdown(cut(PurePath(otherwise).name, _WIDEST), address))
