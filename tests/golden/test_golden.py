"""The whole chain on 360 real documents ends with the figures of the last time, and two runs end with the same bytes.

Golden figures are renewed, after a change that is meant to move them, by ``python -m tests.golden.compare``; the
difference of the two json files belongs into the same commit, with the reason.

Tolerances: counts are exact. Losses may differ by a thousandth of themselves (another instruction set moved them by
3e-6). A metric may differ by what one of the 60 test documents is worth in it, 100 times the largest numerator of a
document over the sum of all denominators (1.67 points of P@1, 0.33 of P@5): one near tie may fall the other way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.compare import PLAIN, assert_golden, corpus_of, golden, one_document
from tests.golden.wordnet_slice import run_chain
from xc_core.stages import STAGES, Workspace


@pytest.fixture(scope="module")
def first(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return run_chain(tmp_path_factory.mktemp("first"))


def test_the_chain_ends_with_the_golden_figures(first: Workspace) -> None:
    assert_golden(first, PLAIN)


def test_the_tolerance_is_what_one_of_sixty_documents_can_add(first: Workspace) -> None:
    """Every test document has one label, so one document is 1/60 of P@1, and 1/k of that in P@k."""
    worth = one_document(corpus_of(first))
    for name, parts in {"P_at_1": 60, "P_at_3": 180, "P_at_5": 300, "nDCG_at_5": 60, "R_at_10": 60}.items():
        assert worth[name] == pytest.approx(100 / parts), name
    assert max(worth.values()) < 2.5, "the rarest label weighs less than one and a half of the mean one"


def test_the_golden_figures_are_those_of_a_chain_that_learnt(first: Workspace) -> None:
    """Else a chain that does nothing could be golden: chance is 1 of the labels."""
    figures = golden(PLAIN)
    assert figures["metrics"]["P_at_1"] > 10 * 100 / figures["counts"]["labels"]
    assert figures["losses"]["encoder mean"] < 0.5 * figures["losses"]["encoder first"]


def test_two_runs_are_the_same_to_the_byte(first: Workspace, tmp_path: Path) -> None:
    """Metrics, and every artefact whose bytes hold no timings."""
    second = run_chain(tmp_path / "second")
    files = [workspace.folder("evaluation", "slice", "ngame") / "metrics.json" for workspace in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    for name in (name for name, stage in STAGES.items() if stage.versioned):
        one, two = (workspace.folder(name, "slice", "ngame") / "manifest.json" for workspace in (first, second))
        assert one.read_bytes() == two.read_bytes(), name
