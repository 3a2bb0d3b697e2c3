"""Small artefacts, and other processes that write or lock."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from xc_core import artifacts, manifests


@contextlib.contextmanager
def started(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in another Python; yield once it reports that it is ready; kill -9 it at the end."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.send_signal(signal.SIGKILL)


def put(folder: Path, text: str = "old", kind: str = "thing") -> manifests.Manifest:
    """Write a small artefact and return its manifest."""
    with artifacts.building(folder, kind=kind) as build:
        (build.path / "inner").mkdir()
        (build.path / "inner" / "a.txt").write_text(text)
        (build.path / "b.txt").write_text(text * 2)
        build.facts["text"] = text
    return manifests.read_manifest(folder)


def text_of(folder: Path) -> str:
    """Return the text that ``put`` wrote, after verifying the artefact."""
    artifacts.verify(folder)
    return str(artifacts.read_made(folder).facts["text"])


def content_of(folder: Path) -> tuple[manifests.Manifest, artifacts.Made]:
    """Return the verified manifest and the record of how the artefact was made."""
    return artifacts.verify(folder), artifacts.read_made(folder)


def neighbours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())
