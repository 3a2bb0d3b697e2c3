"""The artefact of the stage leaderboard: ``leaderboard.parquet``, ``leaderboard.md`` and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import polars as pl

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.metrics import plots

METRICS: Final = ("P_at_1", "P_at_3", "P_at_5", "nDCG_at_5", "PSP_at_1", "PSP_at_3", "PSP_at_5", "R_at_10")
COSTS: Final = (
    "train_seconds",
    "mining_share",
    "peak_memory_mb",
    "latency_p50_ms",
    "latency_p99_ms",
    "index_recall",
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
        """Open and verify the artefact at ``folder``.

        Raises MissingError, CorruptError.
        """
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
        """The table as a data frame, best recipe first."""
        return pl.read_parquet(self.folder / _ROWS)


def write_leaderboard(build: Build, rows: list[dict[str, Any]], title: str) -> None:
    """Write the rows, which must come best first, as a data frame, as Markdown and as a plot."""
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(build.path / _ROWS)
    (build.path / _TABLE).write_text(f"# {title}\n\n{markdown(rows)}\n", "utf-8")
    plots.leaderboard(build.path, rows, title)
    build.facts |= {"recipes": [row["recipe"] for row in rows], "best": rows[0]["recipe"]}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table, metrics in percent."""
    names = ["recipe", *METRICS, "P@1 95 %", "p", *COSTS]
    lines = ["| " + " | ".join(name.replace("_at_", "@").replace("_", " ") for name in names) + " |"]
    lines.append("| --- |" + " ---: |" * (len(names) - 1))
    for row in rows:
        cells = [row["recipe"], *("-" if row[name] is None else f"{row[name]:.2f}" for name in METRICS)]
        cells += [f"{row['P_at_1_low']:.1f} to {row['P_at_1_high']:.1f}"]
        cells += ["best" if row["p_value"] is None else _p_text(row["p_value"])]
        cells += [
            "-" if row[name] is None else f"{row[name]:.3g}" if abs(row[name]) < 100 else f"{row[name]:.0f}"
            for name in COSTS
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _p_text(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
