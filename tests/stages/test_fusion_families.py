"""The fusion's own cross-fitting keeps families together; without families it takes every other document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xc_core.data.labels import LabelMatrix
from xc_core.fusion import FittedFusion, Fusion, Inputs, LightGBM, Objective, Sum, Tree, summed
from xc_core.infer.gathered import Candidates
from xc_core.shapes import F32, I32, I64, Bool, Shortlist
from xc_core.stages import fusion

N, K = 12, 5


def gathered() -> Candidates:
    rng = np.random.default_rng(0)
    ids_NK: I32 = np.tile(np.arange(K, dtype=np.int32), (N, 1))
    values_NKF: F32 = rng.random((N, K, 2)).astype(np.float32)
    positive_NK: Bool = np.arange(K)[None, :] == (np.arange(N) % K)[:, None]
    truth = LabelMatrix.from_pairs(np.arange(N), np.arange(N) % K, (N, K))
    return Candidates(ids_NK, values_NKF, positive_NK, np.ones((N, K), bool), truth)


def fitted_rows(families_N: I64, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], dict[str, Shortlist]]:
    """Return the rows of each fit of the comparison, and the rankings."""
    rows: list[list[int]] = []
    fit = Candidates.fit

    def spy(self: Candidates, rule: Any, inputs: Any, weights_L: Any, own: Any = slice(None), **_: Any) -> FittedFusion:
        rows.append(np.arange(N)[own].tolist())
        return fit(self, rule, inputs, weights_L, own)

    rule, inputs = Tree(), Inputs(("a", "b"), ("a", "b"))
    whole = gathered().fit(rule, inputs, np.ones(K))
    monkeypatch.setattr(Candidates, "fit", spy)
    ranked = fusion._rankings(rule, inputs, gathered(), np.ones(K), whole, families_N)
    return rows, ranked


def test_a_family_is_fitted_on_or_ranked_never_both(monkeypatch: pytest.MonkeyPatch) -> None:
    families_N = np.array([0, 1, 0, 2, 1, 3, 3, 3, 4, 0, 5, 4])
    (first, second), ranked = fitted_rows(families_N, monkeypatch)
    assert sorted(first + second) == list(range(N))
    assert not set(families_N[first]) & set(families_N[second])
    assert "fusion" in ranked


def test_a_document_is_ranked_by_the_rule_that_was_fitted_without_its_family() -> None:
    """Positives have the highest value, in one half of score a, in the other of score b: the two rules differ."""
    families_N, own = np.array([0, 1, 0, 2, 1, 3, 3, 3, 4, 0, 5, 4]), gathered()
    own.values_NKF[...] = np.random.default_rng(1).random((N, K, 2))
    own.values_NKF[np.arange(N), np.arange(N) % K, families_N % 2] = 9
    rule, inputs = Tree(min_leaf=1, weight=0.1), Inputs(("a", "b"), ("a", "b"))
    whole = own.fit(rule, inputs, np.ones(K))
    ranked = fusion._rankings(rule, inputs, own, np.ones(K), whole, families_N)["fusion"]
    for row in range(N):
        others = np.flatnonzero(families_N % 2 != families_N[row] % 2)
        expected = own.rank(own.fit(rule, inputs, np.ones(K), others), np.array([row]))
        seen = own.rank(own.fit(rule, inputs, np.ones(K), np.setdiff1d(np.arange(N), others)), np.array([row]))
        np.testing.assert_array_equal(ranked.scores_NK[row], expected.scores_NK[0])
        np.testing.assert_array_equal(ranked.ids_NK[row], expected.ids_NK[0])
        assert not np.array_equal(expected.scores_NK, seen.scores_NK), "a rule that has seen it would rank otherwise"


def test_documents_without_siblings_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = fitted_rows(np.arange(N), monkeypatch)
    assert sorted(rows) == [list(range(0, N, 2)), list(range(1, N, 2))]


def test_one_family_alone_cannot_be_cross_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, ranked = fitted_rows(np.zeros(N, np.int64), monkeypatch)
    assert rows == [] and "fusion" not in ranked


def test_a_rule_that_hands_its_fit_over_is_compared_all_the_same() -> None:
    """A rule of a plug-in may return the fit of another rule, here the sum, which learns nothing."""
    rule, inputs = Tree(min_leaf=1), Inputs(("a", "b"), ("a", "b"))
    given = summed(rule, inputs), np.arange(N)
    assert "fusion" in fusion._rankings(rule, inputs, gathered(), np.ones(K), *given)
    assert "fusion" not in fusion._rankings(Sum(), inputs, gathered(), np.ones(K), *given)


@pytest.mark.parametrize(
    ("rule", "shared"), [(LightGBM(), True), (LightGBM(objective=Objective.BINARY), False), (Tree(), False)]
)
def test_halves_get_one_level_if_the_rule_is_fitted_to_an_order(
    rule: Fusion, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[FittedFusion | None] = []
    monkeypatch.setattr(Candidates, "cross_fit", lambda *arguments: levels.append(arguments[-1]))
    inputs, own = Inputs(("a", "b"), ("a", "b")), gathered()
    whole = own.fit(Tree(), inputs, np.ones(K))
    fusion._rankings(rule, inputs, own, np.ones(K), whole, np.arange(N))
    assert levels == [whole if shared else None]
