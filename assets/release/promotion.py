"""``xc promote`` and ``xc rollback``."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from assets.release import aliases, versions
from assets.release.champions import write_pointer
from assets.release.client import client_of, versions_client
from assets.release.repair import repaired
from assets.settings import mlflow_settings
from xc_core.chain import STAGES, Workspace
from xc_core.errors import MissingError, RefusedError, UsageError

if TYPE_CHECKING:
    from assets.release.registry import Released


@click.command(short_help="Make a model the champion, the version that is served.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--recipe", default=None, help="Register the packed model of this recipe, and promote it if it passes.")
@click.option("--version", type=click.IntRange(min=1), default=None, help="Promote this registered version.")
@click.option("--reason", default=None, help="Why the gate is overruled; recorded with your name.")
@click.option("--repair", is_flag=True,
              help="Replace damaged files of the champion, or of --version, by the packed model.")  # fmt: skip
def promote(dataset: str, recipe: str | None, version: int | None, reason: str | None, repair: bool) -> None:
    """Make a model the champion, the version that models:/xc-DATASET@champion serves.

    The model is that of a recipe, a version or, by default, the challenger: the model that passed the gate last. A
    model that the gate refused, or has not seen, needs a --reason. xc rollback returns to the old champion.
    """
    from assets.release.registry import JUDGED_ON

    workspace = Workspace.find()
    _check_arguments(workspace, dataset, recipe, version, reason)
    if repair and (recipe is not None or reason is not None):
        raise UsageError("--repair with --recipe or --reason", expected="--version at most", do="drop the others")
    name = versions.model_name(dataset)
    by_recipe = recipe is not None or repair
    with client_of(workspace, reads=recipe is None) if by_recipe else versions_client(workspace) as client:
        if repair:
            click.echo(repaired(workspace, client, dataset, version))
            return
        if recipe is not None:
            version = _release(workspace, client, dataset, recipe, reason)
        else:
            version = _challenger(client, dataset) if version is None else version
            versions.check_version(client, name, version)
            by_hand(workspace, client, dataset, version, reason)
        judged = client.get_model_version(name, str(version)).tags.get(JUDGED_ON)
    click.echo(f"models:/{name}@champion is version {version}")
    write_pointer(workspace, dataset)
    if judged is not None:
        click.echo(f"note: the gate judged it on {judged}", err=True)


def _check_arguments(
    workspace: Workspace, dataset: str, recipe: str | None, version: int | None, reason: str | None
) -> None:
    if recipe is not None and version is not None:
        raise UsageError("both --recipe and --version", expected="one of them, or neither", do="drop one")
    if reason is not None and not reason.strip():
        raise UsageError("an empty --reason", expected="a sentence", do="say why the gate is wrong here")
    workspace.params.partition(dataset, recipe)  # reports what is wrong with a name
    if recipe is not None:
        from assets.resources import Dvc

        Dvc.of(workspace.root).check_git(dataset, recipe)


def by_hand(
    workspace: Workspace, client: Any, dataset: str, version: int, reason: str | None, judged: Released | None = None
) -> None:
    """Make a version champion, and record who did it and why.

    Raises ChampionChangedError if another version became champion since the gate ``judged`` this one, unless a reason
    overrules the gate; RefusedError if the version has not passed the gate and there is no reason; MissingError or
    CorruptError if it cannot be opened. Then nothing changes.
    """
    from assets.release import registry
    from assets.release.best import start_again
    from assets.release.candidate import moving
    from assets.release.origin import person
    from assets.release.page import with_reason

    name = versions.model_name(dataset)
    info = client.get_model_version(name, str(version))
    state = info.tags.get(registry.GATE, "has not seen")
    if state != registry.PASSED and not reason and not _is_or_was_champion(client, name, version):
        failed = info.tags.get("gate_failed")
        overrule = f'xc promote --dataset {dataset} --version {version} --reason "WHY"'
        raise RefusedError(
            f"version {version}, which the gate {state}" + (f" ({failed})" if failed else ""),
            expected="a version that passed the gate, or a reason to overrule it",
            do=overrule if failed else f"ask the gate: {_judging_command(dataset, info)}; or overrule it: {overrule}",
        )
    versions.check_opens(info)
    who, when = person(workspace.root), datetime.now(UTC).isoformat(timespec="seconds")
    tags = {"promoted_by": who, "promoted_at": when}
    if reason:  # a later promotion without one leaves these
        tags |= {"overruled_by": who, "overruled_at": when, "overruled_because": reason.strip()}
    with moving(workspace, dataset):
        if judged is not None and not reason:
            aliases.check_champion(client, name, judged.champion)
        versions.set_tags(client, name, version, tags)
        if reason:
            start_again(client, name, version)
            versions.set_page(client, name, version, with_reason(info.description or "", tags))
        aliases.set_champion(client, name, version)


def _judging_command(dataset: str, info: Any) -> str:
    """Return the command that lets the gate judge a version whose registration was killed before."""
    return f"xc promote --dataset {dataset} --recipe {info.tags.get('recipe', 'NAME')}"


def _is_or_was_champion(client: Any, name: str, version: int) -> bool:
    """Return True if the version is the champion or the previous champion."""
    served = (aliases.version_of(client, name, alias) for alias in (aliases.CHAMPION, aliases.PREVIOUS))
    return version in {int(info.version) for info in served if info is not None}


def _challenger(client: Any, dataset: str) -> int:
    name = versions.model_name(dataset)
    challenger = aliases.version_of(client, name, aliases.CHALLENGER)
    if challenger is None:
        found = f"no challenger of {name}{versions.hint_if_new(client)}"
        do = f"register one: {versions.register_command(name)}"
        raise MissingError(found, expected="a model that passed the gate", do=do)
    return int(challenger.version)


def _release(workspace: Workspace, client: Any, dataset: str, recipe: str, reason: str | None) -> int:
    """Register a recipe's packed model, if it is up to date, and promote it if it passes the gate; return its version.

    It is judged again if another version became champion meanwhile.
    """
    from assets.release import registry
    from assets.release.candidate import candidate, check_up_to_date
    from assets.release.judge import keep_acceptance

    check_up_to_date(workspace, dataset, recipe)
    record(workspace, dataset, recipe)
    packed = replace(candidate(workspace, dataset, recipe), auto=False)
    check_up_to_date(workspace, dataset, recipe)  # data and settings were read as its origin after the first check

    def attempt() -> int:
        released = registry.register(client, mlflow_settings(workspace.root).artifacts, packed)
        keep_acceptance(workspace, dataset)
        if (verdict := released.verdict) is not None and not verdict.passed and not reason:
            raise verdict.refusal(dataset, released.version)
        by_hand(workspace, client, dataset, released.version, reason, released)
        return released.version

    return aliases.until_champion_stays(attempt)


def record(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Record raw data and artefacts of an experiment in DVC, as a Dagster run does; without DVC do nothing.

    Raw data that is gone and artefacts whose input is missing are left out: dvc refuses these, and the packed model
    does not need them.
    """
    from assets.resources import Dvc

    dvc, raw = Dvc.of(workspace.root), workspace.raw(dataset)
    present = {name for name in STAGES if workspace.folder(name, dataset, recipe).is_dir()}
    complete = [name for name in STAGES if present.issuperset({name, *STAGES[name].deps})]
    if raw.is_dir():
        dvc.track_source(raw)
    else:
        complete = [name for name in complete if not STAGES[name].needs_source]
    dvc.commit(complete, dataset, recipe)


@click.command(short_help="Return to the previous champion.")
@click.option("--dataset", required=True, help="Name of the dataset.")
def rollback(dataset: str) -> None:
    """Return to the previous champion, if its files are complete. A second call undoes the first."""
    from assets.release.candidate import moving

    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # reports what is wrong with a name
    with versions_client(workspace) as client:
        current, replaced = aliases.roll_back(client, dataset, partial(moving, workspace, dataset))
    click.echo(f"models:/{versions.model_name(dataset)}@champion is version {current} again (instead of {replaced})")
    write_pointer(workspace, dataset)
