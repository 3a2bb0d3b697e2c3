"""Which documents are shown as examples: half right, half wrong, if there are enough of both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokens import SIDES
from xc_core.infer.examples import _number, examples, right_and_wrong, titles_of
from xc_core.shapes import PAD_ID, Shortlist


def ranked(right: list[bool]) -> tuple[Shortlist, LabelMatrix]:
    """Return a list per document whose first label is true or not."""
    size = len(right)
    short = Shortlist(np.array([[0, 1]] * size, np.int32).reshape(size, 2), np.zeros((size, 2), np.float32))
    return short, LabelMatrix.from_pairs(
        np.arange(size), np.array([0 if one else 2 for one in right], np.int64), (size, 3)
    )


@pytest.mark.parametrize(
    ("right", "count", "wanted"),
    [
        ([True, False, True, False, True], 4, [4, 2, 3, 1]),
        ([True, False, True, False, True], 3, [4, 2, 3]),
        ([True, True, True, False], 4, [2, 1, 0, 3]),  # too few wrong ones
        ([True, False, False, False], 4, [0, 3, 2, 1]),  # too few right ones
        ([True, False], 9, [0, 1]),
        ([], 3, []),
    ],
)
def test_half_are_right_and_half_are_wrong(right: list[bool], count: int, wanted: list[int]) -> None:
    picked = np.arange(len(right))[::-1]
    assert right_and_wrong(*ranked(right), picked, count).tolist() == wanted


def test_a_document_without_candidates_is_wrong() -> None:
    short, truth = ranked([True, True])
    short.ids_NK[0] = PAD_ID
    assert right_and_wrong(short, truth, np.array([0, 1]), 2).tolist() == [1, 0]
    none = Shortlist(np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32))
    assert right_and_wrong(none, truth, np.array([0, 1]), 1).tolist() == [0]


def test_a_document_without_a_predicted_label_is_shown_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.infer.examples.values", lambda *_: np.zeros((1, 2, 0), np.float32))
    sides = {name: pl.DataFrame({"uid": [name], "title": ["dog"], "content": ["b"]}) for name in SIDES}
    corpus: Any = SimpleNamespace(table=lambda side, rows: sides[side][list(rows)])
    short, truth = ranked([True])
    short.ids_NK[:] = PAD_ID
    ranker: Any = SimpleNamespace(scores={})
    found = examples(corpus, ranker, np.zeros((1, 2), np.float32), np.array([0]), short, truth)
    assert found == [{"uid": "documents", "text": "dog b", "right": False, "predicted": [], "true": ["dog"]}]


@pytest.mark.parametrize(("value", "shown"), [(1 / 3, 0.3333), (12345.6, 12350.0), (-np.inf, None), (np.nan, None)])
def test_a_number_has_four_digits_and_what_is_not_finite_is_no_number(value: float, shown: float | None) -> None:
    """JSON has no notation for it."""
    assert _number(np.float32(value)) == shown


def test_a_label_without_a_title_is_named_by_its_uid() -> None:
    labels = pl.DataFrame({"uid": ["u0", "u1", "u2"], "title": ["dog", "", " "], "content": ["", "", "text"]})

    def table(_: str, rows: list[int]) -> pl.DataFrame:
        return labels[rows]

    assert titles_of(cast(Corpus, SimpleNamespace(table=table)), [2, 0, 1]) == {0: "dog", 1: "u1", 2: "u2"}
