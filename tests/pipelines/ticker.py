"""Evaluates one sensor as the daemon does."""

from __future__ import annotations

from typing import Any

import dagster as dg

from pipelines.definitions import build
from xc_core.chain import Workspace


class Ticker:
    """One sensor; each tick starts at the cursor of the one before."""

    def __init__(self, workspace: Workspace, instance: dg.DagsterInstance, name: str) -> None:
        self.instance = instance
        self.repository = build(workspace).get_repository_def()
        self.sensor = self.repository.get_sensor_def(name)
        self.cursor: str | None = None

    def tick(self) -> Any:
        context = dg.build_sensor_context(self.instance, self.cursor, repository_def=self.repository)
        with dg.partition_loading_context(dynamic_partitions_store=self.instance), context as opened:
            found = self.sensor.evaluate_tick(opened)
        self.cursor = found.cursor
        return found

    def requested(self) -> list[tuple[str | None, str | None, str | None, dict[str, str]]]:
        """Return run key, job, partition and the tags xc/... of every run that a tick requests."""
        found = self.tick()
        assert found.dagster_run_reactions == [], "the sensor itself failed"
        return [
            (one.run_key, one.job_name, one.partition_key, {k: v for k, v in one.tags.items() if k.startswith("xc/")})
            for one in found.run_requests
        ]
