"""The last step of the asset ``model``: registers the packed model; the gate decides whether it becomes champion."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets import links
from assets.checks import GATE
from assets.metadata import link, texts
from assets.partitions import split_key
from assets.resources import Project, Tracking
from xc_core.errors import ConfigError


def release(
    context: dg.AssetExecutionContext, project: Project, tracking: Tracking
) -> tuple[dict[str, Any], list[dg.AssetCheckResult]]:
    """Register the packed model if its recipe competes; return metadata, and the gate's verdict as a check result."""
    from assets.release.candidate import candidate, check_up_to_date
    from assets.release.client import client_of
    from assets.release.judge import keep_acceptance
    from assets.release.registry import register
    from assets.release.versions import model_name

    dataset, recipe = split_key(context.partition_key)
    assert recipe is not None
    workspace = project.workspace
    rules = workspace.params.dataset(dataset).release
    if not rules.competes(recipe):
        message, valid = f"not registered: datasets.{dataset}.release.recipes does not name {recipe}", True
        try:
            rules.check(dataset, workspace.params.recipes(dataset))
        except ConfigError as error:  # a mistyped name: nothing might ever be registered
            message, valid = f"not registered: {error}", False
        (context.log.info if valid else context.log.error)(message)
        result = dg.AssetCheckResult(passed=valid, check_name=GATE.name, metadata={"verdict": message})
        return {"champion": False, "gate": message}, [result]
    packed = candidate(workspace, dataset, recipe, context.run_id)
    check_up_to_date(workspace, dataset, recipe)  # data and settings were read as its origin after it was packed
    with client_of(workspace) as client:
        released = register(client, tracking.artifacts, packed)
    keep_acceptance(workspace, dataset)
    (context.log.error if released.refused else context.log.info)(released.message)
    shown: dict[str, Any] = {"verdict": released.message}
    if released.verdict is not None:
        shown |= {"lines": texts(released.verdict.rows()), "documents": released.verdict.documents}
    result = dg.AssetCheckResult(passed=not released.refused, check_name=GATE.name, metadata=shown)
    name = model_name(dataset)
    page = link(links.mlflow_version(name, released.version), f"{name}, version {released.version}")
    shown = {"gate": released.message, "mlflow_model": page, "version": released.version}
    return {**shown, "champion": released.is_champion}, [result]
