"""A fusion that is no better than one of its parts on documents it has not seen is replaced by that part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_corpus, run_until
from xc_core import artifacts, manifests
from xc_core.chain import Workspace, run_stage
from xc_core.fusion import FittedFusion, Sum, Tree
from xc_core.fusion.dial import fit_dial
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.ranking import PerDocument
from xc_core.params import deep_merged
from xc_core.recipes.settings import FusionSettings
from xc_core.stages import fusion as fusion_stage
from xc_core.stages.fusion import _replacement

USELESS = {"kind": "tree", "features": ["frequency"], "add": ["label_text", "classifier"], "weight": 0.0}
"""Ranks labels by their number of documents alone."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("fallback"))
    run_until(made, "scores")
    return made


def evaluated(workspace: Workspace, fusion: dict[str, Any]) -> tuple[FittedFusion, dict[str, Any], Evaluation]:
    changes = deep_merged(TOY_CHANGES, {"fusion": fusion})
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    for stage in ("fusion", "evaluation"):
        run_stage(workspace, stage, "toy", "ngame")
    folder = workspace.folder("fusion", "toy", "ngame")
    facts = artifacts.read_made(folder).facts
    return FittedFusion.open(folder), facts, Evaluation.open(workspace.folder("evaluation", "toy", "ngame"))


def test_a_rule_worse_than_its_parts_is_replaced_by_the_best(workspace: Workspace) -> None:
    fusion, facts, evaluation = evaluated(workspace, {"rule": USELESS})
    compared = facts["validation"]
    best = max((own["P_at_1"], name) for name, own in compared.items() if name != "fusion")[0]
    assert compared["fusion"]["P_at_1"] < best == compared[facts["served"]]["P_at_1"]
    assert fusion.tree is None
    ablation = evaluation.report["ablation"]
    assert {"label_text", "classifier", "sum", "fusion"} <= ablation.keys(), "the parts are still compared"
    assert ablation["fusion"] == ablation[facts["served"]]
    assert fusion.candidates == TOY_CHANGES["fusion"]["candidates"]
    assert evaluation.learnt.published == len(open_corpus(workspace).published_rows())
    assert evaluation.learnt.fitted
    pictures = manifests.pictures(workspace.folder("evaluation", "toy", "ngame"))
    assert {path.name for path in pictures} >= {"deciles.png", "training.png"}


def test_without_fallback_the_rule_is_kept(workspace: Workspace) -> None:
    fusion, facts, evaluation = evaluated(workspace, {"rule": USELESS, "fallback": False})
    assert facts["served"] == "fusion"
    assert fusion.tree is not None
    assert evaluation.report["ablation"]["fusion"] != evaluation.report["ablation"]["classifier"]


def test_a_rule_that_learns_nothing_has_a_dial_and_the_figures_of_it(workspace: Workspace) -> None:
    changes = deep_merged(TOY_CHANGES, {"fusion": {"rule": "sum"}})
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    facts = run_stage(workspace, "fusion", "toy", "ngame").facts
    served = next(one for one in facts["tail"]["curve"] if one["tail"] == facts["tail"]["default"])
    assert facts["figures"] == {name: served[name] for name in facts["validation"]["sum"]}
    assert FittedFusion.open(workspace.folder("fusion", "toy", "ngame")).dial is not None


def test_the_report_names_the_part(tmp_path: Path, lines: list[str], workspace: Workspace) -> None:
    facts = evaluated(workspace, {"rule": {**USELESS, "depth": 2}})[1]
    part, rule = (
        " / ".join(f"{facts['validation'][name][metric]:.1f}" for metric in ("P_at_1", "P_at_5", "PSP_at_5"))
        for name in (facts["served"], "fusion")
    )
    expected = f"fusion: {facts['served']} alone is better than the rule (P@1 / P@5 / PSP@5 {part} against {rule};"
    assert [line for line in lines if line.startswith(expected) and line.endswith("so it is used instead")]


def test_a_rule_that_no_other_document_can_test_is_replaced_by_the_sum(workspace: Workspace, lines: list[str]) -> None:
    """Trees fitted on one document know nothing; without the sum, their ranking would be arbitrary."""
    fusion, facts, evaluation = evaluated(workspace, {"rule": "lightgbm", "rows": 1})
    assert facts["documents"] == 1
    assert (facts["served"], fusion.tree) == ("sum", None)
    assert evaluation.report["ablation"]["fusion"] == evaluation.report["ablation"]["sum"]
    assert "fusion: too few validation documents to test the rule on, so sum is used instead" in lines


def test_a_dial_is_not_fitted_on_documents_that_the_rule_has_seen(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []
    monkeypatch.setattr("xc_core.stages.fusion.fit_dial", lambda short, *_: fitted.append(len(short)))
    evaluated(workspace, {"rule": "tree", "rows": 1, "fallback": False})
    assert fitted == []
    evaluated(workspace, {"rule": "tree", "rows": 2, "fallback": False})
    assert fitted == [2]


@pytest.mark.parametrize("fallback", [True, False])
def test_the_dial_is_fitted_on_documents_that_the_rule_has_not_seen(
    workspace: Workspace, fallback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the cross-fitted ranking of what is served; the rule fitted on all documents has learnt their labels."""
    rankings: list[dict[str, Any]] = []
    given: list[Any] = []
    ranked = fusion_stage._rankings
    monkeypatch.setattr(fusion_stage, "_rankings", lambda *own: rankings.append(ranked(*own)) or rankings[-1])
    monkeypatch.setattr(fusion_stage, "fit_dial", lambda *own: given.append(own[0]) or fit_dial(*own))
    facts = evaluated(workspace, {"rule": {**USELESS, "depth": 3}, "fallback": fallback})[1]
    assert (facts["served"] == "fusion") is not fallback
    assert given[0] is rankings[0][facts["served"]]


@pytest.mark.parametrize("reach", [0.0, 1.0])
def test_cross_fitted_figures_are_called_those_of_dial_0_if_the_dial_has_an_effect(
    workspace: Workspace, lines: list[str], monkeypatch: pytest.MonkeyPatch, reach: float
) -> None:
    monkeypatch.setattr("xc_core.fusion.dial.POWERS", (reach,))
    fusion = evaluated(workspace, {"rule": {**USELESS, "depth": 4 + int(reach)}})[0]
    assert fusion.turns is bool(reach)
    (line,) = [line for line in lines if "cross-fitted" in line]
    at_zero = ", the dial (tail) at 0" if reach else ""
    assert line.startswith(f"fusion: P@1 / PSP@5 on validation, cross-fitted{at_zero}: label_text ")


SETTINGS = FusionSettings(rule=Tree(features=("a",)))


def hits(p1: list[float], p5: list[float], psp5: list[float]) -> PerDocument:
    """Return figures of N documents, each as hits per document."""
    num = {
        name: np.array(own, float) for name, own in zip(("P_at_1", "P_at_5", "PSP_at_5"), (p1, p5, psp5), strict=True)
    }
    return PerDocument(num, {name: np.ones(len(own)) for name, own in num.items()})


def chosen(parts: dict[str, PerDocument]) -> str | None:
    return _replacement(SETTINGS, {name: own.total() for name, own in parts.items()}, parts)


def level(*values: float) -> PerDocument:
    """Return figures of one document, so that no difference is clear."""
    return hits(*([value / 100] for value in values))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"a": level(5, 5, 5)}, None),
        ({"a": level(5, 5, 4.9)}, None),
        ({"a": level(4.9, 9, 9)}, None),
        ({"a": level(6, 4.9, 9)}, None),
        ({"a": level(5, 6, 6), "b": level(5.1, 5, 5)}, "b"),
        ({"a": level(5, 5, 5.1)}, "a"),
        ({"a": level(5, 5 + 1e-14, 5)}, None),  # the same hits, summed in another order
        ({"a": level(5, 5 - 1e-14, 5.1)}, "a"),
        ({}, None),
    ],
)
def test_a_part_must_be_better_in_one_figure_and_worse_in_none(
    parts: dict[str, PerDocument], expected: str | None
) -> None:
    assert chosen({**parts, "fusion": level(5, 5, 5)}) == expected


ALL, FEW, NONE = [1.0] * 100, [1.0] * 60 + [0.0] * 40, [0.0] * 100
LESS = [1.0] * 58 + [0.0] * 42
"""Of 100 documents; the difference of ALL and FEW is clear, that of FEW and LESS is not."""


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (hits(ALL, FEW, LESS), "a"),
        (hits(FEW, ALL, LESS), "a"),
        (hits(LESS, FEW, ALL), None),  # the dial gives more PSP@5
        (hits(ALL, FEW, NONE), None),
        (hits(ALL, NONE, FEW), None),
        (hits(NONE, ALL, FEW), None),
        (hits(FEW, FEW, LESS), None),
    ],
)
def test_a_part_that_is_clearly_better_need_not_be_better_by_every_figure(
    part: PerDocument, expected: str | None
) -> None:
    """By paired intervals: a rule with six points less P@1 is not kept for a tenth of a point of PSP@5."""
    assert chosen({"a": part, "fusion": hits(FEW, FEW, FEW)}) == expected


def test_of_parts_that_are_better_the_best_by_precision_replaces_the_rule() -> None:
    slightly = hits(FEW, FEW, [1.0] * 61 + [0.0] * 39)
    assert chosen({"a": slightly, "b": hits(ALL, ALL, LESS), "fusion": hits(FEW, FEW, FEW)}) == "b"


@pytest.mark.parametrize(
    ("first", "second"), [((6, 7, 9), (6 - 1e-14, 8, 7)), ((6, 8 + 1e-14, 7), (6, 8, 9)), ((6, 8, 9), (6, 8, 9))]
)
def test_of_parts_with_the_same_p_at_1_the_best_by_p_at_5_and_then_by_psp_at_5_replaces_the_rule(
    first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    expected = "a" if first == second else "b"
    assert chosen({"a": level(*first), "b": level(*second), "fusion": level(5, 5, 5)}) == expected


def test_a_rule_without_parameters_is_never_replaced() -> None:
    parts = {"a": level(1, 1, 1), "fusion": level(0, 0, 0)}
    compared = {name: own.total() for name, own in parts.items()}
    assert _replacement(replace(SETTINGS, rule=Sum()), compared, parts) is None
