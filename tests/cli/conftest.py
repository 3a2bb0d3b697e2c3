"""``xc`` in this process, on a workspace of its own."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core import progress
from xc_core.chain import Workspace
from xc_core.cli.main import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def refused(self, code: int, found: str, do: str = "") -> None:
        """Fail unless it ended with ``code`` and named, in three lines, what it found and what to do."""
        parts = re.fullmatch(r"xc: (.*?found (?:.|\n)+)\n  expected: ((?:.|\n)+)\n  do this:  (.+)\n", self.err)
        assert parts, f"not found / expected / do this:\n{self.err}"
        assert self.code == code, self.err
        assert found in parts[1]
        assert parts[2].strip()
        assert do in parts[3]


Xc = Callable[..., Ended]
TOY = ("--dataset", "toy")
NGAME = (*TOY, "--recipe", "ngame")


def settings_of(changes: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested changes as arguments of --set."""
    for name, value in changes.items():
        if isinstance(value, dict):
            yield from settings_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={value}"


TOY_SETTINGS = [part for setting in settings_of(TOY_CHANGES) for part in ("--set", setting)]


@pytest.fixture
def xc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Xc]:
    """Run ``xc`` with arguments, the standard input given as bytes."""

    def call(*arguments: object, stdin: bytes = b"") -> Ended:
        progress.silence()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)

    yield call
    progress.silence()


def entry(name: str, function: Any) -> Any:
    """Return what stands for an entry point of another package."""
    return type("Entry", (), {"name": name, "dist": None, "load": lambda self: function})()


def offered(monkeypatch: pytest.MonkeyPatch, group: str, *entries: Any) -> None:
    """Let ``entries`` be all that installed packages offer, to the entry points of ``group``."""

    def entry_points(**asked: str) -> list[Any]:
        return list(entries) if asked["group"] == group else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The toy dataset as raw files, nothing made of it."""
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    return make_workspace(tmp_path)


@pytest.fixture
def ready(trained: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The trained toy chain, only to be asked."""
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    return trained


@pytest.fixture
def own(trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of the trained toy chain, to be changed."""
    monkeypatch.setenv("XC_ROOT", str(tmp_path / "own"))
    return Workspace(Path(shutil.copytree(trained.root, tmp_path / "own")))


def spoil(workspace: Workspace) -> Path:
    """Change the last byte of the encoder in the packed model; return the file."""
    path = workspace.folder("model", "toy", "ngame") / "encoder.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path
