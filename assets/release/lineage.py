"""``xc lineage``: where a registered version comes from, and how to make it again from there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from assets.release.ancestry import Lineage, history, read
from assets.release.client import client_of
from assets.release.page import ORIGIN
from assets.release.rebuilding import rebuilt
from assets.settings import mlflow_settings
from xc_core.chain import Workspace
from xc_core.chain.names import checked_name
from xc_core.cli.options import OpenedPath
from xc_core.errors import MissingError, MovedError, UsageError
from xc_core.leftovers import temporary_folder

_SHOWN_TAGS: Final = {
    "recipe": "recipe", **ORIGIN, "dagster_run_url": "Dagster page",
    "data_dvc": "raw data in DVC", "bundle": "content", "gate": "gate",
    "gate_failed": "failed lines", "gate_on": "judged on", "promoted_by": "promoted by", "promoted_at": "promoted at",
    "overruled_by": "gate overruled by", "overruled_at": "overruled at", "overruled_because": "reason",
    "repairs": "repairs version",
}  # fmt: skip


@click.command(short_help="Show the data, code and settings of a version.")
@click.argument("version", type=click.IntRange(min=1))
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--rebuild", type=OpenedPath(resolve_path=True), default=None, metavar="FOLDER",
              help="Make the model again in this new folder and compare it.")  # fmt: skip
def lineage(version: int, dataset: str, rebuild: Path | None) -> None:
    """Show which data, code and settings the registered VERSION of a dataset's model was made from.

    With --rebuild its commit is cloned into FOLDER, the recorded changes to the commit are applied, the raw data is
    fetched from DVC, all stages run, and the content is compared with that of the version. If the version was
    refreshed or got new labels, the version whose rows it kept is made first, then these steps are repeated.
    """
    workspace = Workspace.find()
    checked_name("dataset", dataset)
    if rebuild is not None and rebuild.exists():
        raise UsageError(f"{rebuild}, which exists", expected="a new folder", do="name another folder, or delete it")
    with temporary_folder() as scratch:
        with client_of(workspace, reads=True, logs=False) as client:
            artifact_root = mlflow_settings(workspace.root).artifacts
            try:
                record = read(client, dataset, version, scratch, artifact_root)
            except MissingError:
                workspace.params.dataset(dataset)  # a mistyped name; versions outlive their dataset
                raise
            _show(record)
            versions, unknown = [record], None
            try:
                versions = history(client, record, scratch, artifact_root)
            except MovedError as error:
                unknown = error
        for later, earlier in pairwise(reversed(versions)):
            how = "with new labels" if later.has_new_labels else "refreshed"
            how += f" in {steps} steps" if (steps := later.steps(earlier)) > 1 else ""
            click.echo(f"{f'version {later.version} made from:':<28}version {earlier.version}, {how}")
        if unknown is not None:
            click.echo(f"{'made from:':<28}not known: {unknown.found}")
        if rebuild is not None:
            if unknown is not None:
                raise unknown
            rebuilt(workspace, versions, rebuild)
            click.echo(f"{rebuild}: the same content as version {version}")


def _show(record: Lineage) -> None:
    """Print the tags of a version and the digests of its artefacts."""
    for tag, name in _SHOWN_TAGS.items():
        if tag in record.tags:
            click.echo(f"{name + ':':<28}{record.tags[tag]}")
    click.echo(f"{'MLflow run:':<28}{record.run}")
    for stage, facts in record.artefacts.items():
        click.echo(f"{stage + ':':<28}{facts['digest'][:12]}{' (refreshed)' if facts.get('refreshed') else ''}")
