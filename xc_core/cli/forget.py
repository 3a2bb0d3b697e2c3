"""``xc forget``: documents and labels are removed from a dataset and from all that was made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from xc_core.chain import Workspace
from xc_core.cli.options import dataset_option
from xc_core.errors import UsageError
from xc_core.lifecycle.forget import Forgotten, Preview, forget, preview
from xc_core.lifecycle.places import Place
from xc_core.visible import counted

_MAX_UIDS: Final = 3
"""Uids that a line names."""


@click.command("forget", short_help="Delete documents or labels, and everything made from them.")
@dataset_option
@click.option("--document", "documents", multiple=True, metavar="UID", help="A document; may be given several times.")
@click.option("--label", "labels", multiple=True, metavar="UID", help="A label; may be given several times.")
@click.option("--with-documents", is_flag=True, help="Also forget documents that would have no label left.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, with sizes; delete nothing.")
def command(
    dataset: str, documents: tuple[str, ...], labels: tuple[str, ...], with_documents: bool, dry_run: bool
) -> None:
    """Remove documents and labels by uid: from raw files, corpus, acceptance set, models and kept files.

    Everything that was trained on the dataset is deleted; it has to be trained again. --dry-run shows it first. Places
    outside, such as MLflow's registry and DVC's cache, are named. Files that wait in the inbox must be ingested or
    taken out first.
    """
    if not documents and not labels:
        raise UsageError("nothing to forget", expected="--document UID or --label UID", do="name at least one")
    workspace = Workspace.find()
    if dry_run:
        _echo_preview(workspace, dataset, preview(workspace, dataset, list(documents), list(labels),
                                                  with_documents=with_documents))  # fmt: skip
        return
    forgotten = forget(workspace, dataset, list(documents), list(labels), with_documents=with_documents)
    _echo(dataset, forgotten, [workspace.params.train_command(dataset, recipe) for recipe in forgotten.recipes])


def _echo(dataset: str, forgotten: Forgotten, commands: list[str]) -> None:
    click.echo(f"{dataset}: forgot {_counts(forgotten)}")
    if forgotten.accepted:
        click.echo(f"acceptance set: {counted(forgotten.accepted, 'document')} removed")
    _echo_copies(forgotten.copies)
    if forgotten.deleted:
        click.echo("deleted, because it was made of them:")
        for path in sorted(forgotten.deleted):
            click.echo(f"  {path}")
    if forgotten.unrecorded:
        click.echo(f"dvc.lock: {counted(forgotten.unrecorded, 'stage')} removed; commit the file if git has it")
    _echo_commands("train again:", commands)
    echo_places(forgotten.elsewhere)


def _echo_preview(workspace: Workspace, dataset: str, shown: Preview) -> None:
    click.echo(f"{dataset}: would forget {_counts(shown)}")
    if shown.unlabelled:
        number = counted(len(shown.unlabelled), "document")
        click.echo(f"not named, but without any other label: {number} ({_named(shown.unlabelled)})")
    if shown.accepted:
        click.echo(f"acceptance set: {counted(shown.accepted, 'document')} would be removed")
    _echo_copies(shown.copies)
    if shown.paths:
        click.echo("would be deleted, because it was made of them:")
        for line in path_lines(workspace, shown.paths):
            click.echo(line)
    commands = [workspace.params.train_command(dataset, recipe) for recipe in shown.recipes]
    _echo_commands("to be trained again:", commands)
    echo_places(shown.elsewhere, "would not be deleted, and may hold them:")
    click.echo("nothing was deleted; without --dry-run the command deletes it")


def _counts(what: Forgotten | Preview) -> str:
    return f"{counted(len(what.documents), 'document')} and {counted(len(what.labels), 'label')}"


def _echo_copies(copies: list[str]) -> None:
    if copies:
        number = counted(len(copies), "document")
        click.echo(f"not forgotten, though the text is the same: {number} ({_named(copies)})")


def _named(uids: list[str]) -> str:
    return ", ".join(uids[:_MAX_UIDS]) + (", ..." if len(uids) > _MAX_UIDS else "")


def _echo_commands(title: str, commands: list[str]) -> None:
    if commands:
        click.echo(title)
        for command in commands:
            click.echo(f"  {command}")


def path_lines(workspace: Workspace, paths: Sequence[Path]) -> list[str]:
    """Return paths that a command deletes, with their sizes; the small files of timings share a line."""
    from xc_core.lifecycle.delete import size_of

    rows: dict[Path, list[Path]] = {}
    for path in sorted(paths):
        timing = path.parent == workspace.state / "cost"
        rows.setdefault(path.parent if timing else path, []).append(path)
    shown = [(sum(map(size_of, files)), _row_text(workspace, row, files)) for row, files in rows.items()]
    return [f"  {size / 1e6:>10,.1f} MB  {text}" for size, text in shown]


def _row_text(workspace: Workspace, row: Path, paths: list[Path]) -> str:
    name = row.relative_to(workspace.root)
    return f"{name}{_link_note(row)}" if paths == [row] else f"{counted(len(paths), 'file')} in {name}"


def _link_note(path: Path) -> str:
    return f", a link; {path.resolve()} stays" if path.is_symlink() else ""


def echo_places(places: list[Place], title: str = "may still hold them:") -> None:
    """Print the places that may hold what is removed from a dataset, and what to do there."""
    if places:
        click.echo(title)
    for place in places:
        click.echo(f"  {place.name}: {place.do}")
        for step in place.commands:
            click.echo(f"    {step}")
