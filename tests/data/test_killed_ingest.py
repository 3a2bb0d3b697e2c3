"""An ingest that is killed at any moment can be given again as it was, and no other command sees half of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import forks
from tests.data.worlds import empty_workspace, files_of, small_world, write_world
from xc_core import artifacts
from xc_core.causes import storage_error
from xc_core.chain import Workspace, changelog, incoming
from xc_core.chain.params_file import ParamsFile
from xc_core.cli.ingest import place
from xc_core.data.ingest import IngestConfig
from xc_core.errors import BusyError, StorageError
from xc_core.lifecycle.update import update

pytestmark = pytest.mark.chain

MOMENTS = 10
"""Before and after: the record, the exchange of raw files, that of the corpus, params.yaml, the end of the record."""


def ingest(
    workspace: Workspace, source: Path, moment: int, *options: str, name: str = "ingest"
) -> subprocess.CompletedProcess[str]:
    """Run ``xc ingest``, or another command, and kill it at a moment, 0 for never."""
    command = (moment, name, source, "--dataset", "toy", *options)
    return forks.run("tests.data.killed:main", *command, env={**os.environ, "XC_ROOT": str(workspace.root)})


def state(workspace: Workspace) -> dict[str, bytes]:
    """Return all files but locks, timings, cached hashes, and what tells of an earlier version."""
    found, others = files_of(workspace.root), (".xc/lock", ".xc/cost", ".xc/source", ".xc/versions", "data/toy/changes")
    return {name: data for name, data in found.items() if not name.startswith(others)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sources")
    other = small_world()
    for row in other.train:
        row["title"] = f"another {row['title']}"
    return write_world(folder / "old"), write_world(folder / "new", world=other)


@pytest.mark.parametrize("moment", range(1, MOMENTS + 1))
def test_a_new_dataset(tmp_path: Path, sources: tuple[Path, Path], moment: int) -> None:
    """At every second moment another command starts in between, and finishes what was begun."""
    whole, broken = (empty_workspace(tmp_path / name) for name in ("whole", "broken"))
    place(whole, sources[1], "toy", IngestConfig(), replace=False, choose=True)
    assert ingest(broken, sources[1], moment).returncode == -9
    if moment % 2:
        broken.swept()
    again = ingest(broken, sources[1], 0)
    assert again.returncode == (64 if moment == MOMENTS else 0), again.stderr
    assert state(broken) == state(whole)


@pytest.mark.parametrize("moment", range(1, MOMENTS + 1))
def test_a_dataset_that_is_replaced(tmp_path: Path, sources: tuple[Path, Path], moment: int) -> None:
    """After the kill every command sees the old dataset or the new one, never a mixture."""
    workspaces = {name: empty_workspace(tmp_path / name) for name in ("old", "new", "broken")}
    for name, workspace in workspaces.items():
        place(workspace, sources[name == "new"], "toy", IngestConfig(), replace=False)
    broken = workspaces["broken"]
    assert ingest(broken, sources[1], moment, "--replace").returncode == -9
    broken.swept()
    data = {k: v for k, v in state(broken).items() if k.startswith("data")}
    kept = "old" if moment == 1 else "new"
    assert data == {k: v for k, v in state(workspaces[kept]).items() if k.startswith("data")}
    again = ingest(broken, sources[1], 0, "--replace")
    assert again.returncode == 0, again.stderr
    assert state(broken) == state(workspaces["new"])
    assert [entry["what"] for entry in changelog.entries(broken, "toy")] == ["replace"]
    kept = files_of(changelog.version(broken, "toy", 1))
    assert kept == files_of(workspaces["old"].raw("toy"))


@pytest.mark.parametrize("moment", range(1, MOMENTS + 1))
def test_an_update_that_is_killed_can_be_given_again(tmp_path: Path, sources: tuple[Path, Path], moment: int) -> None:
    workspaces = {name: empty_workspace(tmp_path / name) for name in ("whole", "broken")}
    for workspace in workspaces.values():
        place(workspace, sources[0], "toy", IngestConfig(), replace=False)
    whole, broken = workspaces["whole"], workspaces["broken"]
    update(whole, sources[1], "toy")
    assert ingest(broken, sources[1], moment, name="update").returncode == -9
    again = ingest(broken, sources[1], 0, name="update")
    assert again.returncode == 0, again.stderr
    settings = "data/toy/settings"
    states = [{k: v for k, v in state(own).items() if not k.startswith(settings)} for own in (whole, broken)]
    assert states[0] == states[1]
    assert [entry["what"] for entry in changelog.entries(broken, "toy")] == ["update"]


def test_the_moments_are_all_there_are(tmp_path: Path, sources: tuple[Path, Path]) -> None:
    whole = empty_workspace(tmp_path / "whole")
    assert ingest(whole, sources[1], 0).stdout.splitlines()[-1] == str(MOMENTS)


def test_a_file_that_has_changed_is_another_command(tmp_path: Path) -> None:
    workspace, source = empty_workspace(tmp_path / "project"), write_world(tmp_path / "world")
    assert ingest(workspace, source, MOMENTS - 1).returncode == -9
    os.utime(source / "trn.json", (1, 1))
    assert ingest(workspace, source, 0).returncode == 64


def failing(monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException) -> None:
    """Let a step after the exchange of the raw files raise, not the same step of the copy that is prepared."""
    install, declare = artifacts.install, ParamsFile.declare_dataset

    def installed(new: Path, folder: Path) -> None:
        if folder.name == step:
            raise error
        install(new, folder)

    def declared(params: ParamsFile, dataset: str, config: IngestConfig) -> None:
        if params.path.name == step and "ingest-" not in str(params.root):
            raise error
        declare(params, dataset, config)

    monkeypatch.setattr(artifacts, "install", installed)
    monkeypatch.setattr(ParamsFile, "declare_dataset", declared)


ERRORS = {
    "a full disk": storage_error("a full disk", Path("x")),
    "busy": BusyError("an edit", expected="none", do="wait"),
    "Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.parametrize("step", ["corpus", "params.yaml"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_replacement_that_fails_halfway_is_finished_by_the_next_command(
    tmp_path: Path, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, step: str, error: str
) -> None:
    """As after a kill. Otherwise a mixture of old and new files stays, and the same command calls it complete."""
    whole, broken = (empty_workspace(tmp_path / name) for name in ("whole", "broken"))
    given = IngestConfig(propensity="wikipedia")
    for own in (whole, broken):
        place(own, sources[0], "toy", IngestConfig(), replace=False)
    place(whole, sources[1], "toy", given, replace=True)
    with monkeypatch.context() as patch, pytest.raises(type(ERRORS[error])):
        failing(patch, step, ERRORS[error])
        place(broken, sources[1], "toy", given, replace=True)
    assert place(broken.swept(), sources[1], "toy", given, replace=True).skipped
    assert state(broken) == state(whole)
    assert [entry["what"] for entry in changelog.entries(broken, "toy")] == ["replace"]


def test_the_next_change_of_the_dataset_comes_after_the_one_that_failed(
    tmp_path: Path, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = empty_workspace(tmp_path / "project")
    place(workspace, sources[0], "toy", IngestConfig(), replace=False)
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        failing(patch, "corpus", ERRORS["a full disk"])
        place(workspace, sources[1], "toy", IngestConfig(), replace=True)
    update(workspace, sources[0], "toy")
    found = changelog.entries(workspace, "toy")
    assert [entry["what"] for entry in found] == ["replace", "update"]
    assert found[0]["corpus"]["after"] == found[1]["corpus"]["before"]


def test_a_change_that_cannot_be_finished_stops_who_changes_this_dataset_and_nobody_else(
    tmp_path: Path, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, said = empty_workspace(tmp_path / "project"), list[str]()
    place(workspace, sources[0], "toy", IngestConfig(), replace=False)
    with monkeypatch.context() as patch:
        patch.setattr(incoming, "report", said.append)
        failing(patch, "corpus", ERRORS["a full disk"])
        with pytest.raises(StorageError, match="for the rest of the change of toy") as refused:
            place(workspace, sources[1], "toy", IngestConfig(), replace=True)
        assert "untouched" not in refused.value.expected, "the raw files are the new ones"
        workspace.swept()
        (message,) = said
        assert message.startswith("warning: the change of toy that has begun cannot be finished: a full disk")
        with pytest.raises(StorageError):
            place(workspace, sources[1], "toy", IngestConfig(), replace=True)
    assert place(workspace, sources[1], "toy", IngestConfig(), replace=True).skipped


def test_nobody_deletes_what_another_command_finishes(tmp_path: Path, sources: tuple[Path, Path]) -> None:
    workspace = empty_workspace(tmp_path / "project")
    assert ingest(workspace, sources[1], 2).returncode == -9
    (left,) = workspace.state.glob("ingest-*")
    with incoming.change_lock(workspace, "toy"):  # as the command that finishes it does
        workspace.swept()
        assert left.is_dir()
    workspace.swept()
    assert not left.exists()
    assert workspace.params.datasets() == ["toy"]
