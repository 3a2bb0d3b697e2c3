"""The stage fusion records the figures of what is served: at the default position of its dial."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.fusion.test_dial import world
from xc_core.chain.context import Context
from xc_core.fusion import Inputs, Sum, summed
from xc_core.metrics.ranking import per_document
from xc_core.recipes.settings import FusionSettings
from xc_core.shapes import Shortlist
from xc_core.stages.fusion import _with_dial


@pytest.mark.parametrize(("documents", "cost"), [(1500, 0.0), (1500, 1.0), (1500, 100.0), (2, 100.0)])
def test_the_figures_are_those_at_the_default_of_the_dial(documents: int, cost: float) -> None:
    ids, scores, truth, weights = world(documents)
    lines: list[str] = []
    build = SimpleNamespace(facts={})
    stub = SimpleNamespace(settings=FusionSettings(tail_cost=cost), build=build, report=lines.append)
    ranked = Shortlist.ranked(ids, scores)
    fusion = summed(Sum(), Inputs(("a",), ("a",)))
    served, shown = _with_dial(cast(Context[Any], stub), fusion, ranked, truth, weights)
    figures = per_document(shown, truth, weights).total()
    at_default = ranked
    if served.dial is not None:
        at_default = Shortlist.ranked(ranked.ids_NK, served.dial.turned(ranked.ids_NK, ranked.scores_NK, None))
    assert (served.dial is None) == (documents == 2)
    assert figures == pytest.approx(per_document(at_default, truth, weights).total())
    at_zero = per_document(ranked, truth, weights).total()
    if documents > 2 and cost:
        assert figures["PSP_at_5"] > at_zero["PSP_at_5"]
    else:
        assert figures == pytest.approx(at_zero)


@pytest.mark.parametrize("even", [False, True])
def test_a_dial_that_changes_nothing_is_reported_as_such(even: bool) -> None:
    ids, scores, truth, weights = world(400)
    lines: list[str] = []
    stub = SimpleNamespace(settings=FusionSettings(), build=SimpleNamespace(facts={}), report=lines.append)
    given = np.ones_like(weights) if even else weights  # labels of one weight keep their order
    fusion = summed(Sum(), Inputs(("a",), ("a",)))
    served, _ = _with_dial(cast(Context[Any], stub), fusion, Shortlist.ranked(ids, scores), truth, given)
    assert served.turns is not even
    (line,) = lines
    assert ("has no effect" in line) is even
    assert ("at positions of the dial" in line) is not even


def test_the_log_shows_the_figures_at_the_default_of_the_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the default is one of the positions that are otherwise left out."""
    ids, scores, truth, weights = world(400)
    lines: list[str] = []
    stub = SimpleNamespace(settings=FusionSettings(), build=SimpleNamespace(facts={}), report=lines.append)
    monkeypatch.setattr("xc_core.fusion.dial._default_tail", lambda *_: 0.1)
    fusion, ranked = summed(Sum(), Inputs(("a",), ("a",))), Shortlist.ranked(ids, scores)
    _, shown = _with_dial(cast(Context[Any], stub), fusion, ranked, truth, weights)
    figures = per_document(shown, truth, weights).total()
    assert f", 0.1: {figures['P_at_1']:.1f} / {figures['PSP_at_5']:.1f}, 0.2: " in lines[0]
    assert lines[0].endswith("; default 0.1")
