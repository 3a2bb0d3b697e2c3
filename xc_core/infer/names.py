"""The names of labels: strings in one Arrow buffer, which become Python strings when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import polars as pl


class LabelNames(Sequence[str]):
    """L strings, equal to a list of the same strings; a list takes about three times the memory."""

    def __init__(self, series_L: pl.Series) -> None:
        self._series_L = series_L

    def __len__(self) -> int:
        return len(self._series_L)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> LabelNames: ...
    def __getitem__(self, place: int | slice) -> str | LabelNames:
        value = self._series_L[place]
        return value if isinstance(value, str) else LabelNames(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._series_L)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


def label_names(path: Path) -> tuple[LabelNames, LabelNames]:
    """Return the uids and titles of the labels in the Parquet file ``path``."""
    labels = pl.read_parquet(path, columns=["uid", "title"], glob=False)
    return LabelNames(labels["uid"]), LabelNames(labels["title"])
