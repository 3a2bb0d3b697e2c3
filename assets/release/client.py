"""A client of the project's MLflow, for commands; MLflow is imported when it is asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from assets.settings import mlflow_settings
from xc_core.chain import Workspace


def client_of(workspace: Workspace) -> AbstractContextManager[Any]:
    """Return a context with a client of the project's MLflow; errors of MLflow in it become UnavailableError."""
    from assets.tracking import connected

    settings = mlflow_settings(workspace.root)
    return connected(settings.uri, settings.lock)
