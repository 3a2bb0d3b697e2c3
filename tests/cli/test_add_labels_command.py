"""``xc add-labels``: the files that it takes, what it prints, and its exit codes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bounded import bounded, scratch
from tests.cli.conftest import Xc, entry, offered
from tests.conftest import make_workspace
from tests.stages.halves import open_corpus
from xc_core.artifacts import read_made
from xc_core.chain import Workspace, run_stage
from xc_core.cli.champions import champion_recipe
from xc_core.data import label_file
from xc_core.data.checks import Allowed
from xc_core.data.formats import ReadOptions
from xc_core.data.label_file import read_labels
from xc_core.errors import DataError, UnavailableError
from xc_core.infer.champion import Champion
from xc_core.lifecycle.add_labels import Added


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", 'uid,text\nx,"one, two"\ny,three\n', ["one, two", "three"]),
        ("a.jsonl", '{"uid": "x", "title": "one"}\n{"uid": 4, "title": "two", "content": "b"}\n', ["one", "two b"]),
        ("a.ndjson", '{"uid": "x", "text": "one"}\n{"uid": "y", "text": "two"}\n', ["one", "two"]),
        ("a.csv", "text\none\n", "the columns 'text'"),
        ("a.csv", "uid,text\n", "no rows"),
        ("a.jsonl", '{"uid": "x", "text": null}\n', "an empty text"),
        ("a.jsonl", '{"uid": 0.5, "text": "x"}\n', "the uid 0.5"),
        ("a.jsonl", "[1]\n", "[1] instead of an object"),
        ("a.jsonl", '{"uid": "x", "text": "\\ud83d"}\n', "half of a surrogate pair"),
    ],
)
def test_files_of_labels(name: str, content: str, texts: Any, xc: Xc, tmp_path: Path,
                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    workspace = make_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    run_stage(workspace, "corpus", "toy")
    (tmp_path / name).write_text(content)
    ended = xc("add-labels", tmp_path / name, "--dataset", "toy")
    if isinstance(texts, str):
        ended.refused(65, texts)
        return
    assert ended.code == 0, ended.err
    counted, *following = ended.out.splitlines()
    assert counted.startswith("toy: 2 new labels, in no model")
    assert following[0] == "next: train again, or refresh (docs/runbook.md#refresh):"
    assert any("xc train --dataset toy --recipe ngame" in line for line in following[1:])
    corpus = open_corpus(workspace)
    assert corpus.texts_of("labels", np.arange(10, 12)) == texts


def grown_csv() -> Callable[[], None]:
    return grown("a.csv.gz")


def grown_lines() -> Callable[[], None]:
    return grown("a.jsonl.gz")


@pytest.mark.parametrize("prepare", [grown_csv, grown_lines])
def test_a_file_that_grows_when_it_is_decompressed_is_refused_before_it_is_in_memory(
    prepare: Callable[[], Callable[[], None]],
) -> None:
    bounded(prepare, megabytes=450)


def grown(name: str) -> Callable[[], None]:
    """Write 480 million characters in a file of about 2 MB, and return what reads it.

    A gzip file may have several parts; that of the texts, which are equal, is compressed once.
    """
    path, text = scratch() / name, gzip.compress(b"a" * 900_000, 1)
    before, after = ("{},", "\n") if "csv" in name else ('{{"uid": "{}", "text": "', '"}\n')
    with path.open("wb") as stream:
        stream.write(gzip.compress(b"uid,text\n" if "csv" in name else b""))
        for uid in range(530):
            stream.write(gzip.compress(before.format(uid).encode()) + text + gzip.compress(after.encode()))

    def read() -> None:
        with pytest.raises(DataError, match="or more\n  expected: at most 1,000,000 labels, and 67,108,864 bytes"):
            read_labels(path, ReadOptions(), Allowed())

    return read


def test_a_file_of_labels_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("uid,text\na,one\nb,two\n")
    monkeypatch.setattr(label_file, "MOST_LABELS", 1)
    with pytest.raises(DataError, match="2 labels of 8 characters, or more"):
        read_labels(path, ReadOptions(), Allowed())
    monkeypatch.setattr(label_file, "MOST_BYTES", 10)
    with pytest.raises(DataError, match=r"a\.csv: found 21 bytes"):
        read_labels(path, ReadOptions(), Allowed())


def test_the_command_names_its_models_and_xc_status_ends_with_0(
    xc: Xc, copied: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(copied.root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow writes it, in a test before
    new = tmp_path / "new.jsonl"
    new.write_text('{"uid": "N1", "text": "meadow grass"}\n{"uid": "N2", "text": "tunnel"}\n')
    ended = xc("add-labels", new, "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 0, ended.err
    assert "toy: 2 new labels, in ngame;" in ended.out
    following = "next: xc promote --dataset toy --recipe ngame, if one is to be served (ngame)"
    assert ended.out.splitlines()[1:] == [following]
    assert xc("status", "--dataset", "toy", "--recipe", "ngame").code == 0
    assert "N1" in xc("predict", "--dataset", "toy", "--recipe", "ngame", "meadow grass").out
    assert read_made(copied.folder("scores", "toy", "ngame")).facts["extended_from"]
    xc("add-labels", tmp_path / "none.txt", "--dataset", "toy").refused(66, "no file")


@pytest.mark.parametrize(
    ("served", "options", "advice"),
    [
        ("b", [], "{promote} b, so that the served model knows them"),
        ("c", [], "{train}, then {promote} c, so that the served model knows them"),
        ("b", ["--recipe", "a"],
         "xc add-labels FILE --dataset toy --recipe b, then {promote} b, so that the served model knows them"),
        ("gone", [], "xc train --dataset toy --recipe gone, then {promote} gone, so that the served model knows them"),
        ("", [], "{promote} NAME, if one is to be served (a, b)"),
        (None, [], "{promote} NAME, with the recipe that is served (a, b)"),
    ],
    ids=["extended", "left out", "not asked for", "deleted", "none", "unknown"],
)  # fmt: skip
def test_one_line_says_how_the_served_model_comes_to_know_them(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, served: str | None, options: list[str], advice: str
) -> None:
    """Each extended recipe had a line that promotes it; done in turn, the last one would have served."""
    for name in ("a", "b", "c"):
        fresh.params.declare_experiment("toy", name, "ngame", {})
    extended = options[1:] or ["a", "b"]
    monkeypatch.setattr("xc_core.lifecycle.add_labels.add_labels", lambda *_: Added(2, extended))
    monkeypatch.setattr("xc_core.cli.add_labels.champion_recipe", lambda *_: served)
    commands = {"promote": "xc promote --dataset toy --recipe", "train": fresh.params.train_command("toy", "c")}
    ended = xc("add-labels", "new.csv", "--dataset", "toy", *options)
    assert ended.out.splitlines()[1:] == ["next: " + advice.format(**commands)]


def test_the_recipe_of_the_champion_is_that_of_its_version_or_of_its_files(
    own: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own.folder("model", "toy", "ngame")

    def serves(answer: Any) -> str | None:
        offered(monkeypatch, "xc.champions", entry("a", answer))
        return champion_recipe(own, "toy")

    def down(*_: Any) -> None:
        raise UnavailableError("no answer", expected="one", do="wait")

    assert serves(lambda *_: None) == ""
    assert serves(down) is None
    assert serves(lambda *_: Champion("1", "", down, recipe="dpr")) == "dpr", "no file is copied for that"
    assert serves(lambda *_: Champion("1", "", lambda: folder)) == "ngame"
    assert serves(lambda *_: Champion("1", "", lambda: folder / "gone")) is None
    assert serves(lambda *_: Champion("1", "", down)) is None
