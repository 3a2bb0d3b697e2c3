"""The JSON of a label: what raised it is there only if something did."""

from __future__ import annotations

import pytest

from xc_core.infer.explained import Explained, Reason
from xc_core.serve.replies import Label, _label


@pytest.mark.parametrize("by_sum", [0.0, 1.5])
def test_points_that_raise_a_label_are_a_field_only_if_there_are_any(by_sum: float) -> None:
    reasons = (Reason("a", 1.0, 1, 2.0),)
    content = _label(Explained(0, "uid", "title", 3.5, None, reasons, None, 0.0, by_sum), why=True)
    assert content.get("by_sum") == (by_sum or None)
    assert ("by_sum" in content) == bool(by_sum)
    assert Label.model_validate(content).by_sum == (by_sum or None)
    assert "by_sum" not in _label(Explained(0, "uid", "title", 3.5, None, reasons, None, 0.0, by_sum), why=False)
