"""The Dagster entry point: collects assets, checks, jobs, schedules, sensors and resources of the project."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from assets import checks, drift, studies
from assets.processes import StageProcesses
from assets.resources import Dvc, Project, Tracking
from assets.settings import TRACKING_URI, mlflow_settings
from assets.stages import ASSETS, retry_seconds
from pipelines import alerts, jobs, schedules, sensors
from xc_core.chain.workspace import Workspace


def resources(root: Path) -> dict[str, object]:
    """Return the values of all resources for a project at ``root``."""
    settings = mlflow_settings(root)
    # Dagster shows and stores the settings of resources: an address that may hold a password is given by its variable
    uri = dg.EnvVar(TRACKING_URI) if os.environ.get(TRACKING_URI) == settings.uri else settings.uri
    return {
        "project": Project(root=str(root)),
        "pipes": StageProcesses(),
        "dvc": Dvc.of(root),
        "tracking": Tracking(root=str(root), uri=uri, artifacts=settings.artifacts, lock=str(settings.lock)),
    }


def build(workspace: Workspace) -> dg.Definitions:
    """Return the definitions of the project in ``workspace``.

    Raises ConfigError for an environment variable that is wrong; it would be read only after something has failed.
    """
    retry_seconds(), alerts.mail_server()
    return dg.Definitions(
        assets=[*ASSETS, studies.ASSET, drift.data_drift],
        asset_checks=checks.ALL,
        jobs=jobs.ALL,
        schedules=schedules.schedules(workspace),
        sensors=[
            sensors.partitions_sensor(workspace),
            sensors.staleness_sensor(workspace),
            sensors.studies_sensor(workspace),
            sensors.inbox_sensor(workspace),
            sensors.follow_up(workspace),
            sensors.lost_retries(workspace),
            alerts.failures(),
            alerts.refusals(),
        ],
        resources=resources(workspace.root),
        executor=dg.in_process_executor,  # each stage runs in a process of its own already
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the project in which this process was started."""
    return build(Workspace.find())
