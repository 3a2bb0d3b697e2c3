"""Which test documents a replacement loses: by another split, and by a split by time, which moves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Xc
from tests.conftest import ToyWorld
from tests.data.worlds import empty_workspace, read_world
from xc_core.artifacts import read_made
from xc_core.chain import Workspace
from xc_core.cli.ingest import place
from xc_core.data.difference import Difference
from xc_core.data.ingest import IngestConfig
from xc_core.errors import RefusedError

NAME = ("--dataset", "new")


def timed_rows(count: int) -> list[str]:
    return [f"u{number},text {number},a,{number}" for number in range(count)]


def tables(folder: Path, **rows: list[str]) -> Path:
    folder.mkdir()
    for name, lines in rows.items():
        (folder / f"{name}.csv").write_text("\n".join(["uid,text,labels,time", *lines, ""]), "utf-8")
    return folder


def last_are_tests(workspace: Workspace) -> bool:
    return "last_are_tests" in read_made(workspace.folder("corpus", "new")).facts["split"]


def test_test_documents_of_a_table_of_their_own_are_lost_if_the_new_files_learn_from_them(
    xc: Xc, fresh: Workspace, tmp_path: Path
) -> None:
    """They may have been chosen by hand. The last rows of the only table are the test set then."""
    rows = timed_rows(100)
    folder = tables(tmp_path / "a", test=rows[::10], train=[row for row in rows if row not in rows[::10]])
    assert xc("ingest", folder, *NAME, "--split", "time").code == 0
    assert not last_are_tests(fresh)
    one = tables(tmp_path / "b", train=rows)
    ended = xc("ingest", one, *NAME, "--replace")
    assert (ended.code, "8 of the 10 test documents" in ended.err) == (77, True)
    assert xc("ingest", one, *NAME, "--replace", "--allow-loss", "0.8").code == 0
    assert last_are_tests(fresh)
    ended = xc("ingest", folder, *NAME, "--replace")
    assert (ended.code, "18 of the 20 test documents" in ended.err) == (77, True)


def test_a_test_document_by_time_may_become_one_of_validation(tmp_path: Path) -> None:
    """Of 100 rows the last fifth is 80 to 99; of 120 rows it is 96 to 119, and 86 to 95 are held out."""
    small, large = (
        read_world(tables(tmp_path / str(count), train=timed_rows(count)), split="time") for count in (100, 120)
    )
    assert set(large.uids(large.rows("validation"))) == {f"u{number}" for number in range(86, 96)}
    assert Difference.of(small, large).tests == {"before": 20, "lost": 0, "gone": 0}


def test_test_documents_that_are_gone_are_lost_also_with_another_split(tmp_path: Path) -> None:
    """Other settings of the split may move test documents; they take none out of the files."""
    workspace, world = empty_workspace(tmp_path / "project"), ToyWorld.make(documents=100, tests=20)
    place(workspace, world.write(tmp_path / "first"), "toy", IngestConfig(), replace=False)
    world.test = world.test[3:]
    fewer, other = world.write(tmp_path / "fewer"), IngestConfig(split="family")
    with pytest.raises(RefusedError, match=r"3 of the 20 test documents of toy \(15.0%\)"):
        place(workspace, fewer, "toy", other, replace=True)
    place(workspace, fewer, "toy", other, replace=True, allow_loss=0.15)
