"""Commands that change a dataset come one after the other: each replaces the version that it has read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_update_command import drop, row
from tests.conftest import ToyWorld, open_corpus
from tests.data.worlds import empty_workspace, files_of
from tests.lifecycle.test_add_labels import label_file
from xc_core.chain import Workspace, incoming
from xc_core.chain.incoming import change_lock, recover
from xc_core.cli.ingest import place
from xc_core.data.ingest import IngestConfig
from xc_core.errors import BusyError, MissingError
from xc_core.lifecycle import arrival
from xc_core.lifecycle.add_labels import add_labels
from xc_core.lifecycle.forget import forget
from xc_core.lifecycle.update import update

Change = Callable[[Workspace, Path], object]


def replaced(workspace: Workspace, folder: Path) -> object:
    world = ToyWorld.make(documents=110, tests=20).write(folder / "again")
    return place(workspace, world, "toy", IngestConfig(), replace=True, allow_loss=1.0)


CHANGES: dict[str, Change] = {
    "update": lambda workspace, folder: update(
        workspace, drop(folder / "new", [row("N1", "a new text", [0])], [("L3", "violins")]), "toy"
    ),
    "forget": lambda workspace, folder: forget(workspace, "toy", ["D0001"], []),
    "add-labels": lambda workspace, folder: add_labels(
        workspace, label_file(folder / "new.jsonl", [("N1", "meadow", "grass")]), "toy"
    ),
    "ingest": replaced,
}


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    workspace = empty_workspace(tmp_path / "project")
    begin = ToyWorld.make(documents=100, tests=20).write(tmp_path / "begin")
    place(workspace, begin, "toy", IngestConfig(), replace=False)
    return workspace


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_during_another_one_is_refused_and_nothing_changes(
    name: str, project: Workspace, tmp_path: Path
) -> None:
    before = files_of(project.data)
    with change_lock(project, "toy"), pytest.raises(BusyError, match="a change of the dataset toy"):
        CHANGES[name](project, tmp_path)
    assert files_of(project.data) == before
    CHANGES[name](project, tmp_path)
    assert files_of(project.data) != before


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_project_that_was_moved_leaves_nothing_at_its_old_place(
    name: str, project: Workspace, tmp_path: Path
) -> None:
    """It made the folders of the lock and of its scratch files there."""
    project.root.rename(tmp_path / "moved")
    with pytest.raises(MissingError):
        CHANGES[name](project, tmp_path)
    with pytest.raises(MissingError, match="which was moved or deleted since this command began"):
        change_lock(project, "toy")
    assert not project.root.exists()


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_can_be_forgotten_between_reading_and_replacing(
    name: str, project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    install = arrival.Arrival.install

    def late(self: arrival.Arrival, allow_loss: float | None) -> object:
        with pytest.raises(BusyError) as caught:
            forget(project, "toy", ["D0002"], [])
        refused.append(caught.value)
        return install(self, allow_loss)

    monkeypatch.setattr(arrival.Arrival, "install", late)
    CHANGES[name](project, tmp_path)
    assert len(refused) == 1
    assert "D0002" in open_corpus(project).table("documents")["uid"].to_list()
    monkeypatch.undo()
    forget(project, "toy", ["D0002"], [])
    assert "D0002" not in open_corpus(project).table("documents")["uid"].to_list()


def test_a_replacement_by_the_files_of_a_stopped_update_is_not_taken_for_it(
    project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is finished, then the replacement is made."""
    folder = ToyWorld.make(documents=110, tests=20).write(tmp_path / "again")
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(incoming, "forget", raising(KeyboardInterrupt()))
        update(project, folder, "toy")
    assert len(open_corpus(project).rows("test")) == 30
    place(project, folder, "toy", IngestConfig(), replace=True, allow_loss=1.0)
    assert len(open_corpus(project).rows("test")) == 20


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_folders_of_killed_changes_are_deleted_and_no_others(project: Workspace) -> None:
    """Those whose process runs stay, and those of another name."""
    names = ["ingest-4194305-killed", f"ingest-{os.getppid()}-runs", "ingest-notes"]  # Linux has no process 4194305
    for name in names:
        (project.state / name).mkdir(parents=True)
    recover(project)
    assert [(project.state / name).exists() for name in names] == [False, True, True]
