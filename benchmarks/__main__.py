"""``python -m benchmarks [CASE ...]``: runs comparisons on the artefacts of a trained experiment, prints Markdown."""

from __future__ import annotations

import sys
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
@click.option("--check", is_flag=True, help="Fail if a ratio is more than a fifth below the one of this processor.")
@click.option("--record", is_flag=True, help="Record the ratios of this processor in benchmarks/floors.json.")
def main(cases: tuple[str, ...], dataset: str, recipe: str, quick: bool, check: bool, record: bool) -> None:
    """Compare each fast path with what it replaces; `make demo` trains what is needed."""
    world = World(Workspace.find(), dataset, recipe)
    single_thread()
    click.echo(f"{today()}, {machine()}, {dataset} / {recipe}\n")
    rows = []
    for name in cases or (QUICK if quick else CASES):
        click.echo(f"{name} ...", err=True)
        rows += [replace(row, case=f"{name} {number}") for number, row in enumerate(CASES[name](world), 1)]
    click.echo(table(rows))
    if record:
        write_floors(FLOORS, rows)
    if check:
        _check(rows)


def _check(rows: list[Row]) -> None:
    """End with 1 if a ratio is below the one recorded for this processor; say which rows have none."""
    floors = read_floors(FLOORS).get(this_processor(), {})
    if unknown := [row.case for row in rows if row.case not in floors]:
        click.echo(f"\nno ratio recorded on {this_processor()} (--record): {', '.join(unknown)}", err=True)
    if lost := slower(rows, floors):
        click.echo("\nslower than recorded:\n" + "\n".join(lost), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
