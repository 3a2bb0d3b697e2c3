"""Predicted rows of labels that are newer than the training."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.classifiers import foreseen_rows


def planted(labels: int, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return text vectors, and rows that are a linear function of them."""
    random = np.random.default_rng(0)
    texts = random.standard_normal((labels, width)) + 3
    rows = texts @ random.standard_normal((width, width)) - 5
    return texts.astype(np.float32), rows.astype(np.float32)


def test_a_linear_map_is_found_and_applied_to_new_labels() -> None:
    texts, rows = planted(5000)
    found = foreseen_rows(texts[4000:], texts[:4000], rows[:4000], unit=False)
    np.testing.assert_allclose(found, rows[4000:], atol=0.05)


def test_a_unit_row_goes_from_the_mean_row_to_where_the_map_points() -> None:
    texts, rows = planted(5000)
    rows /= 2 * np.linalg.norm(rows.mean(0))
    mean_D = rows[:4000].mean(0)
    found, unit = (foreseen_rows(texts[4000:], texts[:4000], rows[:4000], unit=way) - mean_D for way in (False, True))
    np.testing.assert_allclose(np.linalg.norm(unit + mean_D, axis=1), 1, rtol=1e-5)
    of_length_1 = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (found, unit)]
    np.testing.assert_allclose(of_length_1[0], of_length_1[1], atol=1e-4)


def test_a_text_that_is_the_mean_of_the_others_gives_the_direction_of_the_mean_row() -> None:
    texts, rows = np.eye(4, dtype=np.float32), planted(4, 4)[1]
    rows /= 2 * np.linalg.norm(rows.mean(0))
    found = foreseen_rows(texts.mean(0, keepdims=True), texts, rows, unit=True)
    np.testing.assert_allclose(found[0], 2 * rows.mean(0), rtol=1e-5)


def test_a_label_of_which_the_texts_tell_nothing_is_no_nearer_to_documents_than_others() -> None:
    """All documents lie on one side, as those of an encoder do. The whole row at length 1 would be nearest to all."""
    random = np.random.default_rng(0)

    def unit_vectors(count: int, common: float) -> np.ndarray:
        vectors = random.standard_normal((count, 64)) + common
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    documents, rows = unit_vectors(200, 0.5), unit_vectors(40, 0.5)
    new = foreseen_rows(unit_vectors(10, 0.0), unit_vectors(40, 0.0), rows, unit=True)
    np.testing.assert_allclose(np.linalg.norm(new, axis=1), 1, rtol=1e-6)
    assert (documents @ new.T).mean() == pytest.approx((documents @ rows.T).mean(), abs=0.05)
    first = np.concatenate([documents @ rows.T, documents @ new.T], axis=1).argmax(1)
    assert (first >= 40).mean() < 0.3


def test_with_few_labels_a_row_is_near_their_mean() -> None:
    texts, rows = planted(2)
    found = foreseen_rows(np.full((1, 8), 3, np.float32), texts, rows, unit=False)
    spread = np.linalg.norm(rows[0] - rows[1])
    assert np.linalg.norm(found[0] - rows.mean(0)) < spread


def test_without_a_trained_label_a_row_is_the_text_vector() -> None:
    texts, rows = planted(3)
    np.testing.assert_array_equal(foreseen_rows(texts, texts[:0], rows[:0], unit=True), texts)


def test_without_a_new_label_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a refresh for new documents alone, once per fold."""
    monkeypatch.delattr(np.linalg, "solve")
    texts, rows = planted(3)
    wide = np.pad(rows, ((0, 0), (0, 1)))
    assert [foreseen_rows(texts[:0], texts, own, unit=True).shape for own in (rows, wide)] == [(0, 8), (0, 9)]


def test_a_bias_is_predicted_too_and_is_no_part_of_the_unit_vector() -> None:
    texts, rows = planted(5000)
    bias = texts @ np.linspace(-1, 1, 8, dtype=np.float32) + 2
    wide = np.concatenate([rows, bias[:, None]], axis=1)
    found = foreseen_rows(texts[4000:], texts[:4000], wide[:4000], unit=True)
    np.testing.assert_allclose(found[:, 8], bias[4000:], atol=0.05)
    plain = foreseen_rows(texts[4000:], texts[:4000], rows[:4000], unit=True)
    np.testing.assert_allclose(found[:, :8], plain, atol=1e-5)
    alone = foreseen_rows(texts, texts[:0], wide[:0], unit=True)
    np.testing.assert_array_equal(alone, np.pad(texts, ((0, 0), (0, 1))))


def test_arrays_of_other_shapes_are_refused() -> None:
    texts, rows = planted(4)
    with pytest.raises(ValueError, match="rows"):
        foreseen_rows(texts, texts, rows[:3], unit=True)
    with pytest.raises(ValueError, match="texts"):
        foreseen_rows(texts[:, :4], texts, rows, unit=True)
