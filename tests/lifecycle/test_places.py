"""The places of other packages: one that fails is named, because all is deleted by then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import entry, offered
from xc_core.chain import Workspace
from xc_core.chain.names import ACCEPTANCE
from xc_core.lifecycle.places import GROUP, Place, places


def fails(workspace: Workspace, dataset: str) -> list[Place]:
    raise RuntimeError("no server\nsecond line")


def missing(self: Any) -> Any:
    raise ModuleNotFoundError("No module named 'gone'")


def lines(found: list[Place]) -> list[str]:
    return [f"{place.name}: {place.do}" for place in found]


def test_an_entry_that_fails_becomes_a_place_and_the_others_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = entry("late", fails)
    packaged.dist = type("Distribution", (), {"name": "their-package"})()
    unloadable = type("Entry", (), {"name": "gone", "dist": None, "load": missing})()
    works = entry("works", lambda workspace, dataset: [Place("a shelf", "look there")])
    offered(monkeypatch, GROUP, packaged, unloadable, works)
    assert lines(places(Workspace(tmp_path), "toy")) == [
        "the places that the package their-package knows: "
        "they could not be listed (RuntimeError: no server); look there yourself",
        "the places that the package gone knows: "
        "they could not be listed (ModuleNotFoundError: No module named 'gone'); look there yourself",
        "a shelf: look there",
    ]


def test_an_acceptance_set_that_cannot_be_read_is_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, GROUP)
    workspace = Workspace(tmp_path)
    folder = workspace.data / "toy" / ACCEPTANCE
    folder.mkdir(parents=True)
    (place,) = places(workspace, "toy")
    assert (place.name, place.do.endswith(f"; delete {folder}")) == ("the acceptance set", True)


def test_a_folder_of_a_command_of_another_user_is_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If that command was killed, only its user can delete what it had copied of the dataset."""
    offered(monkeypatch, GROUP)
    workspace = Workspace(tmp_path)
    names = ("ingest-12-theirs", "ingest-13-ours", "ingest", "ingest-notes")
    folders = [workspace.state / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: path == folders[1])
    assert [place.name.partition(",")[0] for place in places(workspace, "toy")] == [str(folders[0])]
