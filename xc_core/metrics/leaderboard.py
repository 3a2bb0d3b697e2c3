"""The artefact of the stage leaderboard: ``leaderboard.parquet``, ``leaderboard.md`` and a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import polars as pl

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.metrics import plots
from xc_core.metrics.names import TABLE, titled

SPENT: Final = (
    "encoder_documents",
    "encoder_seconds",
    "classifier_documents",
    "classifier_seconds",
    "scores_seconds",
    "fusion_seconds",
)
"""What a recipe was given: documents in all epochs together, label texts among them, and seconds.

Those of encoder and classifier are of the trainings, those of scores and fusion of the whole stage.
"""
COSTS: Final = (
    "mining_share",
    "peak_memory_mb",
    "latency_p50_ms",
    "latency_p99_ms",
    "index_recall",
)
LEARNT: Final = ("encoder_learnt_from", "classifier_learnt_from")
_EXPLAINED: Final = (
    "Recipes whose encoders were trained on about as many documents (epochs x documents, label texts included) are in "
    "one group, those that train none in a group of their own. In a group, p compares methods: a paired randomisation "
    "test of P@1 against the best of it. Across groups, for instance with a baseline, xc compare tests two recipes; a "
    "longer training is then part of the difference. Percent on test documents. Seconds of a classifier include its "
    "held-out trainings, its documents are of the final one; seconds of scores include indexes and label trees. "
    "Measured on "
)
_ROWS: Final = "leaderboard.parquet"
_TABLE: Final = "leaderboard.md"


@dataclass(frozen=True)
class Leaderboard:
    """All evaluated recipes of a dataset in one table."""

    kind: ClassVar[str] = "leaderboard"
    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Leaderboard:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        return cls(folder)

    @property
    def text(self) -> str:
        """The table as Markdown."""
        return self.file.read_text("utf-8")

    @property
    def file(self) -> Path:
        """Path of the Markdown table, to attach to a run."""
        return self.folder / _TABLE

    @property
    def rows(self) -> pl.DataFrame:
        """The table as a data frame: by group, the least trained encoders first; in each the best recipe first."""
        return pl.read_parquet(self.folder / _ROWS, glob=False)


def group(passes: float) -> str:
    """Return the group of a recipe whose encoder was trained on ``passes`` times the published documents.

    Each group ends at twice the passes of the one before: 0.5 to 1, 1 to 2, 2 to 4 and so on.
    """
    if not passes:
        return "encoder not trained"
    upper = 2.0 ** math.ceil(math.log2(passes))
    return f"encoder trained on {upper / 2:g} to {upper:g} times the train file"


def write_leaderboard(build: Build, rows: list[dict[str, Any]], title: str) -> None:
    """Write the rows, group by group and in each the best first, as a data frame, as Markdown and as a plot."""
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(build.path / _ROWS)
    (build.path / _TABLE).write_text(f"# {title}\n\n{markdown(rows)}\n", "utf-8")
    plots.leaderboard(build.path, rows, title)
    best = {name: group_rows[0]["recipe"] for name, group_rows in _groups(rows).items()}
    build.facts |= {"recipes": [row["recipe"] for row in rows], "best": best}


def _groups(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each group, in their order."""
    return {name: [row for row in rows if row["group"] == name] for name in dict.fromkeys(r["group"] for r in rows)}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as one Markdown table per group, metrics in percent, and what the groups and columns mean."""
    parts = [f"## {heading}\n\n{_markdown_table(cells)}" for heading, cells in tables(rows).items()]
    return "\n\n".join([*parts, explanation(rows)])


def tables(rows: list[dict[str, Any]]) -> dict[str, list[list[str]]]:
    """Return the table of each group as cells, by its heading; the first line has the names of the columns."""
    return {f"{name[0].upper()}{name[1:]}": _cells(group_rows) for name, group_rows in _groups(rows).items()}


def explanation(rows: list[dict[str, Any]]) -> str:
    """Return what the groups and columns mean, and on which machines the rows were measured."""
    machines = sorted({name for row in rows for name in row["machines"]})
    return f"{_EXPLAINED}{' and '.join(machines) or 'an unknown machine'}."


def _markdown_table(cells: list[list[str]]) -> str:
    head, *lines = ("| " + " | ".join(line) + " |" for line in cells)
    return "\n".join([head, "| --- |" + " ---: |" * (len(cells[0]) - 1), *lines])


def _cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    names = ["recipe", *TABLE, "P@1 95 %", "p", *LEARNT, *SPENT, *COSTS]
    lines = [[titled(name).replace("_", " ") for name in names]]
    for row in rows:
        cells = [row["recipe"], *("-" if row[name] is None else f"{row[name]:.2f}" for name in TABLE)]
        cells += [f"{row['P_at_1_low']:.1f} to {row['P_at_1_high']:.1f}"]
        cells += ["best" if row["p_value"] is None else _p_text(row["p_value"])]
        cells += [row[name] for name in LEARNT]
        cells += ["-" if row[name] is None else f"{row[name]:,.0f}" for name in SPENT]
        cells += [
            "-" if row[name] is None else f"{row[name]:.3g}" if abs(row[name]) < 100 else f"{row[name]:.0f}"
            for name in COSTS
        ]
        lines.append(cells)
    return lines


def _p_text(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
