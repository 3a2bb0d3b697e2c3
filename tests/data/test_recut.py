"""A corpus that is cut again by families has the same bytes as one that is read with this split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ToyWorld
from tests.data.test_cut import FRACTION, family_world, held
from tests.data.worlds import LAYOUTS, files_of, read_world, small_world, write_world
from xc_core import artifacts
from xc_core.data import recut as module
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.data.recut import is_enough, recut
from xc_core.errors import CorruptError, DataError


def cut_again(old: Corpus, **settings: Any) -> Path:
    """Return the folder of the corpus that is made of a corpus by uid."""
    folder = old.folder.with_name("again")
    with artifacts.building(folder, kind=Corpus.kind) as build:
        recut(old.folder, build, IngestConfig(split="family", **settings))
    return folder


@pytest.mark.parametrize("rows", [1, 50, 16_384])
@pytest.mark.parametrize("settings", [
    {"validation_fraction": FRACTION}, {"validation_fraction": 0.0}, {}, {"filters": "generate"},
    {"allow": ("shared-texts",), "fields": ("title",), "propensity": "amazon"},
])  # fmt: skip
def test_the_bytes_are_those_of_an_ingest(
    tmp_path: Path, rows: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", rows)
    folder = write_world(tmp_path / "world", world=family_world())
    old = read_world(folder, **settings)
    before = files_of(old.folder)
    again = cut_again(old, **settings)
    assert files_of(old.folder) == before
    whole = read_world(folder, split="family", **settings)
    assert files_of(again) == files_of(whole.folder)
    if settings.get("validation_fraction") == FRACTION:
        assert files_of(again)["documents.parquet"] != before["documents.parquet"], "or this test shows nothing"


@pytest.mark.parametrize(("settings", "split", "enough"), [
    ({}, {}, True),
    ({"split": "group"}, {}, False),
    ({"acceptance_fraction": 0.1}, {}, False),
    ({}, {"given": True}, False),
    ({}, {"families_named": True}, False),
])  # fmt: skip
def test_what_the_first_corpus_lacks_is_read_again(
    settings: dict[str, Any], split: dict[str, bool], enough: bool
) -> None:
    config = IngestConfig(**{"split": "family", **settings})
    assert is_enough(config, {"split": {"by": "uid", "given": False, **split}}) is enough


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_does_not_matter(tmp_path: Path, layout: str) -> None:
    folder = write_world(tmp_path / "world", layout)
    again = cut_again(read_world(folder))
    assert files_of(again) == files_of(read_world(folder, split="family").folder)


def one_family() -> ToyWorld:
    """Return a world whose train documents have the same words; the first of them is held out."""
    world = small_world(60)
    first = next(number for number in range(1_000) if held(f"u{number}", 0.1))
    for number, row in enumerate(world.train):
        row |= {"uid": f"u{first + number}", "title": f"the same words {'!' * number}"}
    return world


def test_no_train_document_may_be_all_that_is_left(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world", world=one_family())
    errors = []
    for make in (lambda: read_world(folder, split="family"), lambda: cut_again(read_world(folder))):
        with pytest.raises(DataError, match="0 train and 12 test") as error:
            make()
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_a_damaged_corpus_is_not_cut(tmp_path: Path) -> None:
    old = read_world(write_world(tmp_path / "world"))
    (old.folder / "pairs.parquet").write_bytes((old.folder / "pairs.parquet").read_bytes()[::-1])
    with pytest.raises(CorruptError):
        cut_again(old)
