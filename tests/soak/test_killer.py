"""The killer kills as often as it may, waits for servers to come back, and passes its own errors on."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_for
from tests.soak import killer
from tests.soak.killer import Killer
from tests.soak.servers import SERVING, STAGE, Servers


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let every victim be a new process that sleeps; return the list of them."""
    found: list[subprocess.Popen[bytes]] = []

    def sleeping(*_: object) -> psutil.Process:
        found.append(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]))
        return psutil.Process(found[-1].pid)

    monkeypatch.setattr(killer, "victim", sleeping)
    monkeypatch.setattr(killer, "PAUSE", (0.0, 0.01))
    monkeypatch.setattr(killer, "WHILE_STARTING", 0.0)
    yield found
    for process in found:
        process.kill()
        process.wait()


def test_each_kind_is_killed_as_often_as_allowed_and_a_server_only_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    back: list[str] = []
    monkeypatch.setattr(Servers, "answers", lambda _self, name, _since: name in back)
    shooting = Killer(Servers(tmp_path), 100, random.Random(0), say=lambda _: None)
    with shooting.at_work({"code": 2, STAGE: 1}):
        wait_for(lambda: shooting.killed == {"code": 1, STAGE: 1}, 10, "the first kills")
        assert not shooting.all_back()
        back.append("code")
        wait_for(lambda: shooting.killed == {"code": 2, STAGE: 1}, 10, "the second kill of the server")
    assert shooting.all_back()
    assert len(shooting.away["code"]) == 2
    assert [process.wait() for process in started] == [-9, -9, -9]


def test_after_the_last_kill_it_is_still_measured_when_a_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    back: list[str] = []
    monkeypatch.setattr(Servers, "answers", lambda _self, name, _since: name in back)
    shooting = Killer(Servers(tmp_path), 1, random.Random(0), say=lambda _: None)
    with shooting.at_work({"code": 5}):
        wait_for(lambda: shooting.left == 0, 10, "the kill")
        back.append("code")
        wait_for(lambda: len(shooting.away["code"]) == 1, 10, "the answer")
    assert shooting.killed == {"code": 1}


def test_a_process_of_xc_serve_is_killed_only_while_the_other_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    names = [f"{SERVING} 1", f"{SERVING} 2"]
    back: list[str] = []
    monkeypatch.setattr(Servers, "answers", lambda _self, name, _since: name in back)
    monkeypatch.setattr(killer, "WHILE_STARTING", 1.0)
    servers = Servers(tmp_path)
    servers.ports |= dict.fromkeys(names, 1)
    shooting = Killer(servers, 100, random.Random(0), say=lambda _: None)
    with shooting.at_work({names[0]: 1, names[1]: 1}):
        wait_for(lambda: shooting.killed.total() == 1, 10, "the first kill")
        time.sleep(0.5)
        ((first, _),) = shooting.killed.items()
        assert set(shooting.gone) == {first}
        back.append(first)
        wait_for(lambda: shooting.killed.total() == 2, 10, "the kill of the other one")


def test_an_error_of_the_killer_is_raised_where_it_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = threading.Event()

    def broken(*_: object) -> psutil.Process:
        called.set()
        raise OSError("no /proc")

    monkeypatch.setattr(killer, "victim", broken)
    monkeypatch.setattr(killer, "PAUSE", (0.0, 0.0))
    shooting = Killer(Servers(tmp_path), 1, random.Random(0))
    with pytest.raises(OSError, match="no /proc"), shooting.at_work({STAGE: 1}):
        assert called.wait(10)
