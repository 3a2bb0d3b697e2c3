"""``xc run``, ``xc evaluate`` and ``xc leaderboard``."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import NGAME, TOY, Xc
from xc_core.chain import Workspace
from xc_core.chain.costs import read_costs
from xc_core.locks import locked


def test_run_says_what_it_did_and_that_all_is_up_to_date(xc: Xc, fresh: Workspace) -> None:
    folder = fresh.folder("corpus", "toy")
    said = [xc("run", "corpus", *TOY, *more).out for more in ([], [], ["--force"])]
    assert [re.sub(r"\d+\.\d s", "S", line) for line in said] == [
        f"corpus: done in S, {folder}\n", f"corpus: up to date, {folder}\n", f"corpus: done in S, {folder}\n",
    ]  # fmt: skip


def test_a_second_run_of_the_same_stage_is_refused(xc: Xc, fresh: Workspace) -> None:
    with locked(fresh.scratch("lock", "corpus", "toy", None), "corpus of toy"):
        xc("run", "corpus", *TOY).refused(75, "corpus of toy, which process", "wait for it to end")
    assert xc("run", "corpus", *TOY).code == 0


def test_evaluate_prints_the_metrics_of_every_score(xc: Xc, ready: Workspace) -> None:
    metrics = json.loads((ready.folder("evaluation", "toy", "ngame") / "metrics.json").read_text())
    lines = xc("evaluate", *NGAME).out.splitlines()
    assert lines[1].split() == ["P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "candidates", "of"]
    ends = [[cell.end() for cell in re.finditer(r"\S+", line[12:])][:8] for line in lines[1:8]]
    assert ends == [ends[0]] * 7, "columns are aligned"
    rows = {line[:12].strip(): line[12:].split() for line in lines[2:8]}
    names = [line.partition(":")[0] for line in lines[8:]]
    assert names == ["encoder", "classifier", "fusion", "probability"], "what each learnt from, then the probabilities"
    assert re.search(r"\d labels per document at a probability of 0\.5 or more; calibration error \d", lines[11])
    seconds = read_costs(ready, "encoder", "toy", "ngame")["train_seconds"]
    assert lines[8].endswith(f", {seconds:.0f} s")
    assert set(rows) == {"label_text", "classifier", "sum", "fusion", "95 % from", "to"}
    assert rows["fusion"][0] == f"{metrics['P_at_1']:.2f}"
    assert rows["fusion"][6] == f"{metrics['PSP_at_5']:.2f}"


@pytest.mark.parametrize("command", [("evaluate", *NGAME), ("evaluate", *TOY), ("leaderboard", *TOY)])
def test_force_rebuilds_what_is_shown(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("xc_core.cli.run.run_stage", lambda *place, force: asked.append((*place[1:], force)))
    assert [xc(*command, *more).code for more in ([], ["--force"])] == [0, 0]
    place = ("evaluation", "toy", "ngame") if command[0] == "evaluate" else ("leaderboard", "toy")
    assert asked == [(*place, False), (*place, True)]


def test_leaderboard_prints_one_row_a_recipe(xc: Xc, ready: Workspace) -> None:
    ended = xc("leaderboard", *TOY)
    assert ended.code == 0, ended.err
    table = [line for line in ended.out.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in table[0].split("|")[1:4]] == ["recipe", "P@1", "P@3"]
    rows = {cells[0] for line in table if (cells := [cell.strip() for cell in line.strip("|").split("|")])}
    assert {name for name in rows if name != "recipe" and not name.startswith("---")} == {"ngame"}
