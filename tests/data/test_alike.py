"""Labels whose texts a reader cannot tell apart are counted, and reported by the stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ToyWorld
from tests.data.worlds import empty_workspace, read_world
from xc_core.chain import run_stage
from xc_core.data.alike import alike_labels, codes
from xc_core.data.ingest import IngestConfig

COMPOSED, DECOMPOSED = "Caf\u00e9  table", "cafe\u0301 TABLE "


def world(folder: Path, *titles: tuple[str, str]) -> Path:
    """Write a toy world whose first labels have these titles and contents."""
    made = ToyWorld.make(60, 12)
    for row, (title, content) in zip(made.labels, titles, strict=False):
        row |= {"title": title, "content": content}
    return made.write(folder)


def test_no_label_of_the_toy_world_is_like_another(tmp_path: Path) -> None:
    assert alike_labels(read_world(world(tmp_path / "raw"))) == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("one text", ""), ("one text", "")),
        ((COMPOSED, ""), (DECOMPOSED, "")),
        (("one text", ""), ("one", "Text")),
        (("ﬁnal ２", ""), ("final 2", "")),
        (("\u210cello", ""), ("hello", "")),
    ],
    ids=["equal", "case, accent and white space", "title and content", "ligature and width", "letter of mathematics"],
)
def test_labels_of_equal_text_are_found(first: tuple[str, str], second: tuple[str, str], tmp_path: Path) -> None:
    corpus = read_world(world(tmp_path / "raw", first, ("another", ""), second))
    uids = corpus.table("labels")["uid"].to_list()
    assert alike_labels(corpus) == {"labels": 2, "first": [uids[0], uids[2]]}


def test_the_two_that_are_named_share_a_text(tmp_path: Path) -> None:
    corpus = read_world(world(tmp_path / "raw", ("a x", ""), ("b x", ""), ("A x", ""), ("B x", "")))
    uids, found = corpus.table("labels")["uid"].to_list(), alike_labels(corpus)
    assert found["labels"] == 4
    assert found["first"] in ([uids[0], uids[2]], [uids[1], uids[3]])


def test_accents_count_and_empty_texts_do_not(tmp_path: Path) -> None:
    raw = world(tmp_path / "raw", (COMPOSED, ""), ("cafe table", ""), ("", ""), ("", ""))
    assert alike_labels(read_world(raw, allow=("empty-text",))) == {}


def test_only_the_columns_that_form_a_text_are_compared(tmp_path: Path) -> None:
    raw = world(tmp_path / "raw", ("same", "one"), ("same", "two"))
    assert alike_labels(read_world(raw)) == {}
    (tmp_path / "titles").mkdir()
    raw.rename(tmp_path / "titles/raw")
    assert alike_labels(read_world(tmp_path / "titles/raw", fields=("title",)))["labels"] == 2


def test_the_stage_reports_them(tmp_path: Path, lines: list[str]) -> None:
    workspace = empty_workspace(tmp_path)
    workspace.params.declare_dataset("toy", IngestConfig())
    world(workspace.raw("toy"), (COMPOSED, ""), (DECOMPOSED, ""))
    facts = run_stage(workspace, "corpus", "toy").facts
    (line,) = [line for line in lines if "same text" in line]
    assert facts["alike_labels"]["labels"] == 2
    assert line.startswith("corpus: 2 labels have the same text as another one, but for case, Unicode form")
    assert f"(the first: {' and '.join(facts['alike_labels']['first'])})" in line


def test_labels_whose_texts_are_codes_are_counted(tmp_path: Path) -> None:
    assert codes(read_world(world(tmp_path / "words"))) == 0
    assert (
        codes(read_world(world(tmp_path / "raw", ("17", ""), ("4.2-1", ""), ("C17", ""), ("历史", ""), ("1", "a"))))
        == 2
    )


@pytest.mark.parametrize(("titles", "reported"), [(5, False), (6, True)])
def test_the_stage_reports_labels_of_which_most_are_codes(
    tmp_path: Path, lines: list[str], titles: int, reported: bool
) -> None:
    workspace = empty_workspace(tmp_path / "project")
    workspace.params.declare_dataset("toy", IngestConfig())
    world(workspace.raw("toy"), *[(str(number), "") for number in range(titles)])
    run_stage(workspace, "corpus", "toy")
    said = f"corpus: {titles} of 10 label texts have no letter, so scores of label texts are of little use"
    assert any(line.startswith(said) for line in lines) == reported
