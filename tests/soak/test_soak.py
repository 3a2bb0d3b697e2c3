"""Real servers: a cancelled run stays ended, a dropped retry is started once, kills and a power cut lose nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import pytest

from pipelines.sensors import RETRY_TAG
from tests.processes import wait_for
from tests.soak.client import Client
from tests.soak.killer import Killer
from tests.soak.servers import SERVERS, TRAINER, WORKER, Servers, leftovers, victim
from tests.soak.soak import SETTINGS, Soak, digests, forget, prepared, soak
from xc_core.chain import run_stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BEFORE = ("encoder", "embeddings", "clusters", "negatives")
"""The stages before the classifier."""


@pytest.mark.parametrize(
    ("stages", "forked"), [(("encoder",), False), ((*BEFORE, "classifier"), True)], ids=["started", "forked"]
)
def test_a_cancelled_run_ends_within_seconds_and_is_not_retried(
    tmp_path: Path, stages: tuple[str, ...], forked: bool
) -> None:
    workspace, last = prepared(tmp_path), stages[-1]
    workspace.params.declare_experiment(
        "toy", "ngame", "ngame", {**SETTINGS, last: {**SETTINGS[last], "epochs": 100_000.0}}
    )
    servers = Servers(tmp_path)
    try:
        servers.start_all()
        run = servers.launch("retrain", stages)
        checkpoint = workspace.state / "run" / f"{last}@toy_ngame"
        wait_for(checkpoint.is_dir, 240, "training")
        (stage,) = servers.processes(f"assets.worker run {last}")
        assert ("forkserver" in " ".join(stage.parent().cmdline())) == forked
        servers.cancel(run)
        wait_for(lambda: not servers.processes("assets.worker"), 30, "end of the training")
        wait_for(lambda: servers.run(run)[0] == "CANCELED", 30, "end of the run")
        time.sleep(float(servers.environment["XC_RETRY_SECONDS"]) + 5)
        assert servers.run(run)[0] == "CANCELED"
        assert servers.processes("assets.worker") == []
        assert leftovers(tmp_path) == []
    finally:
        servers.stop_all()


def test_a_lost_run_whose_retry_dagster_drops_is_started_once_by_the_sensor(tmp_path: Path) -> None:
    """The code server is down when the daemon finds the lost run, so Dagster cannot start its automatic retry."""
    prepared(tmp_path)
    servers = Servers(tmp_path)
    try:
        servers.start_all()
        run = servers.launch("retrain", ("encoder",))
        wait_for(lambda: victim(servers, TRAINER) is not None, 240, "training")
        for kind in ("code", WORKER):
            process = victim(servers, kind)
            assert process is not None
            process.kill()
        wait_for(lambda: servers.run(run)[1].get("dagster/will_retry") == "false", 120, "attempt to retry the run")
        status, tags = servers.run(run)
        assert (status, tags.get("dagster/auto_retry_run_id")) == ("FAILURE", None), "Dagster retried the run"
        servers.start("code")
        wait_for(lambda: bool(servers.started_by("lost_retries")), 180, "run of the sensor lost_retries")
        (again,) = servers.started_by("lost_retries")
        assert servers.ended(again) == "SUCCESS"
        tags = servers.run(again)[1]
        assert (tags[RETRY_TAG], tags["dagster/run_key"]) == (run, f"{run}/retry")
        ended = time.time()
        wait_for(lambda: servers.ticks("lost_retries")[0][0] > ended, 120, "a later tick of the sensor")
        assert [runs for _, runs in servers.ticks("lost_retries") if runs] == [[again]]
        assert servers.runs("retrain") == {again: "SUCCESS", run: "FAILURE"}
    finally:
        servers.stop_all()


def test_a_power_cut_loses_nothing(tmp_path: Path) -> None:
    """Webserver, daemon, code server, tracking server, run worker and training end at the same moment."""
    workspace, stages = prepared(tmp_path), ("encoder",)
    run_stage(workspace, "encoder", "toy", "ngame")
    expected, servers = digests(workspace, stages), Servers(tmp_path)
    forget(workspace)
    soaked = Soak(workspace, servers, Killer(servers, 0, Random(0)), Client([], [], 0), stages)
    try:
        servers.start_all()
        run = servers.launch("retrain", stages)
        wait_for((workspace.state / "run" / "encoder@toy_ngame").is_dir, 240, "training")
        for process in (alive := servers.processes()):
            process.suspend()  # none sees the end of another
        assert {kind for kind in (*SERVERS, WORKER, TRAINER) if victim(servers, kind)} == {*SERVERS, WORKER, TRAINER}
        servers.stop_all()
        wait_for(lambda: not any(process.is_running() for process in alive), 30, "end of all processes")
        servers.start_all()
        assert servers.ended(run) == "SUCCESS", "the automatic retry"
        assert servers.run(run)[0] == "FAILURE"
        soaked.check_idle()
        assert digests(workspace, stages) == expected
        forget(workspace)
        assert servers.ended(servers.launch("retrain", stages)) == "SUCCESS"
        soaked.check_idle()
        assert digests(workspace, stages) == expected
    finally:
        servers.stop_all()


def test_three_kills_lose_nothing(tmp_path: Path) -> None:
    found: Soak = soak(tmp_path, 3, 600, seed=7, stages=("encoder",))
    assert found.killer.killed.total() >= 3, json.dumps(found.killer.killed)
