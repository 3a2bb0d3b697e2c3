"""An experiment's packed model as a candidate, the same whoever releases it: Dagster or the command line."""

from __future__ import annotations

from assets.release.judge import Judge
from assets.release.origin import origin
from assets.release.page import page
from assets.release.registry import Candidate
from xc_core.chain import Workspace


def candidate(workspace: Workspace, dataset: str, recipe: str, dagster_run: str = "") -> Candidate:
    """Return the packed model of an experiment with its judge, its origin and its page.

    Raises MissingError, CorruptError for a model that cannot be opened.
    """
    from xc_core.infer.bundle import Model

    model = Model.open(workspace.folder("model", dataset, recipe))
    return Candidate(
        dataset,
        recipe,
        model.folder,
        model.digest,
        Judge(workspace, dataset, recipe),
        origin(workspace, dataset, recipe, dagster_run),
        page(workspace, dataset, recipe),
        workspace.params.dataset(dataset).release.policy == "auto",
    )
