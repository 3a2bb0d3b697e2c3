"""A separator of labels is proposed if labels look like several, and not for names that have commas rightly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from xc_core.data.formats import ReadOptions
from xc_core.data.formats.columns import report_separator
from xc_core.progress import listen, silence

ROOT = Path(__file__).parents[2]


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    listen(lines.append)
    yield lines
    silence()


@pytest.mark.parametrize(
    ("cells", "proposed"),
    [
        (["a,b"], True),
        (["a"], False),
        ([f"{i % 7}x,{i % 5}y" for i in range(60)], True),
        ([f"{(7 * i) % 30}x, {(11 * i) % 30}x,{i % 9}y" for i in range(60)], True),
        ([f"name {i}, also {i + 1}" for i in range(60)], False),
        ([f"a{i}|b{i}" for i in range(60)], True),
    ],
    ids=["all the same", "no comma", "pairs", "triples", "names with commas", "bars"],
)
def test_a_separator_is_proposed_if_what_it_divides_repeats(said: list[str], cells: list[str], proposed: bool) -> None:
    """A label that is several was not noticed if each row has it."""
    report_separator(sorted(set(cells)), ReadOptions(), cut=True)
    assert any("--label-separator" in line for line in said) == proposed


def test_no_separator_is_proposed_for_the_titles_of_the_bundled_dataset(said: list[str]) -> None:
    """More than half of them have commas: "animal, animate being, beast"."""
    rows = gzip.decompress((ROOT / "data" / "wordnet-mini" / "raw" / "lbl.json.gz").read_bytes()).splitlines()
    titles = [json.loads(row)["title"] for row in rows]
    assert 2 * sum("," in title for title in titles) > len(titles)
    report_separator(sorted(titles), ReadOptions(), cut=True)
    assert said == []
