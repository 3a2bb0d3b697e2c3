"""``xc forget``: what it prints. tests/cli/test_forget_command.py says what it removes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TOY, Xc
from xc_core.chain import Workspace
from xc_core.lifecycle.forget import Forgotten
from xc_core.lifecycle.places import Place

LITTLE = Forgotten(
    documents=[], labels=["L1"], deleted=[], accepted=0, copies=[], recipes=[], unrecorded=0, elsewhere=[]
)  # fmt: skip
MUCH = Forgotten(
    documents=["D1", "D2"], labels=[], deleted=[Path("data/toy/tokens"), Path(".xc/tune/toy")], accepted=1,
    copies=["C1", "C2", "C3", "C4"], recipes=["ngame"], unrecorded=3,
    elsewhere=[Place("the registry", "delete its versions", ("xc one", "xc two")), Place("a backup", "ask for it")],
)  # fmt: skip


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command asked for; the next answer is its last element."""
    calls: list[Any] = []

    def forget(workspace: Workspace, dataset: str, documents: Any, labels: Any, *, with_documents: bool) -> Forgotten:
        answer: Forgotten = calls.pop()
        calls.append((dataset, documents, labels, with_documents))
        return answer

    monkeypatch.setattr("xc_core.cli.forget.forget", forget)
    return calls


def test_what_is_asked_for_is_forgotten(xc: Xc, fresh: Workspace, done: list[Any]) -> None:
    done.append(LITTLE)
    documents = ("--document", "D1", "--document", "D2")
    assert xc("forget", *TOY, *documents, "--label", "L1").code == 0
    done.append(LITTLE)
    ended = xc("forget", *TOY, "--label", "L1", "--label", "L2", "--with-documents")
    assert ended.out == "toy: forgot 0 documents and 1 label\n"
    assert done == [("toy", ["D1", "D2"], ["L1"], False), ("toy", [], ["L1", "L2"], True)]


def test_all_that_was_removed_and_all_that_is_left_to_do_is_printed(xc: Xc, fresh: Workspace, done: list[Any]) -> None:
    done.append(MUCH)
    assert xc("forget", *TOY, "--document", "D1").out.splitlines() == [
        "toy: forgot 2 documents and 0 labels",
        "acceptance set: 1 document removed",
        "not forgotten, though the text is the same: 4 documents (C1, C2, C3, ...)",
        "deleted, because it was made of them:",
        "  .xc/tune/toy",
        "  data/toy/tokens",
        "dvc.lock: 3 stages removed; commit the file if git has it",
        "train again:",
        f"  {fresh.params.train_command('toy', 'ngame')}",
        "may still hold them:",
        "  the registry: delete its versions",
        "    xc one",
        "    xc two",
        "  a backup: ask for it",
    ]
    done.append(replace(MUCH, copies=["C1", "C2", "C3"]))
    assert "the text is the same: 3 documents (C1, C2, C3)\n" in xc("forget", *TOY, "--document", "D1").out
