"""The stage fusion raises labels without train documents, unless documents new to the rule speak against it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from tests.stages.halves import run_until
from xc_core import artifacts
from xc_core.chain.context import Context
from xc_core.data.ingest import IngestConfig
from xc_core.data.labels import LabelMatrix
from xc_core.fusion import FittedFusion, Inputs, Tree
from xc_core.infer.gathered import Candidates, second_half
from xc_core.params import deep_merged
from xc_core.recipes.settings import FusionSettings
from xc_core.shapes import F32, Shortlist
from xc_core.stages.fusion import _raised, _rankings

N, K, NEW = 80, 6, 5
INPUTS = Inputs(("frequency", "a", "b"), ("a", "b"), counts="frequency")
RULE = Tree(weight=0, depth=4, min_leaf=2)
FAMILIES = np.arange(N)


def gathered(new_sum: float, count: float) -> Candidates:
    """Return documents whose right label has a high sum, and label NEW, which is never right, ``new_sum``."""
    random = np.random.default_rng(0)
    positive_NK = np.zeros((N, K), bool)
    positive_NK[np.arange(N), random.integers(0, NEW, N)] = True
    values_NKF: F32 = np.zeros((N, K, 3), np.float32)
    values_NKF[..., 0] = 3
    values_NKF[..., 1:] = random.random((N, K, 2)) + 0.5 * positive_NK[..., None]
    values_NKF[:, NEW] = [count, new_sum / 2, new_sum / 2]
    truth = LabelMatrix(np.arange(N + 1), np.nonzero(positive_NK)[1].astype(np.int32), K)
    ids_NK = np.tile(np.arange(K, dtype=np.int32), (N, 1))
    return Candidates(ids_NK, values_NKF, positive_NK, np.ones((N, K), bool), truth)


class Decided:
    """What the stage makes of these candidates."""

    def __init__(self, found: Candidates, tail_cost: float = 0.0) -> None:
        self.lines: list[str] = []
        self.facts: dict[str, Any] = {}
        build = SimpleNamespace(facts=self.facts)
        settings = FusionSettings(rule=RULE, new_by_sum=True, tail_cost=tail_cost)
        context = cast("Context[Any]", SimpleNamespace(settings=settings, build=build, report=self.lines.append))
        self.bare = found.fit(RULE, INPUTS, np.ones(K))
        self.ranked = _rankings(RULE, INPUTS, found, np.ones(K), self.bare, FAMILIES)
        self.fusion: FittedFusion
        self.after: dict[str, Shortlist]
        self.fusion, self.after = _raised(
            context, INPUTS, found, np.ones(K), self.bare, self.ranked, second_half(FAMILIES)
        )


def test_new_labels_are_raised_if_no_figure_is_clearly_worse() -> None:
    own = Decided(gathered(new_sum=1, count=0))
    assert own.fusion.by_sum is not None
    assert own.facts["new_by_sum"]["used"] is True
    (line,) = own.lines
    assert line.startswith("fusion: labels without train documents are raised by their plain sum: P@1 / P@5 / PSP@5 ")
    assert line.endswith("clearly worse by more than 0 (tail_cost) in none")
    assert (own.after["fusion"].scores_NK != own.ranked["fusion"].scores_NK).any(), "the comparison sees it too"
    assert all(own.after[name] is own.ranked[name] for name in ("a", "b", "sum"))


def test_new_labels_are_not_raised_if_a_figure_is_clearly_worse() -> None:
    """Label NEW has the highest sum of each document, and is never right."""
    own = Decided(gathered(new_sum=4, count=0))
    assert own.fusion is own.bare and own.after is own.ranked
    facts = own.facts["new_by_sum"]
    assert facts["used"] is False
    assert facts["raised"]["P_at_1"] + 30 < facts["rule"]["P_at_1"]
    (line,) = own.lines
    assert "are not raised" in line and line.endswith("clearly worse by more than 0 (tail_cost) in P_at_1")


def test_a_loss_within_the_cost_that_is_allowed_raises_them() -> None:
    found = gathered(new_sum=4, count=0)
    bare = Decided(found)
    figures = bare.facts["new_by_sum"]
    lost = max(figures["rule"][name] - figures["raised"][name] for name in figures["rule"])
    assert Decided(found, tail_cost=lost + 0.01).fusion.by_sum is not None
    assert Decided(found, tail_cost=lost - 0.01).fusion.by_sum is None


def test_nothing_changes_if_no_candidate_is_a_new_label() -> None:
    own = Decided(gathered(new_sum=1, count=1))
    assert own.fusion is own.bare and own.after is own.ranked
    assert (own.facts, own.lines) == ({}, [])


def test_each_half_is_raised_by_the_curve_of_the_other() -> None:
    found = gathered(new_sum=1, count=0)
    own, second_N = Decided(found), second_half(FAMILIES)
    for half_N in (second_N, ~second_N):
        rows = np.flatnonzero(half_N)
        fit = found.fit(RULE, INPUTS, np.ones(K), np.flatnonzero(~half_N), raises_new=True)
        np.testing.assert_array_equal(own.after["fusion"].scores_NK[rows], found.rank(fit, rows).scores_NK)


@pytest.mark.parametrize("new_by_sum", [True, False])
def test_a_label_without_documents_is_raised_in_the_artefact_if_the_setting_is_on(
    tmp_path: Path, new_by_sum: bool, lines: list[str]
) -> None:
    world = ToyWorld.make()
    world.labels.append({"uid": "new", "title": "new", "content": ""})
    workspace = make_workspace(tmp_path, world)
    workspace.params.declare_dataset("toy", IngestConfig(allow=("unseen-labels",)))
    fusion = {"new_by_sum": new_by_sum, "fallback": False, "candidates": len(world.labels)}
    workspace.params.declare_experiment("toy", "ngame", "ngame", deep_merged(TOY_CHANGES, {"fusion": fusion}))
    run_until(workspace, "fusion")
    folder = workspace.folder("fusion", "toy", "ngame")
    facts = artifacts.read_made(folder).facts
    assert (FittedFusion.open(folder).by_sum is not None) is new_by_sum
    assert any("labels without train documents are raised" in line for line in lines) is new_by_sum
    assert ("new_by_sum" in facts) is new_by_sum
    if new_by_sum:
        assert facts["new_by_sum"]["used"] is True
        assert facts["new_by_sum"]["raised"] == facts["validation"]["fusion"]
