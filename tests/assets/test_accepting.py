"""The acceptance set while rows are removed: none is drawn then, and no row is removed while one is drawn."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from assets.release import versions
from assets.release.accepting import acceptance
from assets.release.judge import Judge, acceptance_folder
from tests.cli.conftest import TOY, Xc, entry, offered
from tests.conftest import write_json
from xc_core.chain import Workspace
from xc_core.chain.workspace import at_rest
from xc_core.data import acceptance as acceptance_module
from xc_core.data.acceptance import AcceptanceSet
from xc_core.data.corpus import Corpus
from xc_core.errors import BusyError, RefusedError
from xc_core.infer import acceptance as measuring
from xc_core.lifecycle.forget import forget


@pytest.fixture
def project(own: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    offered(monkeypatch, "xc.commands", entry("acceptance", acceptance))
    return own


@pytest.mark.parametrize("option", ["first", "redraw", "given"])
def test_no_set_is_made_while_rows_are_removed(project: Workspace, xc: Xc, tmp_path: Path, option: str) -> None:
    (tmp_path / "own.jsonl").write_text('{"text": "castle0", "labels": ["L1"]}\n')
    options = {"first": (), "redraw": ("--redraw",), "given": ("--given", tmp_path / "own.jsonl")}[option]
    with at_rest(project, "toy"):
        xc("acceptance", *TOY, *options).refused(75, "a removal from the dataset toy, which process", "wait for it")
    assert not acceptance_folder(project, "toy").exists()
    assert xc("acceptance", *TOY, *options).code == 0


def test_the_gate_draws_no_set_while_rows_are_removed(project: Workspace) -> None:
    with at_rest(project, "toy"), pytest.raises(BusyError, match="a removal from the dataset toy"):
        Judge(project, "toy", "ngame")(None, None)
    assert not acceptance_folder(project, "toy").exists()


def test_without_a_corpus_the_command_that_makes_it_is_named(
    fresh: Workspace, xc: Xc, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, "xc.commands", entry("acceptance", acceptance))
    missing = "make it first: xc run corpus --dataset toy --force"
    xc("acceptance", *TOY).refused(66, str(fresh.folder("corpus", "toy")), missing)
    assert xc("run", "corpus", *TOY, "--force").code == 0
    assert xc("acceptance", *TOY).code == 0


@pytest.mark.parametrize("by", ["command", "gate"])
def test_no_row_is_removed_while_a_set_is_drawn(
    project: Workspace, xc: Xc, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    draw, drawn = acceptance_module.draw, []

    def meanwhile(corpus: Corpus, *given: Any) -> AcceptanceSet:
        uid = corpus.uids(corpus.rows("test"))[0]
        with pytest.raises(BusyError, match="the gate of the dataset toy, which process"):
            forget(project, "toy", [uid], [])
        drawn.append(uid)
        return draw(corpus, *given)

    monkeypatch.setattr(acceptance_module, "draw", meanwhile)
    if by == "command":
        assert xc("acceptance", *TOY).code == 0
    else:
        monkeypatch.setattr(Judge, "_compare", lambda *given: ([], None))
        Judge(project, "toy", "ngame")(None, None)
    found = forget(project, "toy", drawn, [])
    assert found.accepted == 1
    assert drawn[0] not in AcceptanceSet.open(acceptance_folder(project, "toy")).documents["uid"]


def test_no_row_is_removed_while_the_gate_writes_what_it_judges_on(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    today, busy = AcceptanceSet.today, []

    def meanwhile(own: AcceptanceSet, corpus: Corpus, folder: Path) -> AcceptanceSet:
        with pytest.raises(BusyError, match="the gate of the dataset toy, which process"):
            forget(project, "toy", [corpus.uids(corpus.rows("test"))[0]], [])
        busy.append(folder)
        return today(own, corpus, folder)

    monkeypatch.setattr(AcceptanceSet, "today", meanwhile)
    monkeypatch.setattr(Judge, "_compare", lambda *given: ([], None))
    Judge(project, "toy", "ngame")(None, None)
    assert len(busy) == 1


def test_texts_that_a_killed_gate_leaves_are_deleted_by_the_next_command(
    project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were in the folder of temporary files, which `xc forget` does not reach."""
    today, kept = AcceptanceSet.today, tmp_path / "kept"

    def killed(own: AcceptanceSet, corpus: Corpus, folder: Path) -> AcceptanceSet:
        found = today(own, corpus, folder)
        shutil.copytree(folder.parent, kept / folder.parent.name.replace(f".{os.getpid()}-", ".4194305-"))
        return found

    monkeypatch.setattr(AcceptanceSet, "today", killed)
    monkeypatch.setattr(Judge, "_compare", lambda *given: ([], None))
    Judge(project, "toy", "ngame")(None, None)
    (left,) = kept.iterdir()
    place = project.state / left.name
    left.rename(place)
    project.swept()
    assert not place.exists()


def test_without_a_document_to_judge_on_the_gate_names_both_reasons(project: Workspace) -> None:
    (line,), best = Judge(project, "toy", "ngame")._compare(None, None, cast(Any, []))
    assert (line.passed, best) == (False, None)
    assert "has a label" in line.found
    assert "do not train on" in line.found


def test_the_gate_measures_on_no_document_that_todays_models_train_on(
    project: Workspace, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, measured = project.open(Corpus, "toy"), list[str]()
    texts = [*corpus.texts_of("documents", corpus.rows("train")[:1]), "a castle that nobody has seen"]
    write_json(tmp_path / "own.jsonl", [{"text": text, "labels": ["L1"]} for text in texts])
    assert xc("acceptance", *TOY, "--given", tmp_path / "own.jsonl").code == 0

    def measure(_: Path, accepted: AcceptanceSet) -> None:
        measured.extend(accepted.texts)
        raise RefusedError("no answer", expected="labels", do="pack it again")

    monkeypatch.setattr(measuring, "measured", measure)
    monkeypatch.setattr(versions, "download", lambda version: tmp_path)
    verdict = Judge(project, "toy", "ngame")(SimpleNamespace(), None)
    assert measured == texts[1:]
    assert "1 left out (in train" in verdict.documents
