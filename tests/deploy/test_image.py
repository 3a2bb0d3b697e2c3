"""The Dockerfile, without Docker: what can be read from it, its build context, and its health check."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_kubernetes import PODS
from xc_core.serve.guard import PATHS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    """Return (name, rest) of every instruction; continued lines are joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in "\n".join(lines).replace("\\\n", "").splitlines()]


ALL = instructions()
LAST = ALL[max(i for i, (name, _) in enumerate(ALL) if name == "FROM") :]


def copied() -> list[str]:
    """Return what the first stage copies from the project."""
    found = [rest.split()[:-1] for name, rest in ALL if name == "COPY" and "--from" not in rest]
    return sorted({source for sources in found for source in sources})


def test_there_are_two_stages_on_the_same_base_with_a_full_version() -> None:
    bases = [rest.split()[0] for name, rest in ALL if name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    version = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", bases[0])
    assert version is not None, "a moving tag"
    assert version[1] == PROJECT["tool"]["mypy"]["python_version"]


def test_the_image_does_not_run_as_root() -> None:
    ((number, user),) = [(i, rest) for i, (name, rest) in enumerate(LAST) if name == "USER"]
    pod = PODS["xc-serve"]["securityContext"]
    assert user == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    assert not [name for name, _ in LAST[number:] if name in ("RUN", "COPY", "ADD")], "nothing is done after"
    assert f"useradd --uid {pod['runAsUser']}" in " ".join(rest for name, rest in LAST if name == "RUN")


def test_versions_are_pinned_and_the_extras_exist() -> None:
    (command,) = [rest for _, rest in ALL if "pip install" in rest]
    extras = re.search(r"-c constraints\.txt '\.\[([\w,]+)\]'", command)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert "--no-install-recommends" in next(rest for _, rest in ALL if "apt-get" in rest)


def test_no_secret_is_built_into_the_image() -> None:
    set_ = " ".join(rest for name, rest in ALL if name in ("ENV", "ARG"))
    assert not re.search("password|secret|token|key", set_, re.IGNORECASE)


def test_the_build_context_is_what_is_copied_and_nothing_else() -> None:
    lines = [x for x in (ROOT / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
    assert lines[0] == "*", "what is not listed stays outside"
    assert sorted(line.removeprefix("!") for line in lines[1:] if line.startswith("!")) == copied()


def test_the_build_context_is_enough_to_build_the_package(tmp_path: Path) -> None:
    for name in copied():
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "out").iterdir()
    packed = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "xc_core", "assets", "pipelines"], cwd=ROOT, capture_output=True, text=True
    )
    assert set(listed.stdout.split()) <= packed


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked = self.path  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_xc_serve_and_no_proxy(status: int, healthy: bool) -> None:
    (check,) = [rest for name, rest in LAST if name == "HEALTHCHECK"]
    command = json.loads(check[check.index("[") :])
    assert ("EXPOSE", "8080") in LAST
    with HTTPServer(("127.0.0.1", 0), _Answering) as server:
        server.status = status  # type: ignore[attr-defined]
        threading.Thread(target=server.handle_request, daemon=True).start()
        here = [part.replace("127.0.0.1:8080", f"127.0.0.1:{server.server_port}") for part in command]
        environment = {**os.environ, "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        done = subprocess.run([sys.executable, *here[1:]], capture_output=True, check=False, env=environment)
        assert (done.returncode == 0) is healthy
        assert server.asked == "/health"  # type: ignore[attr-defined]
    assert "/health" in PATHS
