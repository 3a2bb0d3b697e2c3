"""Labels are matched by uid with those of an earlier training; too many new texts mean that the uids have moved."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.conftest import TOPICS, ToyWorld, make_workspace
from xc_core.chain import run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.names import old_places, row_labels
from xc_core.errors import MovedError


def frame(**texts: str) -> pl.DataFrame:
    return pl.DataFrame({"uid": [*texts], "text": [*texts.values()]})


def test_labels_are_matched_by_uid_and_new_ones_have_no_place() -> None:
    then = frame(a="1", b="2", c="3")
    assert old_places(frame(c="3", d="4", a="1"), then, do="").to_list() == [2, None, 0]
    assert old_places(then, then, do="").to_list() == [0, 1, 2]
    assert old_places(frame(x="1", y="2"), then, do="").to_list() == [None, None]


@pytest.mark.parametrize("edited", [0, 1, 2, 3, 10])
def test_at_most_a_fifth_of_the_texts_may_have_been_edited(edited: int) -> None:
    then = frame(**{f"L{i}": str(i) for i in range(10)})
    now = frame(**{f"L{i}": f"{i}{'!' if i < edited else ''}" for i in range(10)}, new="new")
    if edited <= 2:
        assert old_places(now, then, do="").to_list() == [*range(10), None]
        return
    with pytest.raises(MovedError, match=f"{edited} of 10 labels with another text .*\n.*\n.*give labels uids"):
        old_places(now, then, do="give labels uids")


def test_a_name_is_the_uid_and_a_hash_of_the_text(tmp_path: Path, toy: ToyWorld) -> None:
    names = []
    for number, content in enumerate((toy.labels[0]["content"], toy.labels[0]["content"], "other")):
        toy.labels[0]["content"] = content
        workspace = make_workspace(tmp_path / str(number), toy)
        run_stage(workspace, "corpus", "toy")
        names.append(row_labels(Corpus.open(workspace.folder("corpus", "toy"))))
    assert names[0]["uid"].to_list() == [f"L{i}" for i in range(len(TOPICS))]
    assert names[0].equals(names[1])
    assert (names[0]["text"] != names[2]["text"]).to_list() == [True] + [False] * 9
