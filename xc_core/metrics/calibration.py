"""How true the probabilities of predicted labels are, and what a least probability in place of a fixed k gives."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xc_core.shapes import F32, F64, Bool

THRESHOLDS: Final = tuple(step / 10 for step in range(1, 10))
"""Least probabilities that are measured; also the lower ends of the bins."""


def calibration(probability_NK: F32, positive_NK: Bool, positives: int) -> dict[str, Any]:
    """Return the calibration error, its bins and the figures of each threshold.

    ``probability_NK`` are the probabilities of K labels of each of N documents, 0 for a hole; ``positive_NK`` marks the
    true ones, of which the documents have ``positives`` in all. Shares are in percent. ``error`` is the expected
    calibration error (Naeini et al., AAAI 2015) of labels with a probability of 0.1 or more: the mean distance of
    probability and share of true labels in nine bins of equal width, weighted by their labels. None stands for a figure
    of no label.
    """
    bin_NK = np.searchsorted(THRESHOLDS, probability_NK, side="right")
    count_R, true_R, total_R = (
        np.bincount(bin_NK.ravel(), weights=weights, minlength=len(THRESHOLDS) + 1)[1:]
        for weights in (None, positive_NK.ravel(), probability_NK.ravel().astype(np.float64))
    )
    bins = [
        {"from": low, "labels": int(count), "probability": _percent(total, count), "true": _percent(true, count)}
        for low, count, true, total in zip(THRESHOLDS, count_R, true_R, total_R, strict=True)
    ]
    return {
        "error": _percent(np.abs(total_R - true_R).sum(), count_R.sum()),
        "bins": bins,
        "thresholds": [_threshold(least, probability_NK, positive_NK, positives) for least in THRESHOLDS],
    }


def at_least(content: dict[str, Any], least: float) -> dict[str, float | None]:
    """Return precision, recall and F1 of a threshold of ``content``, in percent, and its labels per document."""
    own = next(one for one in content["thresholds"] if one["least"] == least)
    return {name: own[name] for name in ("precision", "recall", "f1", "labels")}


def in_words(content: dict[str, Any], least: float = 0.5) -> str:
    """Return one line on the figures of the threshold ``least`` and on the calibration error."""
    own = at_least(content, least)
    if own["precision"] is None:
        return f"no label with a probability of {least:g}"
    return (
        f"precision {own['precision']:.1f}, recall {own['recall']:.1f} and {own['labels']:.2f} labels per document "
        f"at a probability of {least:g}; calibration error {content['error']:.1f}"
    )


def _threshold(least: float, probability_NK: F32, positive_NK: Bool, positives: int) -> dict[str, float | None]:
    """Return the figures of answers that have all labels with a probability of at least ``least``."""
    given_NK = probability_NK >= least
    given, true = int(given_NK.sum()), int((given_NK & positive_NK).sum())
    documents = len(given_NK)
    return {
        "least": least,
        "precision": _percent(true, given),
        "recall": _percent(true, positives),
        "f1": _percent(2 * true, given + positives),
        "labels": given / documents if documents else None,
        "without": _percent(int((~given_NK.any(axis=1)).sum()), documents),
    }


def _percent(part: float | F64, whole: float | F64) -> float | None:
    """Return ``part`` as a share of ``whole`` in percent; None if the whole is 0."""
    return float(100 * part / whole) if whole else None
