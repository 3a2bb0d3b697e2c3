"""The setting classifier.refit may change after a training: held-out tables are then made, and used by the fusion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chain.toy import NAMES, downstream, folder_of, states_of, statuses
from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.chain import Workspace, run_stage
from xc_core.classifiers import LabelTables
from xc_core.scores import FittedScore, Scores

TRAINED_AGAIN = ["classifier", *(name for name in downstream("classifier") if name != "leaderboard")]
FOLDS = {False: ["final"], True: ["half-0", "half-1", "final"]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folds whose scores were opened."""
    names: list[str] = []
    fitted = Scores.fitted

    def recorded(self: Scores, fold: str = "final") -> dict[str, FittedScore]:
        names.append(fold)
        return fitted(self, fold)

    monkeypatch.setattr(Scores, "fitted", recorded)
    return names


def declare(workspace: Workspace, *, refit: bool) -> None:
    changes = {**TOY_CHANGES, "classifier": {**TOY_CHANGES["classifier"], "refit": refit}}
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)


def run(workspace: Workspace, *names: str) -> None:
    for name in names:
        assert not run_stage(workspace, name, "toy", "ngame").skipped


@pytest.mark.parametrize("refit", [True, False])
def test_refit_may_be_switched_after_a_training(refit: bool, tmp_path: Path, asked: list[str]) -> None:
    workspace = make_workspace(tmp_path)
    declare(workspace, refit=not refit)
    run(workspace, *NAMES)
    declare(workspace, refit=refit)
    assert states_of(workspace)["classifier"].why == "settings (refit) changed"
    assert [name for name, status in statuses(workspace).items() if status == "STALE"] == TRAINED_AGAIN

    run(workspace, "classifier", "scores")
    tables = LabelTables.open(folder_of(workspace, "classifier"))
    assert [fold.name for fold in tables.folds] == FOLDS[refit]
    assert [fold.name for fold in Scores.open(folder_of(workspace, "scores")).folds] == FOLDS[refit]
    asked.clear()
    run(workspace, "fusion")
    assert asked == (FOLDS[True][:2] if refit else ["final"]), "no score has seen what the fusion is fitted on"
    run(workspace, "evaluation", "audit", "model")
    assert set(statuses(workspace).values()) == {"FRESH"}
