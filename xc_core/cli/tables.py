"""Tables that commands print."""

from __future__ import annotations

from typing import Final

import click

from xc_core.chain import Workspace
from xc_core.chain.costs import read_costs
from xc_core.chain.status import states
from xc_core.errors import XCError
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.names import TABLE, titled
from xc_core.visible import counted, printable

REFRESH: Final = "train again, or refresh (docs/runbook.md#refresh)"
"""What to do after a change of the data."""


def show_metrics(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Print the table of an evaluation."""
    evaluation = workspace.open(Evaluation, dataset, recipe)
    documents = evaluation.report["documents"]
    click.echo(metrics_table(evaluation, f"{dataset} / {recipe}: {counted(documents, 'test document')}"))
    for name, words in evaluation.learnt.words().items():
        spent = read_costs(workspace, name, dataset, recipe).get("train_seconds")
        click.echo(f"{name + ':':<12} {words}" + (f", {spent:.0f} s" if spent else ""))


def show_next(workspace: Workspace, dataset: str, how: str = "train again") -> None:
    """Print the commands that train the experiments of a dataset that are out of date, or a first one."""
    recipes = workspace.params.recipes(dataset)
    if not recipes:
        click.echo(f"next: xc train --dataset {dataset} --recipe ngame")
        return
    stale = [recipe for recipe in recipes if not _is_up_to_date(workspace, dataset, recipe)]
    click.echo(f"next: {how}:" if stale else f"{dataset}: every experiment is up to date")
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
    lines = [title, f"{'':<12}" + "".join(f"{titled(name):>9}" for name in TABLE) + "   candidates of"]
    for row, values in content["ablation"].items():
        cells = "".join(f"{_cell(values[name]):>9}" for name in TABLE)
        lines.append(f"{row:<12}{cells}   {content['candidates'][row]}")
    low, high = zip(*(content["intervals"][name] for name in TABLE), strict=True)
    lines.append(f"{'95 % from':<12}" + "".join(f"{_cell(value):>9}" for value in low))
    lines.append(f"{'to':<12}" + "".join(f"{_cell(value):>9}" for value in high))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def show_leaderboard(workspace: Workspace, dataset: str) -> None:
    """Print the table of a leaderboard."""
    from xc_core.metrics.leaderboard import Leaderboard

    click.echo(printable(workspace.open(Leaderboard, dataset).text))
