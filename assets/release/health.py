"""What ``xc doctor`` reports of MLflow: its server, the champions and the packed models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assets.database import unmade
from assets.release import aliases, versions
from assets.release.champions import has_packed_model
from assets.release.client import versions_client
from assets.settings import MlflowSettings, hide_secrets, mlflow_settings
from xc_core.chain import Workspace
from xc_core.cli.doctor import Finding
from xc_core.errors import RefusedError, StorageError, UnavailableError, XCError


def check() -> Iterator[Finding]:
    """Report whether MLflow answers and which champions there are (entry point ``xc.checks``).

    Runs and registry are checked one by one if they have different addresses.
    """
    workspace = Workspace.find()
    settings = mlflow_settings(workspace.root)
    if missing := unmade(settings.registry):
        yield Finding("note", f"no database of MLflow yet at {missing[0]}: no stage was logged or no model registered")
    else:
        if settings.registry != settings.uri:
            yield _tracking_finding(settings)
        try:
            yield from _registry(workspace)
        except XCError as error:
            yield Finding("fault", str(error))
    for dataset, recipe in workspace.params.experiments():
        if digest := _packed(workspace, dataset, recipe):
            yield Finding("ok", f"packed model of {dataset}/{recipe}: {digest[:12]}")


def _tracking_finding(settings: MlflowSettings) -> Finding:
    """Return whether the server or database of runs answers; one that does not exist yet is not made."""
    from assets.tracking import connected

    if missing := unmade(settings.uri):
        return Finding("note", f"no database of runs yet at {missing[0]}: no stage was logged")
    try:
        with connected(settings.uri, settings.lock):
            return Finding("ok", f"MLflow answers at {settings.shown}")
    except XCError as error:
        return Finding("fault", str(error))


def _registry(workspace: Workspace) -> Iterator[Finding]:
    """Report on the registry and its champions."""
    settings = mlflow_settings(workspace.root)
    shown = hide_secrets(settings.registry)
    name = "MLflow" if settings.registry == settings.uri else "MLflow's registry"
    with versions_client(workspace) as client:
        yield Finding("ok", f"{name} answers at {shown}")
        for dataset in workspace.params.datasets():
            version = aliases.version_of(client, versions.model_name(dataset), aliases.CHAMPION)
            yield _champion_finding(workspace, dataset, version)
        if versions.registry_is_new(client) and has_packed_model(workspace):
            yield Finding("note", f"the registry at {shown} is new: it has no model, but the project has some")


def _packed(workspace: Workspace, dataset: str, recipe: str) -> str | None:
    """Return the digest of a packed model; None without one, or with a fault that ``xc doctor`` itself finds."""
    from xc_core.chain.status import Status, packed_state

    try:
        damaged = packed_state(workspace, dataset, recipe).status is Status.DAMAGED
        return None if damaged else workspace.digest("model", dataset, recipe)
    except XCError:  # no model, or a wrong setting
        return None


def _champion_finding(workspace: Workspace, dataset: str, version: Any | None) -> Finding:
    """Return whether the champion's files are there, whole, of this dataset, and within this project's reach."""
    from xc_core.infer.bundle import Model

    if version is None:
        return Finding("note", f"champion of {dataset}: none yet")
    text = f"champion of {dataset}: version {version.version}, recipe {version.tags.get('recipe')}"
    do = f"  do this:  {versions.repair_champion_command(dataset)}"
    try:
        folder = versions.download(version)
        versions.check_files(version, folder, Model.open(folder, dataset).digest)
    except (RefusedError, StorageError, UnavailableError) as error:
        return Finding("fault", f"{text}: {error}")
    except XCError as error:
        return Finding("fault", f"{text}: found {error.found}\n  expected: {error.expected}\n{do}")
    if versions.is_elsewhere(folder, mlflow_settings(workspace.root).artifacts):
        return Finding("fault", f"{text}: found its files under another root, {folder}\n{do}")
    if versions.AROUND not in version.tags:
        note = "the files around its packed model were not recorded, so damage to them is not seen; to record them"
        return Finding("note", f"{text}: {note}\n{do}")
    return Finding("ok", text)
