"""Canonical JSON: the same bytes for the same content; numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.artifacts import Made
from xc_core.canonical import canonical, finite, line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def without_nonfinite(content: Any) -> Any:
    """Return ``content`` as JSON can express it: lists for tuples, None for numbers that are not finite."""
    if isinstance(content, dict):
        return {key: without_nonfinite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nonfinite(value) for value in content]
    return None if isinstance(content, float) and (math.isnan(content) or math.isinf(content)) else content


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_any_content_reads_back_with_null_for_what_is_not_finite(content: Any) -> None:
    assert json.loads(canonical(content)) == finite(content) == without_nonfinite(content)
    assert json.loads(line(content)) == finite(content)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
@settings(max_examples=30, deadline=None)
def test_any_facts_become_json_that_reads_back_with_null_for_what_is_not_finite(facts: dict[str, object]) -> None:
    text = Made(facts=facts).to_json()
    assert json.loads(text)["facts"] == finite(facts)
    assert text == Made(facts=dict(reversed(facts.items()))).to_json()


def test_the_order_of_keys_does_not_matter_and_the_order_of_a_list_does() -> None:
    assert canonical({"b": 1, "a": {"d": 2, "c": 3}}) == canonical({"a": {"c": 3, "d": 2}, "b": 1})
    assert canonical([1, 2]) != canonical([2, 1])


def test_the_bytes_are_pinned() -> None:
    """Digests of manifests are computed from these bytes."""
    assert canonical({"b": (1, 2.5), "a": "ä", "c": float("nan")}) == (
        '{\n "a": "ä",\n "b": [\n  1,\n  2.5\n ],\n "c": null\n}\n'
    )


def test_a_line_keeps_the_order_of_its_keys_and_has_escapes_for_an_output_without_unicode() -> None:
    content = {"b": float("inf"), "a": ["ä", (1, float("nan"))]}
    assert line(content) == '{"b": null, "a": ["\\u00e4", [1, null]]}'
    assert line(content, ascii_only=False) == '{"b": null, "a": ["ä", [1, null]]}'
