"""``xc acceptance``: shows, draws or replaces the acceptance set of a dataset."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from assets.release.judge import acceptance_folder, acceptance_set, size
from xc_core.chain import STAGES, Workspace
from xc_core.chain.workspace import working
from xc_core.errors import UsageError


@click.command(short_help="Show or draw the documents of the gate.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--given", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="Parquet, CSV, TSV or JSON lines with text and labels (a list of uids), and maybe uid.")  # fmt: skip
@click.option("--redraw", is_flag=True, help="Draw again from today's corpus, as a new version.")
def acceptance(dataset: str, given: Path | None, redraw: bool) -> None:
    """Show the acceptance set of a dataset; the first call draws it.

    It stays the same when the data change, so that models of different days are compared on the same documents.
    """
    from xc_core.data.acceptance import TESTED, draw, take
    from xc_core.data.checks import Allowed
    from xc_core.data.corpus import Corpus
    from xc_core.infer.champion import advising

    if given is not None and redraw:
        raise UsageError("both --given and --redraw", expected="one of them", do="drop one")
    workspace = Workspace.find()
    config = workspace.params.dataset(dataset).corpus  # reports what is wrong with a name
    folder = acceptance_folder(workspace, dataset)
    draws = given is not None or redraw or not folder.is_dir()
    with working(workspace, dataset) if draws else nullcontext():  # a set drawn while rows are removed would keep them
        with advising(f"make it first: {STAGES['corpus'].command(dataset, None)} --force"):
            corpus = workspace.open(Corpus, dataset)
        if given is not None:
            current = take(
                given, corpus, dataset, folder, options=config.read_options(), allowed=Allowed.parse(config.allow)
            )
        else:
            current = draw(corpus, dataset, folder) if redraw else acceptance_set(workspace, dataset, corpus)
    facts = current.facts
    click.echo(f"{dataset}: acceptance set version {facts.version} ({facts.source}), {size(current)}")
    if facts.source == TESTED:
        command = f"xc ingest {workspace.raw(dataset).relative_to(workspace.root)} --dataset {dataset}"
        click.echo(
            f"note: the leaderboard reads these documents too. To hold others out: {command} --acceptance-fraction "
            f"0.05, train, then xc acceptance --dataset {dataset} --redraw. A champion trained before that has learnt "
            "from those, so the gate will favour it once"
        )
