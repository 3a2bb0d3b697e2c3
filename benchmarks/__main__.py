"""``python -m benchmarks [CASE ...]``: runs comparisons on the artefacts of a trained experiment, prints Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from benchmarks.cases import CASES, QUICK
from benchmarks.harness import (
    Row,
    machine,
    read_floors,
    single_thread,
    slower,
    table,
    this_processor,
    today,
    write_floors,
)
from benchmarks.world import World
from xc_core.chain import Workspace

FLOORS: Final = Path(__file__).with_name("floors.json")


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--dataset", default="wordnet-mini", show_default=True)
@click.option("--recipe", default="ngame", show_default=True)
@click.option("--quick", is_flag=True, help="Only the cases of `make bench`.")
@click.option("--check", is_flag=True, help="Fail if a ratio is twice more than a fifth below that of this processor.")
@click.option("--record", is_flag=True, help="Record the ratios of this processor in benchmarks/floors.json.")
def main(cases: tuple[str, ...], dataset: str, recipe: str, quick: bool, check: bool, record: bool) -> None:
    """Compare each fast path with what it replaces; `make demo` trains what is needed."""
    world = World(Workspace.find(), dataset, recipe)
    single_thread()
    click.echo(f"{today()}, {machine()}, {dataset} / {recipe}\n")
    rows = [row for name in cases or (QUICK if quick else CASES) for row in _measure(name, world)]
    click.echo(table(rows))
    if record:
        write_floors(FLOORS, rows)
    if check:
        _check(rows, lambda name: _measure(name, world))


def _measure(name: str, world: World) -> list[Row]:
    click.echo(f"{name} ...", err=True)
    return [replace(row, case=f"{name} {number}") for number, row in enumerate(CASES[name](world), 1)]


def _check(rows: list[Row], measure: Callable[[str], list[Row]]) -> None:
    """End with 1 if a ratio is below the one recorded for this processor, twice; say which rows have none.

    A case with a low ratio is measured again: other work on the machine makes some rounds unsteady.
    """
    floors = read_floors(FLOORS).get(this_processor(), {})
    if unknown := [row.case for row in rows if row.case not in floors]:
        click.echo(f"\nno ratio recorded on {this_processor()} (--record): {', '.join(unknown)}", err=True)
    low = [row.case for row in slower(rows, floors)]
    second = [row for name in dict.fromkeys(case.rpartition(" ")[0] for case in low) for row in measure(name)]
    if slow_twice := [row for row in slower(second, floors) if row.case in low]:
        lines = (
            f"{row.case} ({row.what}): ratio {row.ratio:.2f}, recorded {floors[row.case]:.2f}" for row in slow_twice
        )
        click.echo("\nslower than recorded, twice:\n" + "\n".join(lines), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
