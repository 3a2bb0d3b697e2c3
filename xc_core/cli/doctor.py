"""``xc doctor``: is this machine, this environment and this project fit to work? Each line says what to do if not.

Takes: nothing.                                Gives: a list of findings, exit code 0 or 78.
May import: stages, artifacts, encoders.       Never: changes anything.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click

from xc_core import artifacts
from xc_core.errors import MissingError, XCError
from xc_core.stages import STAGES, Workspace

_LEAST_DISK_GB = 5


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    level: str
    """ok, note or fault."""
    text: str


@click.command(short_help="Check machine, environment and project.")
def doctor() -> None:
    """Look at versions, processor, disk, parameters and artefacts, and at whatever other packages want looked at."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _versions,
        _selection_parser,
        _machine,
        _project,
    ]
    checks += [entry.load() for entry in metadata.entry_points(group="xc.checks")]
    faults = 0
    for check in checks:
        try:
            findings = list(check())
        except XCError as error:
            findings = [Finding("fault", str(error))]
        for finding in findings:
            faults += finding.level == "fault"
            click.echo(f"{finding.level:>5}  {finding.text}")
    click.echo("all well" if not faults else f"{faults} fault{'s' if faults > 1 else ''}")
    if faults:
        raise click.exceptions.Exit(78)


def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok" if sys.version_info >= (3, 11) else "fault", f"Python {found} (3.11 or newer is needed)")


def _versions() -> Iterator[Finding]:
    """Compare what is installed with the project's pins."""
    path = Workspace.find().root / "constraints.txt"
    pins = [
        line.split("==") for line in path.read_text("utf-8").splitlines() if "==" in line and not line.startswith("#")
    ]
    off = []
    for name, version in pins:
        try:
            found = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
        if found != version.split("+")[0].strip():
            off.append(f"{name} {found} instead of {version}")
    yield Finding(
        "note" if off else "ok",
        f"versions differ from constraints.txt: {', '.join(off)}" if off else "versions as pinned",
    )


def _selection_parser() -> Iterator[Finding]:
    """Find the silent break of Dagster's asset selection by the antlr that dvc's hydra would bring."""
    try:
        found = metadata.version("antlr4-python3-runtime")
    except metadata.PackageNotFoundError:
        return
    fits = found.startswith("4.13")
    text = f"antlr4-python3-runtime {found}"
    yield Finding(
        "ok" if fits else "fault",
        text if fits else f"{text}: Dagster's asset selection needs 4.13; pip install -c constraints.txt again",
    )


def _machine() -> Iterator[Finding]:
    import torch

    from xc_core.encoders.base import multiplies_bf16

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    yield Finding(
        "ok",
        f"{os.cpu_count()} processors, bf16 {'native' if multiplies_bf16('cpu') else 'not native'}, GPU {gpu}",
    )
    free = shutil.disk_usage(Workspace.find().root).free / 1e9
    yield Finding("ok" if free > _LEAST_DISK_GB else "note", f"{free:.0f} GB free on the project's disk")


def _project() -> Iterator[Finding]:
    """Resolve every experiment and verify every artefact that is there."""
    workspace = Workspace.find()
    pairs = workspace.experiments()
    for dataset, recipe in pairs:
        workspace.experiment(dataset, recipe)
    yield Finding("ok", f"params.yaml: {len(workspace.datasets())} datasets, {len(pairs)} experiments")
    folders = {workspace.folder(name, d, r) for d, r in pairs for name in STAGES}
    present = sorted(folder for folder in folders if (folder / artifacts.MANIFEST).is_file())
    broken = list(_broken(present))
    for error in broken:
        yield Finding("fault", error)
    yield Finding("ok", f"{len(present) - len(broken)} artefacts whole")


def _broken(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        try:
            artifacts.verify(folder)
        except MissingError:
            continue
        except XCError as error:
            yield str(error)
