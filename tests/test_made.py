"""``made.json``: how an artefact was made travels with it, and is not part of its content."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.artefacts import put
from xc_core import artifacts, manifests
from xc_core.artifacts import MADE, Made, read_made

MADE_OF = Made("f" * 64, {"settings": "a", "corpus": "b"}, {"epochs": 3}, True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "thing"


def build(folder: Path, origin: Made = MADE_OF, **facts: object) -> manifests.Manifest:
    """Build an artefact of always the same content."""
    with artifacts.building(folder, kind="thing") as made:
        (made.path / "a.txt").write_text("same")
        made.origin = origin
        made.facts |= facts
    return artifacts.verify(folder, kind="thing")


def test_origin_and_facts_come_back(folder: Path) -> None:
    build(folder, rows=7)
    assert read_made(folder) == dataclasses.replace(MADE_OF, facts={"rows": 7})


def test_how_an_artefact_was_made_does_not_change_its_digest(tmp_path: Path) -> None:
    one = build(tmp_path / "one", rows=7)
    other = build(tmp_path / "other", Made("e" * 64), rows=8)
    assert one.digest() == other.digest()
    assert one == other
    assert read_made(tmp_path / "one") != read_made(tmp_path / "other")


def test_the_manifest_lists_content_only(folder: Path) -> None:
    manifest = build(folder, rows=7)
    assert list(manifest.files) == ["a.txt"]
    assert set(json.loads((folder / manifests.MANIFEST).read_text())) == {"kind", "format", "files", "digest"}
    assert manifest.bytes == 4


def test_an_artefact_is_whole_without_its_record(folder: Path) -> None:
    build(folder)
    (folder / MADE).unlink()
    artifacts.verify(folder, kind="thing")
    assert read_made(folder) == Made()


def test_not_a_number_and_infinity_become_null(folder: Path) -> None:
    with artifacts.building(folder, kind="thing") as made:
        made.facts |= {"loss": float("nan"), "inner": [1.5, float("inf")]}
        made.json("x.json", {"y": (float("-inf"), 2)})
    assert read_made(folder).facts == {"loss": None, "inner": [1.5, None]}
    assert json.loads((folder / "x.json").read_text()) == {"y": [None, 2]}


def record_with(**changes: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text(""),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text("[1]"),
        lambda path: path.write_text("{}"),
        record_with(facts=None),
        record_with(facts=["rows"]),
        record_with(depends="abc"),
    ],
    ids=["absent", "empty", "not UTF-8", "a list", "no fields", "facts null", "facts a list", "depends a string"],
)
def test_a_record_that_cannot_be_read_is_an_empty_one(folder: Path, damage: Callable[[Path], object]) -> None:
    """An empty record has no fingerprint, so the artefact counts as out of date."""
    build(folder, rows=7)
    damage(folder / MADE)
    assert read_made(folder) == Made()
    assert read_made(folder).fingerprint == ""


def test_there_is_no_record_without_an_artefact(tmp_path: Path) -> None:
    assert read_made(tmp_path / "absent") == Made()


def test_the_record_is_replaced_with_the_artefact(folder: Path) -> None:
    put(folder, "old")
    put(folder, "new")
    assert read_made(folder).facts == {"text": "new"}


def test_pictures_are_the_plots_that_the_manifest_lists(folder: Path) -> None:
    with artifacts.building(folder, kind="thing") as made:
        for name in ("loss.png", "report.json", "deciles.png"):
            (made.path / name).write_text(name)
    (folder / "later.png").write_text("not listed")
    assert manifests.pictures(folder) == [folder / "deciles.png", folder / "loss.png"]
