"""Calibration error and thresholds: those of a slow twin; probabilities that are true have no error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xc_core.metrics.calibration import THRESHOLDS, calibration, in_words
from xc_core.shapes import F32, Bool


def world(documents: int, seed: int, skew: float = 1.0) -> tuple[F32, Bool]:
    """Return probabilities, an eighth of them of holes, and labels that are true with probability ** ``skew``."""
    random = np.random.default_rng(seed)
    probability = random.random((documents, 9)).astype(np.float32)
    probability[random.random(probability.shape) < 1 / 8] = 0
    return probability, random.random(probability.shape) < probability**skew


def slow(probability: F32, positive: Bool, positives: int) -> dict[str, Any]:
    """Return the same figures, one label after the other."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in THRESHOLDS]
    for share, true in zip(probability.ravel().tolist(), positive.ravel().tolist(), strict=True):
        for low, own in reversed(list(zip(THRESHOLDS, bins, strict=True))):
            if share >= low:
                own.append((share, true))
                break
    distance = sum(abs(math.fsum(share for share, _ in own) - sum(true for _, true in own)) for own in bins)
    thresholds = []
    for least in THRESHOLDS:
        answers = [[true for share, true in zip(*row, strict=True) if share >= least]
                   for row in zip(probability.tolist(), positive.tolist(), strict=True)]  # fmt: skip
        given, hits = sum(map(len, answers)), sum(map(sum, answers))
        precision, recall = hits / given, hits / positives
        thresholds.append((
            least, 100 * precision, 100 * recall, 100 * 2 * precision * recall / (precision + recall),
            given / len(answers), 100 * sum(not answer for answer in answers) / len(answers),
        ))  # fmt: skip
    means = [(len(own), 100 * sum(s for s, _ in own) / len(own), 100 * sum(t for _, t in own) / len(own))
             for own in bins]  # fmt: skip
    return {"error": 100 * distance / sum(map(len, bins)), "bins": means, "thresholds": thresholds}


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
def test_the_figures_are_those_of_the_slow_twin(skew: float) -> None:
    probability, positive = world(60, seed=1, skew=skew)
    positives = int(positive.sum()) + 17  # some true labels were not ranked
    found, expected = calibration(probability, positive, positives), slow(probability, positive, positives)
    assert found["error"] == pytest.approx(expected["error"])
    assert [one["from"] for one in found["bins"]] == list(THRESHOLDS)
    rows = [(one["labels"], one["probability"], one["true"]) for one in found["bins"]]
    np.testing.assert_allclose(rows, expected["bins"])
    names = ("least", "precision", "recall", "f1", "labels", "without")
    np.testing.assert_allclose([[one[name] for name in names] for one in found["thresholds"]], expected["thresholds"])


def test_true_probabilities_have_no_error_and_others_have_their_distance() -> None:
    assert calibration(*world(40_000, seed=2), 1)["error"] < 0.4
    certain = np.full((100, 2), 0.75, np.float32)
    half = np.tile([True, False], (100, 1))
    assert calibration(certain, half, 100)["error"] == pytest.approx(25)


def test_without_labels_there_is_no_figure() -> None:
    empty = calibration(np.zeros((3, 0), np.float32), np.zeros((3, 0), bool), 4)
    assert empty["error"] is None
    assert empty["thresholds"][4] == {
        "least": 0.5, "precision": None, "recall": 0.0, "f1": 0.0, "labels": 0.0, "without": 100.0,
    }  # fmt: skip
    assert in_words(empty) == "no label with a probability of 0.5"
    none = calibration(np.zeros((0, 3), np.float32), np.zeros((0, 3), bool), 0)
    assert none["thresholds"][0]["without"] is None and none["thresholds"][0]["f1"] is None


def test_one_line_has_the_figures_of_a_half() -> None:
    probability = np.array([[0.9, 0.6, 0.2], [0.5, 0.1, 0.0]], np.float32)
    positive = np.array([[True, False, True], [True, False, False]])
    assert in_words(calibration(probability, positive, 4)) == (
        "precision 66.7, recall 50.0 and 1.50 labels per document at a probability of 0.5; calibration error 42.0"
    )
