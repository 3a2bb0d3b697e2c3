"""``xc forget``: documents and labels are removed from a dataset and from all that was made of it."""

from __future__ import annotations

from typing import Final

import click

from xc_core.chain import Workspace
from xc_core.cli.options import dataset_option
from xc_core.errors import UsageError
from xc_core.lifecycle.forget import Forgotten, forget
from xc_core.lifecycle.places import Place
from xc_core.visible import counted

_MAX_UIDS: Final = 3
"""Uids that a line names."""


@click.command("forget", short_help="Delete documents or labels, and everything made from them.")
@dataset_option
@click.option("--document", "documents", multiple=True, metavar="UID", help="A document; may be given several times.")
@click.option("--label", "labels", multiple=True, metavar="UID", help="A label; may be given several times.")
@click.option("--with-documents", is_flag=True, help="Also forget documents that would have no label left.")
def command(dataset: str, documents: tuple[str, ...], labels: tuple[str, ...], with_documents: bool) -> None:
    """Remove documents and labels by uid: from raw files, corpus, acceptance set, models and kept files.

    Everything that was trained on the dataset is deleted; it has to be trained again. Places outside, such as MLflow's
    registry and DVC's cache, are named. Files that wait in the inbox must be ingested or taken out first.
    """
    if not documents and not labels:
        raise UsageError("nothing to forget", expected="--document UID or --label UID", do="name at least one")
    workspace = Workspace.find()
    forgotten = forget(workspace, dataset, list(documents), list(labels), with_documents=with_documents)
    _echo(dataset, forgotten, [workspace.params.train_command(dataset, recipe) for recipe in forgotten.recipes])


def _echo(dataset: str, forgotten: Forgotten, commands: list[str]) -> None:
    counts = f"{counted(len(forgotten.documents), 'document')} and {counted(len(forgotten.labels), 'label')}"
    click.echo(f"{dataset}: forgot {counts}")
    if forgotten.accepted:
        click.echo(f"acceptance set: {counted(forgotten.accepted, 'document')} removed")
    if forgotten.copies:
        first = ", ".join(forgotten.copies[:_MAX_UIDS]) + (", ..." if len(forgotten.copies) > _MAX_UIDS else "")
        click.echo(
            f"not forgotten, though the text is the same: {counted(len(forgotten.copies), 'document')} ({first})"
        )
    if forgotten.deleted:
        click.echo("deleted, because it was made of them:")
        for path in sorted(forgotten.deleted):
            click.echo(f"  {path}")
    if forgotten.unrecorded:
        click.echo(f"dvc.lock: {counted(forgotten.unrecorded, 'stage')} removed; commit the file if git has it")
    if commands:
        click.echo("train again:")
        for command in commands:
            click.echo(f"  {command}")
    echo_places(forgotten.elsewhere)


def echo_places(places: list[Place]) -> None:
    """Print the places that may still hold what was removed, and what to do there."""
    if places:
        click.echo("may still hold them:")
    for place in places:
        click.echo(f"  {place.name}: {place.do}")
        for step in place.commands:
            click.echo(f"    {step}")
