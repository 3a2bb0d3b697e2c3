"""``xc doctor``: checks machine, environment and project; each line says what to do if something is wrong."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import click

from xc_core import artifacts
from xc_core.causes import explanation
from xc_core.chain import STAGES, Workspace, changelog
from xc_core.chain.undeclared import advice, undeclared_recipes
from xc_core.errors import ConfigError, XCError
from xc_core.git import trouble
from xc_core.installation import outdated
from xc_core.plugins import GROUP, importing, load_plugins
from xc_core.sqlite import PREFIX
from xc_core.visible import counted

_MIN_DISK_GB = 5
_FOLDER_VARIABLES = ("XC_STATE_DIR", "XC_LOG_DIR", "XC_MLFLOW_ARTIFACTS", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
"""Environment variables that may name a folder of Dagster, or a folder or file of MLflow, elsewhere."""
_SCHEME = re.compile(f"^(file://|{PREFIX})")
_PIN = re.compile(r"^\s*([\w.-]+)\s*(?:\[[^]]*\]\s*)?==\s*([^\s;#,]+)", re.MULTILINE | re.ASCII)
"""Name and version of a line of constraints.txt; extras, markers (``; sys_platform``) and comments may follow."""
_LINE, _INDENTED = "\n", "\n       "


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    level: str
    """ok, note or fault."""
    text: str


@click.command(short_help="Check machine, environment and project.")
def doctor() -> None:
    """Check versions, processor, disk, parameters and artefacts, and run the checks of other packages."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _versions,
        _installation,
        _selection_parser,
        _plugins,
        _machine,
        _checkout,
        _project,
    ]
    checks += [partial(_of_package, entry) for entry in metadata.entry_points(group="xc.checks")]
    seen: set[Finding] = set()
    for check in checks:
        for finding in _findings(check):
            if finding not in seen:  # every check finds that there is no project
                click.echo(f"{finding.level:>5}  {finding.text.replace(_LINE, _INDENTED)}")
            seen.add(finding)
    faults = sum(finding.level == "fault" for finding in seen)
    click.echo("all well" if not faults else counted(faults, "fault"))
    if faults:
        sys.exit(ConfigError.exit_code)


def _findings(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of ``check``; an error that it raises is a finding too."""
    try:
        with importing():  # most of the time is that of imports
            yield from check()
    except XCError as error:
        yield Finding("fault", str(error))
    except Exception as error:
        cause = explanation(error) or f"a check that cannot run ({type(error).__name__}: {error})"
        yield Finding("fault", str(cause))


def _of_package(entry: metadata.EntryPoint) -> Iterator[Finding]:
    """Yield the findings of another package's check."""
    yield from entry.load()()


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok" if sys.version_info >= (3, 11) else "fault", f"Python {version} (3.11 or newer is needed)")


def _versions() -> Iterator[Finding]:
    """Compare the installed versions with the project's pins."""
    path = Workspace.find().root / "constraints.txt"
    if not path.is_file():
        yield Finding("note", f"no {path}, so versions are not compared with the project's pins")
        return
    differing = []
    for name, version in _PIN.findall(path.read_text("utf-8")):
        try:
            installed = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
        if installed != version.split("+")[0]:
            differing.append(f"{name} {installed} instead of {version}")
    yield Finding(
        "note" if differing else "ok",
        f"versions differ from constraints.txt: {', '.join(differing)}" if differing else "versions as pinned",
    )


def _installation() -> Iterator[Finding]:
    """Compare entry points and required packages with those of the code."""
    if (error := outdated()) is not None:
        raise error
    yield Finding("ok", "installation of this code")


def _selection_parser() -> Iterator[Finding]:
    """Find the antlr version of dvc's hydra, which breaks Dagster's asset selection without a message."""
    try:
        installed = metadata.version("antlr4-python3-runtime")
    except metadata.PackageNotFoundError:
        return
    fits = installed.startswith("4.13")
    text = f"parser of Dagster's asset selection: antlr4-python3-runtime {installed} (4.13 is needed)"
    do = "\n  do this:  install the project again with its pins: pip install -c constraints.txt -e ."
    yield Finding("ok" if fits else "fault", text if fits else text + do)


def _checkout() -> Iterator[Finding]:
    """Find a checkout that git does not read, for instance one of another user in a container."""
    root = Workspace.find().root
    if reason := trouble(root):
        do = f"git config --global --add safe.directory {root}" if "ownership" in reason else "install git, or commit"
        yield Finding("note", f"models are recorded without a commit: {reason}\n  do this:  {do}")


def _plugins() -> Iterator[Finding]:
    """Import every plug-in that registers parts."""
    load_plugins()
    names = sorted(entry.name for entry in metadata.entry_points(group=GROUP))
    yield Finding("ok", f"plug-ins: {', '.join(names) or 'none'}")


def _machine() -> Iterator[Finding]:
    from xc_core.devices import Device

    device = Device.chosen()
    yield Finding(
        "ok",
        f"{counted(os.cpu_count() or 1, 'processor')}, {device.in_words()}; training uses {device.name}, "
        f"where {'bf16' if device.multiplies_bf16() else 'fp32'} is faster",
    )
    for path, name in _disks(Workspace.find()).items():
        free = shutil.disk_usage(path).free / 1e9
        yield Finding("ok" if free > _MIN_DISK_GB else "note", f"{free:.0f} GB free on {name}")


def _disks(workspace: Workspace) -> dict[Path, str]:
    """Return a folder on each disk that the project's files and temporary files are on, with a name of the disk."""
    from xc_core.lifecycle.dvc_settings import DvcSettings

    homes = (workspace.state, workspace.data, workspace.root / ".dvc")
    subfolders = [folder for home in homes for depth in ("*/", "*/*/") for folder in sorted(home.glob(depth))]
    from_variables = [workspace.root / _SCHEME.sub("", os.environ.get(name, "")) for name in _FOLDER_VARIABLES]
    paths = [*homes, *subfolders, *from_variables, *DvcSettings.of(workspace.root).folders, Path(tempfile.gettempdir())]
    disks = {workspace.root.stat().st_dev: (workspace.root, "the project's disk")}
    for path in paths:
        if path.exists():
            disks.setdefault(path.stat().st_dev, (path, f"the disk of {path}"))
    return dict(disks.values())


def _project() -> Iterator[Finding]:
    """Resolve every experiment and verify every artefact."""
    workspace = Workspace.find()
    datasets, pairs = workspace.params.datasets(), workspace.params.experiments()
    yield Finding("ok", f"params.yaml: {counted(len(datasets), 'dataset')}, {counted(len(pairs), 'experiment')}")
    for dataset, recipe in [*((name, None) for name in datasets), *pairs]:
        try:
            workspace.params.partition(dataset, recipe)
            if recipe is None:
                workspace.params.dataset(dataset).release.check(dataset, workspace.params.recipes(dataset))
        except XCError as error:
            yield Finding("fault", str(error))
    folders = {workspace.folder(s.name, d) for d in datasets for s in STAGES.values() if s.scope == "dataset"}
    folders |= {workspace.folder(s.name, d, r) for d, r in pairs for s in STAGES.values() if s.scope == "experiment"}
    present = sorted(folder for folder in folders if folder.is_dir())
    broken = list(_broken(present))
    yield from (Finding("fault", text) for text in broken)
    yield Finding("ok", f"{counted(len(present) - len(broken), 'artefact')} whole")
    gaps = ((name, changelog.gap(workspace.folder("corpus", name))) for name in datasets)
    yield from (Finding("note", f"{name}: {text}") for name, text in gaps if text)
    lost = ((name, recipe) for name in datasets for recipe in undeclared_recipes(workspace, name))
    yield from (Finding("note", "\n".join(advice(workspace, *pair))) for pair in lost)


def _broken(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        try:
            artifacts.verify(folder, kind=folder.name)
        except XCError as error:
            yield str(error)
