"""Figures of each document come back from their file, with the documents that they are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.metrics.test_metric_artefacts import figures
from xc_core.metrics.names import KEPT
from xc_core.metrics.stored import StoredFigures

ROWS = np.array([2, 3, 5, 8, 13, 21])


@pytest.fixture
def stored(tmp_path: Path) -> StoredFigures:
    file = StoredFigures(tmp_path / "figures.npz")
    file.write({"rule": figures(0), "rows-of": figures(1)}, rows=ROWS)
    return file


def test_figures_come_back_by_ranking_and_metric(stored: StoredFigures) -> None:
    assert stored.names == ["rows-of", "rule"]
    np.testing.assert_array_equal(stored.rows, ROWS)
    for name, seed in (("rule", 0), ("rows-of", 1)):
        found, written = stored.of(name), figures(seed)
        assert found is not None
        assert set(found.num) == set(found.den) == set(KEPT)
        assert len(found) == len(ROWS)
        for metric in KEPT:
            np.testing.assert_array_equal(found.num[metric], np.float32(written.num[metric]))
            np.testing.assert_array_equal(found.den[metric], np.float32(written.den[metric]))
    assert stored.of("rows") is stored.of("rul") is None, "neither the documents nor a part of a name is a ranking"


def test_other_metrics_are_written_if_they_are_named(tmp_path: Path) -> None:
    file = StoredFigures(tmp_path / "figures.npz")
    file.write({"model": figures(0)}, ["R_at_100"])
    found = file.of("model")
    assert found is not None
    assert set(found.num) == {"R_at_100"}
    with pytest.raises(KeyError):
        _ = file.rows


def test_figures_of_some_documents_are_those_of_their_rows() -> None:
    every, chosen = figures(0), np.array([4, 1])
    for side in ("num", "den"):
        some = getattr(every.rows(chosen), side)
        for metric, values in getattr(every, side).items():
            np.testing.assert_array_equal(some[metric], values[[4, 1]])
