"""The last step of the asset ``model``: registers the packed model; the gate decides whether it becomes champion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from assets.partitions import split_key
from assets.resources import Project, Tracking
from xc_core.git import git_commit


def release(context: dg.AssetExecutionContext, project: Project, tracking: Tracking) -> Mapping[str, Any]:
    """Register the packed model as challenger and, if the gate allows it, as champion."""
    from assets.release.registry import Candidate, register
    from xc_core.infer.bundle import Model

    dataset, recipe = split_key(context.partition_key)
    model = Model.open(project.workspace.folder("model", dataset, recipe))
    tags = {"dagster_run": context.run_id, "git": git_commit(project.root)}

    def evaluate(other: Path) -> dict[str, float]:
        from xc_core.data.corpus import Corpus
        from xc_core.infer.reevaluate import reevaluated

        return reevaluated(other, Corpus.open(project.workspace.folder("corpus", dataset)))

    with tracking.client() as client:
        released = register(client, tracking.artifacts, Candidate.of(model, tags, evaluate))
    context.log.info(released.message)
    return {"version": released.version, "champion": released.is_champion, "gate": released.message}
