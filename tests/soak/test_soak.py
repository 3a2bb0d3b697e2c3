"""Real servers: a cancelled run ends within seconds and stays ended; three kills at random moments lose nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.processes import wait_for
from tests.soak.servers import Servers, leftovers
from tests.soak.soak import SETTINGS, Soak, prepared, soak

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


def test_three_kills_lose_nothing(tmp_path: Path) -> None:
    found: Soak = soak(tmp_path, 3, 600, seed=7, stages=("encoder",))
    assert found.killer.killed.total() >= 3, json.dumps(found.killer.killed)
