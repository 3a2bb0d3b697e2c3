"""``make gpu-proof``: what a GPU does with this code, as a table in docs/results/gpu.md, written after each piece.

The pieces of ``gpu_pieces`` come first, then recipes within a budget. The default budget of 2 minutes for each of the
four recipes fits the time limit of 20 minutes; 10 minutes each do not (``--budget 10m --minutes 60``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click
import torch

from benchmarks.gpu_pieces import PIECES, RATED, RECIPES, Row, Sizes, rates
from benchmarks.harness import today
from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.chain.costs import processor, read_costs
from xc_core.chain.kept import TRAINED
from xc_core.devices import Device
from xc_core.environment import DEVICE
from xc_core.errors import CorruptError, UsageError, XCError, in_words
from xc_core.metrics.evaluation import FUSION, Evaluation
from xc_core.metrics.names import titled
from xc_core.planning.on_gpu import GPU_RATES

BEGIN, END = "<!-- gpu-proof: begin -->", "<!-- gpu-proof: end -->"
_LIMIT: Final = 20.0
"""Minutes after which no further piece starts."""


Piece = Callable[[], list[Row]]


@dataclass
class Proof:
    """The table so far; it is written into ``page`` after each piece."""

    device: Device
    page: Path
    ends: float
    """Value of ``time.monotonic`` from which on no further piece starts."""
    rows: list[Row] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self, name: str, piece: Piece) -> None:
        """Add the rows of a piece, or a row that says why there are none, and write the table."""
        if time.monotonic() >= self.ends:
            self.rows.append(Row(name, "not measured: the time limit was reached"))
        else:
            click.echo(f"{name} ...", err=True)
            self.rows += self._run_piece(name, piece)
        with artifacts.writing(self.page):
            artifacts.write_file(self.page, written(self.page.read_text("utf-8"), table(self.rows, self.device)))

    def _run_piece(self, name: str, piece: Piece) -> list[Row]:
        try:
            rows = piece()
        except Exception as error:  # for instance a card without enough memory
            click.echo(f"{name}: {error}" if isinstance(error, XCError) else traceback.format_exc(), err=True)
            self.failed.append(name)
            return [Row(name, f"failed: {in_words(error).partition(chr(10))[0][:200].replace('|', '/')}")]
        self.done.append(name)
        return rows


def prove(proof: Proof, workspace: Workspace, chosen: list[str], recipes: Mapping[str, Piece]) -> None:
    """Run the ``chosen`` pieces, record the rates if all that they need was measured, and run the recipes."""
    sizes = Sizes()
    for name in chosen:
        proof.run(name, partial(PIECES[name], proof.device, sizes))
    if set(RATED) <= set(proof.done):
        workspace.write(workspace.state / GPU_RATES, json.dumps(rates(proof.device, sizes), indent=1) + "\n")
    for name, recipe in recipes.items():
        proof.run(name, recipe)


def recipe_rows(workspace: Workspace, dataset: str, budget: str, name: str) -> list[Row]:
    """Train a recipe within ``budget`` in a process of its own; return its figures, time and share of mining.

    The process uses the device of XC_DEVICE. Raises ChildError if it fails.
    """
    start = time.monotonic()
    command = [sys.executable, "-m", "xc_core.cli.main", "train", "--dataset", dataset, "--recipe", name]
    ended = subprocess.run([*command, "--budget", budget, "--force"], cwd=workspace.root, check=False)
    if ended.returncode:
        raise ChildError(
            f"xc train of {name} ending with exit code {ended.returncode}",
            expected="a trained recipe",
            do="see its messages above",
        )
    return [_recipe_row(workspace, dataset, name, time.monotonic() - start)]


class ChildError(XCError):
    """A command that was started failed."""


def _recipe_row(workspace: Workspace, dataset: str, name: str, seconds: float) -> Row:
    report = Evaluation.open(workspace.folder("evaluation", dataset, name)).report
    figures = report["ablation"][FUSION]
    costs = [read_costs(workspace, stage, dataset, name) for stage in TRAINED]
    trained, mined = (sum(cost.get(key, 0.0) for cost in costs) for key in ("train_seconds", "mining_seconds"))
    shown = ", ".join(f"{titled(key)} {figures[key]:.2f}" for key in ("P_at_1", "P_at_5", "PSP_at_5"))
    share = f"mining {mined / trained:.1%} of {trained:.0f} s of training" if trained else "no training"
    return Row(f"{name} on {dataset}", f"{shown}; {share}; {seconds:.0f} s in all")


def table(rows: list[Row], device: Device) -> str:
    """Return the rows as Markdown, with date and machine."""
    head = f"{today()}, {device.in_words()}, {processor()}, torch {torch.__version__}."
    lines = [head, "", "| what | found | wanted |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {row.what} | {row.found} | {row.wanted} |" for row in rows)])


def written(page: str, content: str) -> str:
    """Return ``page`` with ``content`` between the markers; raise CorruptError if it does not have both."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise CorruptError("a page without the markers", expected=f"{BEGIN} and {END}", do="git checkout the page")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def chosen_pieces(text: str) -> list[str]:
    """Return the names in a list with commas; raise UsageError for one that is no piece."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PIECES:
            raise UsageError(f"piece {name!r}", expected=", ".join(PIECES), do="fix --pieces")
    return names


@click.command()
@click.option("--dataset", default="ysofinna", show_default=True, help="Dataset of the project that recipes train on.")
@click.option("--budget", default="2m", show_default=True, help="Training time of each of the four recipes.")
@click.option("--page", type=click.Path(path_type=Path), default=Path("docs/results/gpu.md"), show_default=True)
@click.option("--device", default="cuda", show_default=True)
@click.option("--pieces", default=",".join(PIECES), show_default=True, help="Pieces to measure, with commas.")
@click.option("--recipes/--no-recipes", default=True, help="Train recipes after the pieces.  [default: recipes]")
@click.option(
    "--minutes", default=_LIMIT, show_default=True, help="Time after which no further piece or recipe starts."
)
def main(dataset: str, budget: str, page: Path, device: str, pieces: str, recipes: bool, minutes: float) -> None:
    """Measure on a GPU, print the table and replace the one in PAGE. The exit code is 1 if a piece failed."""
    try:
        chosen, names = Device.of(device), chosen_pieces(pieces)
        os.environ[DEVICE] = chosen.name
        workspace = Workspace.find()
        if recipes:
            workspace.params.dataset(dataset)
        written(page.read_text("utf-8"), "")
        proof = Proof(chosen, page, time.monotonic() + 60 * minutes)
        trained = {name: partial(recipe_rows, workspace, dataset, budget, name) for name in RECIPES if recipes}
        prove(proof, workspace, names, trained)
    except XCError as error:
        click.echo(f"gpu-proof: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(table(proof.rows, chosen))
    if proof.failed:
        click.echo(f"gpu-proof: failed: {', '.join(proof.failed)} (see the messages above)", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
