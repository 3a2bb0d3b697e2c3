"""Validation rows depend only on the uid and have the right share; a repeated uid is found among any number of rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.data import splits
from xc_core.data.splits import Distinct, digests, is_validation


def held_out(uids: list[str], fraction: float) -> set[str]:
    return {uid for uid, inside in zip(uids, is_validation(digests(uids), fraction), strict=True) if inside}


def test_the_held_out_uids_never_change() -> None:
    """Another hash would silently move validation rows of every existing dataset."""
    uids = [f"uid{i}" for i in range(40)]
    assert held_out(uids, 0.1) == {f"uid{i}" for i in (3, 10, 13, 15, 18, 28, 32, 39)}


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
def test_the_share_is_about_what_was_asked_for(fraction: float) -> None:
    size = 20_000
    share = len(held_out([f"document {i}" for i in range(size)], fraction)) / size
    assert abs(share - fraction) < 5 * (fraction * (1 - fraction) / size) ** 0.5


def test_a_share_of_zero_holds_out_nothing() -> None:
    assert not held_out([str(i) for i in range(5_000)], 0.0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(), unique=True), st.floats(0, 1), st.randoms(use_true_random=False))
def test_order_and_neighbours_do_not_matter(uids: list[str], fraction: float, random: Random) -> None:
    whole = held_out(uids, fraction)
    shuffled = random.sample(uids, len(uids))
    assert held_out(shuffled, fraction) == whole
    assert held_out(shuffled[::2], fraction) | held_out(shuffled[1::2], fraction) == whole


@settings(deadline=None, max_examples=20)
@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_out_the_same_rows_and_more(first: float, second: float) -> None:
    uids = [str(i) for i in range(300)]
    small, large = sorted((first, second))
    assert held_out(uids, small) <= held_out(uids, large)


def naive_repeat(uids: list[str]) -> tuple[int, int] | None:
    """Return (earlier row, later row) of the first row with a repeated uid."""
    last: dict[str, int] = {}
    for row, uid in enumerate(uids):
        if uid in last:
            return last[uid], row
        last[uid] = row
    return None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 20), st.sampled_from((0, 7, 1000)))
def test_the_first_repeat_is_found_however_rows_come_in(numbers: list[int], step: int, held: int) -> None:
    uids = [f"u{number}" for number in numbers]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(splits, "_BUFFERED", held):
        distinct = Distinct(Path(folder) / "uids")
        for start in range(0, len(uids), step):
            distinct.add(digests(uids[start : start + step]))
        distinct.add(digests([]))
        assert distinct.first_repeat() == naive_repeat(uids)
        assert not (Path(folder) / "uids").exists()


@pytest.mark.parametrize("buckets", [1, 2, 64])
def test_the_number_of_buckets_does_not_matter(tmp_path: Path, buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "_BUCKETS", buckets)
    monkeypatch.setattr(splits, "_BUFFERED", 100)
    uids = [str(i) for i in range(500)]
    for row, earlier in ((400, 3), (250, 7), (300, 299)):
        uids[row] = uids[earlier]
    distinct = Distinct(tmp_path / "uids")
    distinct.add(digests(uids))
    assert len(list((tmp_path / "uids").iterdir())) == buckets
    assert distinct.first_repeat() == (7, 250)


def test_few_digests_make_no_files(tmp_path: Path) -> None:
    distinct = Distinct(tmp_path / "uids")
    distinct.add(digests(["a", "b", "a"]))
    assert not any(tmp_path.iterdir())
    assert distinct.first_repeat() == (0, 2)


def test_a_uid_has_one_digest() -> None:
    first, second = digests(["a", "ä", "", "a"]), digests(["a"])
    assert first[0] == first[3] == second[0]
    assert len(np.unique(first)) == 3
