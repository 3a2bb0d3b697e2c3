"""An experiment's packed model as a candidate, the same whoever releases it: Dagster or the command line."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from assets.release.judge import Judge
from assets.release.origin import origin
from assets.release.page import page
from assets.release.registry import Candidate
from xc_core.chain import Workspace
from xc_core.errors import MovedError
from xc_core.locks import locked

_PATIENCE: Final = 60.0
"""Seconds that a change of the champion waits for another one, which takes a few requests to MLflow."""
_COPY_PATIENCE: Final = 600.0
"""Seconds that a registration waits for another one, which copies a packed model."""


def moving(workspace: Workspace, dataset: str) -> AbstractContextManager[None]:
    """Return the lock of those who change the champion of a dataset, in all processes of the project on this machine.

    Raises BusyError if another process holds it for a minute.
    """
    path = workspace.lock(f"champion@{dataset}")
    return locked(path, f"a change of the champion of {dataset}", patience=_PATIENCE)


def registering(workspace: Workspace, dataset: str) -> AbstractContextManager[None]:
    """Return the lock of those who register a model of a dataset; raises BusyError after ten minutes."""
    path = workspace.lock(f"register@{dataset}")
    return locked(path, f"a registration of a model of {dataset}", patience=_COPY_PATIENCE)


def candidate(workspace: Workspace, dataset: str, recipe: str, dagster_run: str = "") -> Candidate:
    """Return the packed model of an experiment with its judge, its origin and its page.

    Raises MissingError, CorruptError for a model that cannot be opened.
    """
    from xc_core.infer.bundle import Model

    model = Model.open(workspace.folder("model", dataset, recipe), dataset)
    return Candidate(
        dataset,
        recipe,
        model.folder,
        model.digest,
        Judge(workspace, dataset, recipe),
        origin(workspace, dataset, recipe, dagster_run),
        page(workspace, dataset, recipe),
        workspace.params.dataset(dataset).release.policy == "auto",
        partial(moving, workspace, dataset),
        partial(registering, workspace, dataset),
        workspace.state / "registering" / f"{dataset}.json",
    )


def check_up_to_date(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Raise MovedError for a packed model that is out of date; MissingError, CorruptError if it cannot be opened."""
    from xc_core.chain.status import Status, packed_state, packing_command
    from xc_core.infer.bundle import Model

    state = packed_state(workspace, dataset, recipe)
    Model.open(workspace.folder("model", dataset, recipe), dataset)
    if state.status is Status.STALE:
        raise MovedError(
            f"a model of {dataset}/{recipe} that is out of date: {state.why} since it was packed",
            expected="the model whose figures xc evaluate shows",
            do=f"{packing_command(workspace, state, dataset, recipe)}; a registered one is promoted by --version",
        )
