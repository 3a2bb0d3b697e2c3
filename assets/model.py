"""Asset model: the packed model, registered in MLflow; a gate decides whether it becomes champion.

Takes: the artefacts this stage reads.                        Gives: the artefact model, a registered version.
May import: dagster, assets.station, .registry, xc_core.artifacts.  Never: replaces a champion that is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from assets.partitions import split_key
from assets.registry import Candidate, register
from assets.resources import Project, Tracking
from assets.station import git_commit, station
from xc_core.artifacts import Manifest


def release(
    context: dg.AssetExecutionContext, project: Project, tracking: Tracking, manifest: Manifest
) -> Mapping[str, Any]:
    """Register the bundle as challenger and, where the gate lets it, as champion."""
    dataset, recipe = split_key(context.partition_key)
    assert recipe is not None
    folder = project.workspace.folder("model", dataset, recipe)
    config = manifest.facts["config"]
    tags = {"dagster_run": context.run_id, "git": git_commit(project.root)}
    metrics, max_drop = dict(manifest.facts["metrics"]), float(config["max_drop"])

    def judge(other: Path) -> dict[str, float]:
        from xc_core.stages.rejudge import rejudged

        return rejudged(other, project.workspace, dataset)

    candidate = Candidate(dataset, recipe, folder, metrics, max_drop, tags, judge)
    with tracking.client() as client:
        released = register(client, tracking.artifacts, candidate)
    context.log.info(released.said)
    return {"version": released.version, "champion": released.is_champion, "gate": released.said}


model = station("model", kinds={"mlflow"}, after=release)
