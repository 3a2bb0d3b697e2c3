"""Faults of the month that are no kill: each strikes, is seen to do no harm or to be reported, and is counted."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.conftest import ToyWorld
from tests.processes import wait_for
from tests.soak.project import RETRAIN, Project
from xc_core.artifacts import verify
from xc_core.manifests import read_manifest

_HEAD: Final = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def mistyped_setting(project: Project) -> None:
    """A typo in params.yaml is reported; the file is corrected."""
    path = project.workspace.params.path
    content = path.read_text("utf-8")
    path.write_text(content.replace("datasets:", "datsets:", 1), "utf-8")
    assert "datsets" in project.xc("status", code=78)
    path.write_text(content, "utf-8")
    project.faults["mistyped setting"] += 1


def killed_command(project: Project, *arguments: str) -> None:
    """Kill a command at a random moment."""
    process = subprocess.Popen(
        project.command(*arguments), cwd=project.root, env=project.servers.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(project.random.uniform(0.3, 2.5))
    process.kill()
    process.wait()
    project.faults[f"kill -9 xc {arguments[0]}"] += 1


def garbage(project: Project) -> None:
    """Send what is no question: each is refused in words. A request that never ends holds nobody up."""
    port = project.ports[0]
    bodies = [b"", b"{", b"\xff\xfe", b"[1, 2]", b'{"text": 5}', b'{"text": "a", "kk": 3}', b'{"text": "a", "k": 1e9}',
              b'{"text": ""}', b'{"texts": []}', b'{"text": "a", "only": ["no label"]}', b"[" * 100_000]  # fmt: skip
    for body in bodies:
        status, content = _sent(port, body)
        assert 400 <= status < 500 and set(content) == {"found", "expected", "do"}, (body[:40], status, content)
        project.faults["garbage request"] += 1
    half = socket.create_connection(("127.0.0.1", port), timeout=5)  # stays open until the server gives up
    half.sendall(f"{_HEAD}Content-Length: 99\r\n\r\n{{".encode())
    project.asked("river0", k=1)
    half.close()
    project.faults["request cut off"] += 1


def _sent(port: int, body: bytes) -> tuple[int, dict[str, str]]:
    head = f"{_HEAD}Content-Length: {len(body)}\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head_, _, content = answer.partition(b"\r\n\r\n")
    return int(head_.split()[1]), json.loads(content)


def cancelled_run(project: Project) -> None:
    """Cancel a run while a stage is at work; the stage ends and nothing starts again."""
    servers = project.servers
    wait_for(servers.ready, 120, "webserver")
    assert servers.ended(servers.launch("prepare", ("corpus", "tokens"))) == "SUCCESS"
    run = servers.launch("retrain", RETRAIN)
    wait_for(lambda: bool(servers.processes("assets.worker")), 120, "a stage")
    servers.cancel(run)
    assert servers.ended(run) == "CANCELED"
    wait_for(lambda: not servers.processes("assets.worker"), 30, "end of the stage")
    project.faults["cancelled run"] += 1


def hanging_tracking(project: Project, seconds: float = 15.0) -> None:
    """Stop the tracking server for some time: it takes connections and answers nothing."""
    group = os.getpgid(project.servers.running["tracking"].pid)
    os.killpg(group, signal.SIGSTOP)
    time.sleep(seconds)
    project.asked("river0", k=1)
    os.killpg(group, signal.SIGCONT)
    project.faults["hanging tracking server"] += 1


def damaged_artefact(project: Project) -> None:
    """Change an artefact's file; it is reported, and made again with the same content."""
    folder = project.workspace.folder("classifier", "toy", "ngame")
    before = read_manifest(folder).digest()
    _largest(folder).write_bytes(b"damaged")
    assert "damaged" in project.xc("status", code=1)
    project.train()
    assert verify(folder).digest() == before
    project.faults["damaged artefact"] += 1


def damaged_champion(project: Project) -> None:
    """Change a byte of the champion's registered files; the servers go on, and a repair registers the content again."""
    path = _largest(project.champion_folder())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "do this:  xc promote --dataset toy --repair" in project.xc("doctor", code=None)
    project.asked("river0", k=1)
    project.xc("promote", "--dataset", "toy", "--repair")
    project.faults["damaged champion"] += 1


def _largest(folder: Path) -> Path:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".json")]
    return max(files, key=lambda path: path.stat().st_size)


def added_labels(project: Project, labels: Sequence[tuple[str, str]]) -> None:
    """Give labels scores without training."""
    path = project.drop(ToyWorld()).with_name("labels.csv")
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("uid", "text"), *labels])
    project.xc("add-labels", str(path), "--dataset", "toy")


def into_inbox(project: Project, world: ToyWorld) -> None:
    """Copy a whole dataset into the inbox, whose sensor is switched on; one part comes later than the rest."""
    project.servers.switch_on("inbox")
    target = project.root / "data" / "toy" / "inbox"
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(project.drop(world).iterdir()):
        (target / path.name).write_bytes(path.read_bytes())
        time.sleep(0.5)
