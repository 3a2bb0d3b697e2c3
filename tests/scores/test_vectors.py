"""The recall of an index is measured against exact search over the vectors that the index holds."""

from __future__ import annotations

import pytest

from tests.scores.toy import unit
from xc_core.ann import Exact
from xc_core.scores import Query
from xc_core.scores.vectors import VectorScore


@pytest.mark.parametrize("joined", [False, True])
def test_an_exact_index_has_a_recall_of_one_also_over_sums(joined: bool) -> None:
    rows, texts = unit(300, 1), unit(300, 2)
    score = VectorScore.build(rows, Exact(), rows + texts if joined else None)
    assert score.figures(Query(unit(20, 3))) == {"recall": 1.0}
