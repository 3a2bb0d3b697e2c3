"""A client of the project's MLflow, for commands; MLflow is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assets.database import unmade
from assets.settings import MlflowSettings, is_server, mlflow_settings
from xc_core.chain import Workspace
from xc_core.errors import MissingError


@contextmanager
def client_of(workspace: Workspace, *, reads: bool = False, logs: bool = True) -> Iterator[Any]:
    """Yield a client of the project's MLflow; errors of MLflow in the block become UnavailableError.

    A registry at another address is asked once first: an error names that address, and no command waits long. With
    ``reads``, for a command that only reads what was registered, MissingError is raised if the database of the registry
    does not exist: creating it needs permission to write. Without ``logs``, for a command that logs no run, a registry
    at another address is used in place of a database of runs that does not exist.
    """
    from assets.mlflow_errors import answering
    from assets.tracking import connected
    from assets.waiting import first_contact

    settings = mlflow_settings(workspace.root)
    if reads:
        _check_made(settings)
    uri = settings.uri if logs or not unmade(settings.uri) else settings.registry
    with _as_before(settings.uri), connected(uri, settings.lock) as client:
        if settings.registry != uri:
            with answering(settings.registry), first_contact(settings.registry):
                client.search_registered_models(max_results=1)
        yield client


@contextmanager
def versions_client(workspace: Workspace) -> Iterator[Any]:
    """Yield a client for a command that needs registered versions, their aliases and files, but no run.

    Only the registry is asked, so the command works while the tracking server or its database is down. A tracking
    server is asked when files of a version come from it (``versions.download``). Errors as of ``client_of``.
    """
    import mlflow

    from assets.mlflow_errors import answering
    from assets.tracking import synced_databases

    settings = mlflow_settings(workspace.root)
    _check_made(settings)
    uri = settings.uri if is_server(settings.uri) else settings.registry
    with _as_before(settings.uri), answering(settings.registry):
        with registry_of(workspace) as client:
            client.search_registered_models(max_results=1)
        mlflow.set_tracking_uri(uri)
        yield mlflow.MlflowClient(uri, settings.registry)
    synced_databases(settings.registry)


@contextmanager
def registry_of(workspace: Workspace) -> Iterator[Any]:
    """Yield a client of the project's registry for one question; as ``client_of``, without asking anything itself."""
    from assets.tracking import asking_registry

    settings = mlflow_settings(workspace.root)
    with asking_registry(settings.registry, settings.lock) as client:
        yield client


def _check_made(settings: MlflowSettings) -> None:
    """Raise MissingError if the database of the registry does not exist."""
    if missing := unmade(settings.registry):
        raise MissingError(
            f"no database of MLflow at {missing[0]}",
            expected="a registered model, or a run of Dagster, which makes the database",
            do="register a model: xc promote --dataset NAME --recipe NAME; if there was a database, it was moved or "
            "deleted, or MLFLOW_TRACKING_URI or MLFLOW_REGISTRY_URI has changed",
        )


@contextmanager
def _as_before(uri: str) -> Iterator[None]:
    """Set MLflow's tracking URI back after the block: MLflow writes it into the environment, where our settings are."""
    try:
        yield
    finally:
        import mlflow

        if mlflow.get_tracking_uri() != uri:
            mlflow.set_tracking_uri(uri)
