"""Confusions: compared with a slow twin."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from xc_core.data.labels import LabelMatrix
from xc_core.metrics.confusions import Confusion, confusions
from xc_core.shapes import PAD_ID, Shortlist


def slow(short: Shortlist, truth: LabelMatrix, k: int) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for document in range(len(truth)):
        first, true = int(short.ids_NK[document, 0]), truth.row(document).tolist()
        if first != PAD_ID and first not in true:
            found.update((first, label) for label in true if label not in short.ids_NK[document, :k])
    return found


@pytest.mark.parametrize("k", [1, 5])
def test_confusions_are_those_of_the_slow_twin(k: int) -> None:
    random = np.random.default_rng(3)
    ids_NK = np.stack([random.permutation(9)[:7] for _ in range(200)]).astype(np.int32)
    ids_NK[:5] = PAD_ID
    short = Shortlist(ids_NK, np.zeros(ids_NK.shape, np.float32))
    truth = LabelMatrix.from_pairs(np.repeat(np.arange(200), 3), random.integers(0, 9, 600), (200, 9))
    wanted = slow(short, truth, k)
    found = confusions(short, truth, k=k, most=1000)
    assert {(one.named, one.missed): one.documents for one in found} == {p: n for p, n in wanted.items() if n > 1}
    keys = [(-one.documents, one.named, one.missed) for one in found]
    assert keys == sorted(keys)
    assert confusions(short, truth, k=k, most=3) == found[:3]


def test_a_right_first_label_confuses_nothing() -> None:
    truth = LabelMatrix.from_pairs(np.array([0, 0, 1, 1]), np.array([0, 2, 0, 2]), (2, 3))
    short = Shortlist(np.array([[0, 1], [0, 1]], np.int32), np.zeros((2, 2), np.float32))
    assert confusions(short, truth) == []
    short = Shortlist(np.array([[1, 0], [1, 0]], np.int32), np.zeros((2, 2), np.float32))
    assert confusions(short, truth) == [Confusion(1, 2, 2)]
    assert confusions(Shortlist(np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32)), truth) == []
