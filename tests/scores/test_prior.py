"""The score ``prior``: a multiple of the log of the published counts, added to other scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.scores.toy import unit
from xc_core.data.labels import LabelMatrix
from xc_core.fusion import FittedFusion, Inputs, Pairs, Sum
from xc_core.scores import SCORES, Prior, Query, ScoreData

COUNTS = np.array([3, 0, 40, 1, 7])


def data() -> ScoreData:
    """Return counts that differ from those of ``truth``, which a score must not read as a feature."""
    return ScoreData(LabelMatrix.none(2, 5), counts=lambda: COUNTS)


def test_the_value_is_the_temperature_times_the_log_of_the_count_and_none_counts_as_half() -> None:
    found = Prior(temperature=0.5).fit(data())
    every = np.tile(np.arange(5, dtype=np.int32), (3, 1))
    expected = 0.5 * np.log([3, 0.5, 40, 1, 7])
    np.testing.assert_allclose(found.values(Query(unit(3, 0)), every), np.tile(expected, (3, 1)), rtol=1e-6)


def test_the_most_frequent_labels_are_proposed() -> None:
    found = Prior().fit(data()).candidates(Query(unit(3, 0)), 3)
    assert found is not None
    assert found.tolist() == [[2, 4, 0]] * 3


INPUTS = Inputs(("text", "rows", "prior"), ("text", "rows", "prior"), ("prior",))
VALUES = np.array([[[0.9, 0.1, 0.0], [0.8, 0.2, 0.3], [0.1, 0.7, 0.1]]], np.float32)


def fused(inputs: Inputs) -> FittedFusion:
    plain = Sum().fit(inputs, Pairs(VALUES, VALUES[..., 0], VALUES[..., 0] > 0))
    return replace(plain, offsets=inputs.offsets)


def test_each_baseline_is_also_compared_with_the_offset_added() -> None:
    parts = {name: part.scores(VALUES)[0].tolist() for name, part in fused(INPUTS).parts().items()}
    assert list(parts) == ["text", "rows", "prior", "text_and_prior", "rows_and_prior", "sum"]
    assert parts["text_and_prior"] == pytest.approx([0.9, 1.1, 0.2])
    assert parts["sum"] == pytest.approx([1.0, 1.3, 0.9])


def test_of_two_scores_the_pair_is_the_sum() -> None:
    names = ("text", "prior")
    assert list(fused(Inputs(names, names, ("prior",))).parts()) == ["text", "prior", "sum"]


def test_offsets_are_saved_and_kept_by_a_part(tmp_path: Path) -> None:
    fused(INPUTS).part("rows").write(tmp_path)
    assert list(FittedFusion.read(tmp_path).parts()) == list(fused(INPUTS).parts())
    replace(fused(INPUTS), offsets=()).write(tmp_path)
    assert "offsets" not in (tmp_path / "fusion.json").read_text("utf-8"), "as files from before offsets"


def test_scores_share_the_counts() -> None:
    asked: list[int] = []
    own = replace(data(), counts=lambda: asked.append(1) or COUNTS)  # type: ignore[func-returns-value]
    for part in (Prior(), SCORES["frequency"]()):
        part.fit(own)
    assert asked == [1]
