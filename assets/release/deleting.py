"""``xc delete``: experiments, datasets and registered versions that nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from assets.database import unmade
from assets.mlflow_errors import if_there
from assets.mlflow_internals import delete_files
from assets.release import versions
from assets.release.aliases import PREVIOUS
from assets.release.ancestry import losing_history
from assets.release.client import client_of
from assets.release.holdings import Registered, kept_text, lost_text
from assets.release.moved import moved_files
from assets.settings import hide_secrets, local_folder, mlflow_settings
from xc_core.artifacts import writing
from xc_core.chain import Workspace
from xc_core.chain.names import checked_name
from xc_core.cli.forget import echo_places, path_lines
from xc_core.errors import RefusedError, UsageError
from xc_core.leftovers import temporary_folder
from xc_core.lifecycle.places import places
from xc_core.progress import optional
from xc_core.visible import counted, listed

if TYPE_CHECKING:
    from xc_core.lifecycle.delete import Deletion


@click.command(short_help="Delete experiments, a dataset, or registered versions.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--recipe", "recipes", multiple=True, help="Delete this experiment; may be given several times.")
@click.option("--version", "numbers", type=click.IntRange(min=1), multiple=True,
              help="Delete this registered version; may be given several times.")  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), default=None, metavar="N",
              help="Delete all registered versions but the newest N and those in use.")  # fmt: skip
@click.option("--even-previous", is_flag=True,
              help="With --version: also the previous champion, and those that the gate compares with.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Delete. Without it, the command shows what it would delete.")
def delete(
    dataset: str, recipes: tuple[str, ...], numbers: tuple[int, ...], keep: int | None, even_previous: bool, yes: bool
) -> None:
    """Delete experiments, registered versions or, if none of them is named, a whole dataset.

    An experiment has an entry in params.yaml, stages in dvc.lock, and files; a dataset has all of its experiments and
    its raw files too. Registered versions stay in MLflow. The champion of a deleted experiment still answers; that of
    a deleted dataset only from MLflow, as models:/xc-NAME@champion, because no command knows the dataset. --version
    and --keep delete packed models that are registered in MLflow, but none that is in use: champion, previous
    champion, challenger, and those that the gate compares with. If the dataset was deleted, --version deletes these
    too.

    With --even-previous, --version also deletes the previous champion and those that the gate compares with, which may
    hold what xc forget removed. xc rollback has no version to return to then.
    """
    workspace = Workspace.find()
    if bool(recipes) + bool(numbers) + (keep is not None) > 1:
        raise UsageError("several of --recipe, --version and --keep", expected="one of them", do="drop the others")
    if even_previous and not numbers:
        raise UsageError(
            "--even-previous without --version", expected="versions to delete", do="name them by --version"
        )
    if numbers or keep is not None:
        _delete_versions(workspace, dataset, list(dict.fromkeys(numbers)), keep, even_previous=even_previous, yes=yes)
    else:
        _delete_files(workspace, dataset, recipes, yes=yes)


def _delete_files(workspace: Workspace, dataset: str, recipes: tuple[str, ...], *, yes: bool) -> None:
    from xc_core.lifecycle.delete import Deletion
    from xc_core.lifecycle.delete import delete as delete_files

    deletion = Deletion.of(workspace, dataset, recipes)
    for line in _deletion_lines(workspace, deletion):
        click.echo(line)
    if not yes:
        if kept := kept_text(workspace, dataset, recipes):
            click.echo(kept)
        if deletion.whole:
            echo_places(places(workspace, dataset), "would not be deleted, and may hold its data:")
        click.echo("nothing was deleted; --yes deletes it")
        return
    unrecorded = delete_files(workspace, dataset, recipes)
    and_stages = f", and {counted(unrecorded, 'stage')} of dvc.lock" if unrecorded else ""
    click.echo(f"deleted{and_stages}; commit {'dvc.lock and ' * bool(unrecorded)}params.yaml if git has it")
    if deletion.whole:
        echo_places(places(workspace, dataset))


def _deletion_lines(workspace: Workspace, deletion: Deletion) -> list[str]:
    """Return what is deleted, in words: the experiments, and paths with their sizes."""
    experiments = [f"{deletion.dataset}/{recipe}" for recipe in deletion.recipes]
    subjects = [f"the dataset {deletion.dataset}"] if deletion.whole else []
    subjects += [f"the experiment{'s' * (len(experiments) > 1)} {', '.join(experiments)}"] if experiments else []
    return [f"{' with '.join(subjects)}:", *path_lines(workspace, deletion.paths)]


def _delete_versions(
    workspace: Workspace, dataset: str, numbers: list[int], keep: int | None, *, even_previous: bool, yes: bool
) -> None:
    from assets.release.candidate import moving, registering

    name = versions.model_name(checked_name("dataset", dataset))
    settings = mlflow_settings(workspace.root)
    left = _left_over(workspace)  # asked first: a client changes the address in the environment
    with (
        client_of(workspace, reads=True, logs=False) as client,
        registering(workspace, dataset),
        moving(workspace, dataset),
    ):
        registered = {int(version.version): version for version in client.search_model_versions(f"name = '{name}'")}
        in_project = keep is not None or dataset in workspace.params.datasets()
        in_use = _in_use(client, name, even_previous=even_previous) if in_project else {}
        if keep is not None:
            numbers = [number for number in sorted(registered)[:-keep] if number not in in_use]
        found = {}
        for number in numbers:
            if number not in registered:
                versions.check_version(client, name, number)  # raises
            found[number] = _registered(client, registered[number], settings.artifacts)
            _check_deletable(workspace, found[number], in_use)
        chosen = ", ".join(f"version {number}" for number in numbers)
        click.echo(f"{name}: {chosen or f'no version to delete of {len(registered)}'}")
        if keep is not None and len(numbers) < len(registered):
            click.echo(f"kept: {_kept(sorted(set(registered) - set(numbers)), in_use, keep)}")
        if numbers and (warning := _lost_history(client, dataset, numbers, settings.artifacts)):
            click.echo(warning)
        others = [version for number, version in registered.items() if number not in found]
        if lost := lost_text(
            client, hide_secrets(settings.registry if left else settings.uri), list(found.values()), others
        ):
            click.echo(lost)
        if not yes and numbers:
            click.echo("nothing was deleted; --yes deletes " + ("them" if len(numbers) > 1 else "it"))
        elif numbers:
            for number in numbers:
                del registered[number]
                _delete_version(client, found[number], list(registered.values()))
            if not registered:
                client.delete_registered_model(name)
            click.echo(f"deleted{left}")


def _kept(numbers: list[int], in_use: dict[int, str], keep: int) -> str:
    """Return versions that stay and why; those in use first, because only an alias that moves lets them go."""
    newest = "is the newest" if keep == 1 else f"is one of the newest {keep}"
    ordered = [*(number for number in numbers if number in in_use), *(n for n in numbers if n not in in_use)]
    return listed([f"version {number} {in_use.get(number, newest)}" for number in ordered])


def _lost_history(client: Any, dataset: str, numbers: list[int], artifact_root: str) -> str:
    """Return a warning that names the versions that cannot be made again without these; empty if there is none."""
    losing: list[int] = []
    note = "later versions that cannot be made again without those are not named"  # who frees a full disk must go on
    with optional(note), temporary_folder() as scratch, writing(scratch):
        losing = losing_history(client, dataset, numbers, scratch, artifact_root)
    if not losing:
        return ""
    later, why = listed([f"version {number}" for number in losing]), "each keeps" if len(losing) > 1 else "it keeps"
    return (
        f"warning: afterwards xc lineage --rebuild cannot make {later} again: {why} trained parts of a version that is "
        "deleted"
    )


def _left_over(workspace: Workspace) -> str:
    """Return what cannot be deleted, to be said after it: without a database of runs, no entry of it."""
    missing = unmade(mlflow_settings(workspace.root).uri)
    return (
        f"; entries of their runs and models are not: there is no database of runs at {missing[0]}" if missing else ""
    )


def _in_use(client: Any, name: str, *, even_previous: bool) -> dict[int, str]:
    """Return the versions that must stay, with the reason: those with an alias, and the best so far of these.

    With ``even_previous`` only those with another alias than that of the previous champion.
    """
    from assets.release.best import best_digests

    aliases: dict[str, Any] = {}
    with if_there():
        aliases = client.get_registered_model(name).aliases
    reasons: dict[int, str] = {}
    for number in () if even_previous else aliases.values():
        with if_there():  # an alias may outlive its version
            for digest in best_digests(client.get_model_version(name, str(number))):
                if best := versions.versions_of(client, name, digest):  # repaired ones are there more than once
                    reasons[int(versions.measured_one(best).version)] = "is one that the gate compares with"
    kept = sorted((alias, number) for alias, number in aliases.items() if not (even_previous and alias == PREVIOUS))
    return reasons | {int(number): f"has the alias {alias}" for alias, number in kept}


def _check_deletable(workspace: Workspace, registered: Registered, used: dict[int, str]) -> None:
    """Raise RefusedError for a version that is in use, or whose files belong to another project."""
    number, root = int(registered.version.version), local_folder(mlflow_settings(workspace.root).artifacts)
    if number in used:
        raise RefusedError(
            f"version {number}, which {used[number]}; nothing was deleted",
            expected="versions that are not in use",
            do="choose others; xc promote and xc rollback move champion, previous and challenger, MLflow others; "
            "--even-previous lets go the previous champion and those that the gate compares with",
        )
    folder = local_folder(registered.place) if registered.place else None
    if root is not None and folder is not None and folder.exists() and not folder.is_relative_to(root):
        raise RefusedError(
            f"the files of version {number} under another root, {folder}; nothing was deleted",
            expected="files of this project",
            do="delete the version in the project that they belong to",
        )


def _registered(client: Any, version: Any, artifact_root: str) -> Registered:
    """Find what belongs to a version; the files of a project that was moved are where they are now."""
    model = _model_of(client, version)
    place = _place_of(client, version, model)
    recorded = local_folder(place) if place else None
    if recorded is not None and not recorded.exists():
        place = str(moved_files(place, version.name, artifact_root) or place)
    return Registered(version, model, place)


def _model_of(client: Any, version: Any) -> Any | None:
    """Return the logged model of a version; None if it was deleted."""
    model = None
    with if_there():
        model = client.get_logged_model(version.source.rpartition("/")[2])
    return model  # noqa: RET504 (the block may end before the assignment)


def _place_of(client: Any, version: Any, model: Any | None) -> str:
    """Return the address of the files of a version; empty if they are not those of a logged model.

    The registry records it too: the database of runs, which has the model, may be gone or another one.
    """
    if model is not None:
        return str(model.artifact_location)
    prefix, _, name = version.source.rpartition("/")
    place = str(client.get_model_version_download_uri(version.name, version.version)) if prefix == "models:" else ""
    return place if name in place.split("/") else ""


def _delete_version(client: Any, registered: Registered, others: list[Any]) -> None:
    """Delete the files of a version, its model and its run, then the version: a killed command can go on."""
    version, model = registered.version, registered.model
    if version.source not in {other.source for other in others}:
        if registered.place:
            delete_files(registered.place)
        if model is not None:
            client.delete_logged_model(model.model_id)
    if version.run_id not in {other.run_id for other in others}:
        with if_there():
            client.delete_run(version.run_id)
    aliases = client.get_registered_model(version.name).aliases
    for alias in [alias for alias, number in aliases.items() if str(number) == str(version.version)]:
        client.delete_registered_model_alias(version.name, alias)
    client.delete_model_version(version.name, version.version)
