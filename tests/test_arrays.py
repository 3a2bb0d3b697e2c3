"""Files of arrays: what is read is what was written; whatever else is there is a CorruptError."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.scores.toy import TEXTS, TRUTH, data_of, unit
from xc_core.arrays import read_arrays
from xc_core.errors import CorruptError
from xc_core.scores import LabelWords, Neighbours, Score

ARRAYS: dict[str, Any] = {"one": np.arange(3, dtype=np.int16), "two": np.eye(2, dtype=np.float32)}


def with_type(path: Path, kind: str) -> None:
    """Give the first array of a file another type."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    first = next(name for name in header if name != "__metadata__")
    start, end = header[first]["data_offsets"]
    header[first] |= {"dtype": kind, "shape": [end - start]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "a.safetensors")
    found = read_arrays(tmp_path / "a.safetensors", "two", content="both", do="nothing")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("damage", ["absent", "empty", "half", "a folder", "another type", "no such array"])
def test_what_cannot_be_read_says_what_to_do(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(ARRAYS, path)
    if damage in ("absent", "a folder"):
        path.unlink()
    if damage == "a folder":
        path.mkdir()
    if damage in ("empty", "half"):
        path.write_bytes(path.read_bytes()[: {"empty": 0, "half": 60}[damage]])
    if damage == "another type":
        with_type(path, "F8_E4M3")
    with pytest.raises(CorruptError) as caught:
        read_arrays(path, "one", "three", content="all three", do="make it again")
    assert (caught.value.expected, caught.value.do) == ("all three", "make it again")
    assert str(path) in caught.value.found
    if damage == "no such array":
        assert caught.value.found.endswith("without 'three'")


@pytest.mark.parametrize("score", [LabelWords(), Neighbours()])
@pytest.mark.parametrize("damage", ["another type", "no such array"])
def test_a_score_with_a_damaged_file_says_what_to_do(score: Score, damage: str, tmp_path: Path) -> None:
    vectors_ND = unit(len(TEXTS), 0)
    score.fit(dataclasses.replace(data_of(TEXTS, TRUTH), vectors=lambda: vectors_ND)).save(tmp_path)
    score.open(tmp_path)
    file = tmp_path / "labels.safetensors"
    if damage == "another type":
        with_type(file, "F8_E4M3")
    else:
        save_file(ARRAYS, file)
    with pytest.raises(CorruptError, match=file.name):
        score.open(tmp_path)
