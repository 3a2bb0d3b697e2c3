"""The names of labels are those of a list, in less memory."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from tests.bounded import bounded, scratch
from xc_core.infer.names import LabelNames, label_names

SOME = ["", "river", "naïve – \u202e名", "river"]


def test_names_behave_as_a_list() -> None:
    names = LabelNames(pl.Series(SOME))
    assert names == SOME and [*names] == SOME and len(names) == 4
    assert names[2] == SOME[2] and names[-1] == "river" and names[1:3] == SOME[1:3] and names.index("river") == 1
    assert names != SOME[:3] and names != [*SOME[:3], "sea"] and names != "river"
    with pytest.raises(IndexError):
        names[4]


def million_labels() -> Callable[[], None]:
    """Write 2 M labels."""
    path, uids = scratch() / "labels.parquet", pl.Series(range(2_000_000)).cast(pl.String)
    pl.DataFrame({"uid": "label-" + uids, "title": "title " + uids}).write_parquet(path)

    def read() -> None:
        uids, titles = label_names(path)
        assert len(uids) == 2_000_000 and (uids[7], titles[-1]) == ("label-7", "title 1999999")

    return read


def test_two_million_labels_are_opened_without_a_string_object_each() -> None:
    """As lists of strings they would take 300 MB more."""
    bounded(million_labels, megabytes=320)
