"""``xc add-labels``: the files that it takes, what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Xc
from tests.conftest import make_workspace
from tests.stages.halves import open_corpus
from xc_core.artifacts import read_made
from xc_core.chain import Workspace, run_stage


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", 'uid,text\nx,"one, two"\ny,three\n', ["one, two", "three"]),
        ("a.jsonl", '{"uid": "x", "text": "one"}\n{"uid": "y", "title": "two", "content": "b"}\n', ["one", "two b"]),
        ("a.csv", "text\none\n", "the columns 'text'"),
        ("a.csv", "uid,text\n", "no rows"),
        ("a.jsonl", '{"uid": "x"}\n', "neither title nor content"),
        ("a.jsonl", '{"uid": 3, "text": "x"}\n', "uid 3"),
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
    assert "toy: 2 new labels, in no model" in ended.out
    corpus = open_corpus(workspace)
    assert corpus.texts_of("labels", np.arange(10, 12)) == texts


def test_the_command_names_its_models_and_xc_status_ends_with_0(
    xc: Xc, copied: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(copied.root))
    new = tmp_path / "new.jsonl"
    new.write_text('{"uid": "N1", "text": "meadow grass"}\n{"uid": "N2", "text": "tunnel"}\n')
    ended = xc("add-labels", new, "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 0, ended.err
    assert "toy: 2 new labels, in ngame;" in ended.out
    assert xc("status", "--dataset", "toy", "--recipe", "ngame").code == 0
    assert "N1" in xc("predict", "--dataset", "toy", "--recipe", "ngame", "meadow grass").out
    assert read_made(copied.folder("scores", "toy", "ngame")).facts["extended_from"]
    xc("add-labels", tmp_path / "none.txt", "--dataset", "toy").refused(66, "no file")
