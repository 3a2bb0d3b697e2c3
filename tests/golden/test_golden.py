"""The whole chain on 360 real documents ends with the golden figures, and two runs end with the same bytes.

If a change is meant to change the figures, renew them with ``python -m tests.golden.compare``, and commit the
difference of the two json files together with the change and the reason.

Tolerances: counts are exact. A loss may differ by a thousandth (another instruction set changed losses by 3e-6). A
metric may differ by the most that one of the 60 test documents can add to it: 100 times the largest numerator of a
document over the sum of all denominators (1.67 points of P@1, 0.33 of P@5), because one near tie may end differently.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.compare import PLAIN, assert_golden, corpus_of, golden, one_document
from tests.golden.wordnet_slice import run_chain
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace


@pytest.fixture(scope="module")
def first(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return run_chain(tmp_path_factory.mktemp("first"))


def test_the_chain_ends_with_the_golden_figures(first: Workspace) -> None:
    assert_golden(first, PLAIN)


def test_the_tolerance_is_what_one_of_sixty_documents_can_add(first: Workspace) -> None:
    """Every test document has one label, so one document is 1/60 of P@1, and 1/k of that in P@k."""
    limits = one_document(corpus_of(first))
    for name, parts in {"P_at_1": 60, "P_at_3": 180, "P_at_5": 300, "nDCG_at_5": 60, "R_at_10": 60}.items():
        assert limits[name] == pytest.approx(100 / parts), name
    assert max(limits.values()) < 2.5, "the rarest label has less than one and a half times the mean weight"


def test_the_golden_figures_are_those_of_a_chain_that_learnt(first: Workspace) -> None:
    """Otherwise the figures of a chain that does nothing could be golden: chance is one of the labels."""
    figures = golden(PLAIN)
    assert figures["metrics"]["P_at_1"] > 10 * 100 / figures["counts"]["labels"]
    assert figures["losses"]["encoder mean"] < 0.5 * figures["losses"]["encoder first"]


def test_two_runs_are_the_same_to_the_byte(first: Workspace, tmp_path: Path) -> None:
    """Every artefact but the leaderboard, which holds timings: the hashes of all its files, and how it was made."""
    second = run_chain(tmp_path / "second")
    files = [workspace.folder("evaluation", "slice", "ngame") / "metrics.json" for workspace in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    for name in (name for name, stage in STAGES.items() if stage.versioned):
        for record in (manifests.MANIFEST, artifacts.MADE):
            one, two = (workspace.folder(name, "slice", "ngame") / record for workspace in (first, second))
            assert one.read_bytes() == two.read_bytes(), (name, record)
