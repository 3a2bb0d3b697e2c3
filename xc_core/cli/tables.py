"""Tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from xc_core.chain import Workspace
from xc_core.chain.costs import read_costs
from xc_core.chain.names import first_command
from xc_core.chain.status import states
from xc_core.errors import XCError
from xc_core.metrics.calibration import in_words
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.names import TABLE, titled
from xc_core.visible import counted, printable

REFRESH: Final = "train again, or refresh (docs/runbook.md#refresh)"
"""What to do after a change of the data."""
_WIDTH: Final = 120
"""Characters of a line of a printed table."""


def show_metrics(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Print the table of an evaluation."""
    evaluation = workspace.open(Evaluation, dataset, recipe)
    documents = evaluation.report["documents"]
    click.echo(metrics_table(evaluation, f"{dataset} / {recipe}: {counted(documents, 'test document')}"))
    for name, words in evaluation.learnt.words().items():
        spent = read_costs(workspace, name, dataset, recipe).get("train_seconds")
        click.echo(f"{name + ':':<12} {words}" + (f", {spent:.0f} s" if spent else ""))
    if calibration := evaluation.report.get("calibration"):
        click.echo(f"{'probability:':<12} {in_words(calibration)}")


def show_next(workspace: Workspace, dataset: str, advice: str = "train again") -> None:
    """Print the commands that train the experiments of a dataset that are out of date, or a first one."""
    recipes = workspace.params.recipes(dataset)
    if not recipes:
        click.echo(f"next: {first_command(dataset)}")
        click.echo("      then, with an encoder: --recipe ngame")
        return
    stale = [recipe for recipe in recipes if not _is_up_to_date(workspace, dataset, recipe)]
    click.echo(f"next: {advice}:" if stale else f"{dataset}: every experiment is up to date")
    for recipe in stale:
        click.echo(f"  {workspace.params.train_command(dataset, recipe)}")


def _is_up_to_date(workspace: Workspace, dataset: str, recipe: str) -> bool:
    try:
        partition = workspace.params.partition(dataset, recipe)
        return all(state.status.usable for state in states(workspace, partition).values())
    except XCError:  # of a wrong setting, which the training reports
        return False


def metrics_table(evaluation: Evaluation, title: str) -> str:
    """Return the metrics of each score and of the fusion, with intervals, as an aligned table, in percent."""
    content = evaluation.report
    width = max(12, *(len(row) + 1 for row in content["ablation"]))
    lines = [title, " " * width + "".join(f"{titled(name):>9}" for name in TABLE) + "   candidates of"]
    for row, values in content["ablation"].items():
        cells = "".join(f"{_cell(values[name]):>9}" for name in TABLE)
        lines.append(f"{row:<{width}}{cells}   {content['candidates'][row]}")
    low, high = zip(*(content["intervals"][name] for name in TABLE), strict=True)
    lines.append(f"{'95 % from':<{width}}" + "".join(f"{_cell(value):>9}" for value in low))
    lines.append(f"{'to':<{width}}" + "".join(f"{_cell(value):>9}" for value in high))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def show_leaderboard(workspace: Workspace, dataset: str) -> None:
    """Print the tables of a leaderboard, aligned and no wider than a terminal."""
    from xc_core.metrics.leaderboard import Leaderboard, explanation, tables

    rows = workspace.open(Leaderboard, dataset).rows.to_dicts()
    lines = [f"# {dataset}", ""]
    for heading, cells in tables(rows).items():
        lines += [f"## {heading}", "", *_aligned(cells), ""]
    click.echo(printable("\n".join([*lines, explanation(rows)])))


def _aligned(cells: list[list[str]], width: int = _WIDTH) -> list[str]:
    """Return the lines of a table with aligned columns; one that is wider than ``width`` becomes several.

    Each of these has the first column, by which a reader finds the row. All are tables of Markdown too.
    """
    name, *columns = [_padded(column, number > 0) for number, column in enumerate(zip(*cells, strict=True))]
    blocks = [[name]]
    for column in columns:
        if len(blocks[-1]) > 1 and sum(len(padded[0]) + 3 for padded in (*blocks[-1], column)) >= width:
            blocks.append([name])
        blocks[-1].append(column)
    tables = [["| " + " | ".join(line) + " |" for line in zip(*block, strict=True)] for block in blocks]
    return [line for number, table in enumerate(tables) for line in ([""] if number else []) + table]


def _padded(cells: Sequence[str], right: bool) -> list[str]:
    """Return the cells of a column with the same width, and the ruler of Markdown after the first."""
    width = max(map(len, ("---:", *cells)))
    head, *values = [cell.rjust(width) if right else cell.ljust(width) for cell in cells]
    return [head, "-" * (width - right) + ":" * right, *values]
