"""Derived features against a slow twin, candidate by candidate; holes and other documents change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.fusion import Boosted, FittedFusion, Inputs, LightGBM, Pairs
from xc_core.fusion import derived as module
from xc_core.fusion.derived import derived
from xc_core.shapes import F32, PAD_ID, Bool

NAMES = ("label_text", "classifier", "words")


def world(documents: int = 40, seed: int = 0) -> tuple[F32, Bool]:
    """Return values with many ties, and candidates with holes anywhere; one document has one, another none."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(documents, 12, 3)).round(1)
    values[..., 2] = np.maximum(values[..., 2], 0)
    found = random.random((documents, 12)) < 0.7
    found[1], found[1, 4], found[2] = False, True, False
    return values.astype(np.float32), found


def naive(values: F32, found: Bool) -> list[list[float]]:
    """Return the features of each found candidate, one after another."""
    out = []
    for own, there in zip(values.astype(float), found, strict=True):
        columns = [own[there, score] for score in range(own.shape[1])]
        firsts = {at for column in columns for at in np.flatnonzero(column == column.max(initial=-np.inf))}
        for at in range(int(there.sum())):
            ranks = [int((column > column[at]).sum()) for column in columns]
            spreads = [float(np.sqrt(((column - column.mean()) ** 2).mean())) for column in columns]
            tops = [np.sort(column)[::-1] for column in columns]
            row = [float(column[at]) for column in columns] + ranks
            row += [float(column[at] - column.max()) for column in columns]
            row += [
                float((column[at] - column.mean()) / spread) if spread else 0.0
                for column, spread in zip(columns, spreads, strict=True)
            ]
            row += [float(top[0]) for top in tops] + spreads
            row += [float(top[0] - top[1]) if len(top) > 1 else 0.0 for top in tops]
            row += [len(columns[0]), len(firsts), float(np.mean([1 / (1 + rank) for rank in ranks]))]
            out.append([*row, sum(rank < 1 for rank in ranks), sum(rank < 5 for rank in ranks)])
    return out


def test_each_feature_is_that_of_the_slow_twin() -> None:
    values, found = world()
    features = derived(values, found)
    assert features.shape == (found.sum(), 7 * len(NAMES) + 5)
    np.testing.assert_allclose(features, naive(values, found), atol=2e-6)


def test_values_of_holes_change_nothing() -> None:
    values, found = world()
    spoilt = np.where(found[..., None], values, np.float32(1e6))
    np.testing.assert_array_equal(derived(spoilt, found), derived(values, found))
    assert not np.array_equal(derived(spoilt, np.ones_like(found))[found.ravel()], derived(values, found))


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_a_document_has_the_same_features_alone_and_among_others(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values, found = world()
    whole = derived(values, found)
    monkeypatch.setattr(module, "_DOCS_AT_ONCE", block)
    np.testing.assert_array_equal(derived(values, found), whole)
    alone = [derived(values[i : i + 1, found[i]], np.ones((1, found[i].sum()), bool)) for i in range(len(values))]
    np.testing.assert_array_equal(np.concatenate(alone), whole)


def test_no_documents_have_no_features() -> None:
    values, found = world()
    assert derived(values[:0], found[:0]).shape == (0, 26)


@pytest.mark.parametrize("rule", [LightGBM(rounds=5, min_leaf=2, derived=True), Boosted(rounds=3, min_leaf=2)])
def test_the_fit_and_the_served_model_see_the_same_features(
    rule: LightGBM | Boosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, found = world(80)
    target = (np.random.default_rng(1).random(found.shape) < 0.3).astype(np.float32)
    seen: list[F32] = []
    features_of = FittedFusion.features_of

    def spy(fusion: FittedFusion, values_NKF: F32, found_NK: Bool) -> F32:
        seen.append(features_of(fusion, values_NKF, found_NK))
        return seen[-1]

    monkeypatch.setattr(FittedFusion, "features_of", spy)
    fitted = rule.fit(Inputs(NAMES, NAMES[:2]), Pairs(values, target, found))
    fitted.rank(np.where(found, np.arange(12), PAD_ID).astype(np.int32), values)
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[0], seen[-1])


def test_a_positive_that_no_score_proposed_is_left_out_of_the_fit() -> None:
    """It has the highest value of its document; as a candidate it would change the rank of all others."""
    values, found = world(80)
    target = (np.random.default_rng(1).random(found.shape) < 0.3).astype(np.float32)
    rule, inputs = LightGBM(rounds=5, min_leaf=2, derived=True), Inputs(NAMES, NAMES[:2])
    expected = rule.fit(inputs, Pairs(values, target, found))
    added = np.concatenate([values, np.full((80, 1, 3), 9, np.float32)], axis=1)
    targets = np.concatenate([target, np.ones((80, 1), np.float32)], axis=1)
    filled, proposed = (np.concatenate([found, np.full((80, 1), own)], axis=1) for own in (True, False))
    fitted = rule.fit(inputs, Pairs(added, targets, filled, proposed))
    assert expected.tree is not None
    assert fitted.tree is not None
    assert fitted.tree.to_dict() == expected.tree.to_dict()
    whole = rule.fit(inputs, Pairs(added, targets, filled)).tree
    assert whole is not None
    assert whole.to_dict() != expected.tree.to_dict()
