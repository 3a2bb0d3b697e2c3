"""``python -m benchmarks [CASE ...]``: runs comparisons on the artefacts of a trained experiment, prints Markdown."""

from __future__ import annotations

import datetime

import click

from benchmarks.cases import CASES
from benchmarks.harness import machine, table
from benchmarks.world import World
from xc_core.chain import Workspace


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--dataset", default="wordnet-mini", show_default=True)
@click.option("--recipe", default="ngame", show_default=True)
def main(cases: tuple[str, ...], dataset: str, recipe: str) -> None:
    """Compare each fast path with what it replaces; `make demo` trains what is needed."""
    world = World(Workspace.find(), dataset, recipe)
    click.echo(f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}, {machine()}, {dataset} / {recipe}\n")
    rows = []
    for name in cases or CASES:
        click.echo(f"{name} ...", err=True)
        rows += CASES[name](world)
    click.echo(table(rows))


if __name__ == "__main__":
    main()
