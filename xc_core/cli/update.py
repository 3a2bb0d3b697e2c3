"""``xc update``: new documents, new labels and corrected pairs are merged into a dataset by uid."""

from __future__ import annotations

from pathlib import Path

import click

from xc_core.chain import Workspace
from xc_core.cli.options import Names, dataset_option, new_times_option
from xc_core.cli.tables import REFRESH, show_next
from xc_core.data.checks import Allowed
from xc_core.data.formats import LAYOUTS
from xc_core.errors import XCError
from xc_core.lifecycle.update import update


@click.command("update", short_help="Merge new documents, labels and corrected pairs into a dataset.")
@click.argument("path", type=click.Path(path_type=Path))
@dataset_option
@click.option("--layout", type=Names("layout", LAYOUTS.names, "auto"), default="auto", show_default=True,
              help="Layout of the folder; auto: by the names of its files.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="KIND",
              help=f"Accept one of {', '.join(Allowed.kinds())}; the dataset accepts it from now on.")  # fmt: skip
@new_times_option
def command(path: Path, dataset: str, layout: str, allow: tuple[str, ...], new_times: bool) -> None:
    """Merge the folder PATH into the dataset NAME, by uid.

    A document that is there gets the text and the labels of PATH and keeps its split; a label gets its text; all others
    are new. Reading is strict: the first thing that is wrong is named with its file and line, and nothing changes.
    """
    workspace = Workspace.find()
    previous = _corpus_digest(workspace, dataset)
    difference = update(workspace, path, dataset, layout=layout, allow=allow, new_times=new_times)
    if difference is not None:
        click.echo(f"{dataset}: {difference}")
    if difference is None or _corpus_digest(workspace, dataset) != previous:
        show_next(workspace, dataset, REFRESH)


def _corpus_digest(workspace: Workspace, dataset: str) -> str | None:
    """Return the digest of the corpus; None if there is none, which the update reports."""
    try:
        return workspace.digest("corpus", dataset)
    except XCError:
        return None
