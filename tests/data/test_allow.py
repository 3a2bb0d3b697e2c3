"""Imperfect data is accepted if its kind is allowed by name, and only that kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.spoil import Spoil, field_of, insert, put, put_json
from tests.data.worlds import contents, read_world, small_world, write_world
from xc_core import artifacts
from xc_core.data.checks import Allowed, accepted_sentence, check_block, clean_block
from xc_core.data.formats import Block
from xc_core.errors import DataError


@dataclass(frozen=True)
class Wart:
    """Data of one imperfect kind, and its row in the corpus if it is accepted."""

    spoil: Spoil
    file: str
    row: int
    becomes: tuple[object, ...]


WARTS = {
    "empty-text": Wart(field_of(9, title="", content=""), "documents", 8, ("train-8", "", "", "train")),
    "empty-labels": Wart(
        field_of(9, target_ind=[], target_rel=[]), "pairs", 16, (9, small_world().train[9]["target_ind"][0])
    ),
    "unseen-labels": Wart(
        lambda folder: insert(folder / "lbl.json", 11, b'{"uid": "new", "title": "a"}'), "labels", 10, ("new", "a", "")
    ),
    "repeated-labels": Wart(field_of(1, target_ind=[4, 2, 4, 2], target_rel=[1, 1, 1, 1]), "pairs", 1, (0, 4)),
    "clean-text": Wart(
        field_of(9, title="a\nb\tc", content="d\x00\u2028e"), "documents", 8, ("train-8", "a b\tc", "d  e", "train")
    ),
}  # fmt: skip


@pytest.mark.parametrize("allowed", WARTS)
@pytest.mark.parametrize("kind", WARTS)
def test_a_kind_accepts_only_itself(tmp_path: Path, kind: str, allowed: str) -> None:
    wart = WARTS[kind]
    folder = write_world(tmp_path / "world")
    wart.spoil(folder)
    if kind == allowed:
        corpus = read_world(folder, allow=(allowed,), validation_fraction=0.0)
        assert contents(corpus)[wart.file][wart.row] == wart.becomes
    else:
        with pytest.raises(DataError, match=f"--allow {kind}"):
            read_world(folder, allow=(allowed,), validation_fraction=0.0)


def test_all_kinds_are_known_by_name() -> None:
    assert Allowed.parse(tuple(WARTS)) == Allowed(**{kind.replace("-", "_"): True for kind in WARTS})
    assert Allowed.parse(()) == Allowed()


@pytest.mark.parametrize("spoil", [
    field_of(3, uid="a\nb"),
    field_of(3, uid=" "),
    field_of(3, uid="train-7"),
    field_of(3, target_ind=[10], target_rel=[1.0]),
    field_of(3, target_ind=[1], target_rel=[0.0]),
    lambda folder: put_json(folder / "lbl.json", 2, uid="0"),
    lambda folder: put(folder / "trn.json", 3, b"\xff"),
    lambda folder: put(folder / "trn.json", 3, b"{}"),
])  # fmt: skip
def test_data_of_no_kind_is_refused_whatever_is_allowed(tmp_path: Path, spoil: Spoil) -> None:
    folder = write_world(tmp_path / "world")
    spoil(folder)
    with pytest.raises(DataError):
        read_world(folder, allow=tuple(WARTS))


def test_a_text_that_is_empty_once_cleaned_is_an_empty_text(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    put_json(folder / "trn.json", 3, title="\n\x07", content="")
    with pytest.raises(DataError, match="an empty text"):
        read_world(folder, allow=("clean-text",))
    assert contents(read_world(folder, allow=("clean-text", "empty-text")))["documents"][2][1] == "  "


def test_rows_that_were_accepted_are_counted(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    for line, flaw in ((1, {"target_ind": [4, 2, 4, 2], "target_rel": [1] * 4}), (9, {"title": "", "content": ""}),
                       (12, {"title": "a\nb"}), (20, {"target_ind": [], "target_rel": []})):  # fmt: skip
        put_json(folder / "trn.json", line, **flaw)
    put_json(folder / "lbl.json", 3, title="a\x00", content="")
    insert(folder / "lbl.json", 11, b'{"uid": "new", "title": ""}')
    found = artifacts.read_made(read_world(folder, allow=Allowed.kinds()).folder).facts["accepted"]
    assert found == {
        "documents": {"empty-text": 1, "empty-labels": 1, "repeated-labels": 1, "clean-text": 1},
        "labels": {"empty-text": 1, "unseen-labels": 1, "clean-text": 1},
    }
    none: Any = artifacts.read_made(read_world(write_world(tmp_path / "whole"), allow=Allowed.kinds()).folder).facts
    assert none["accepted"] == {"documents": {}, "labels": {}}
    assert accepted_sentence(none | {"allow": ["empty-text", "clean-text"]}) == "no row (empty-text, clean-text)"
    assert accepted_sentence(none | {"allow": ["empty-text", "shared-texts"]}) == "shared-texts", "they are not counted"


def test_unseen_labels_are_counted(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    WARTS["unseen-labels"].spoil(folder)
    corpus = read_world(folder, allow=("unseen-labels",))
    assert corpus.facts["unseen_labels"] == 1 and corpus.num_labels == 11


def test_a_label_of_a_held_out_document_is_not_unseen(tmp_path: Path) -> None:
    """Propensities and frequencies come from the published train rows, which include validation."""
    folder = write_world(tmp_path / "world")
    held_out = next(i for i, row in enumerate(contents(read_world(folder))["documents"]) if row[3] == "validation")
    insert(folder / "lbl.json", 11, b'{"uid": "new", "title": "new"}')
    put_json(folder / "trn.json", held_out + 1, target_ind=[10], target_rel=[1.0])
    assert read_world(folder).facts["unseen_labels"] == 0


def test_dropping_repeats_keeps_first_places_and_relevance() -> None:
    block = Block(
        "f", 1, ["a", "b", "c"], ["t"] * 3, [""] * 3,
        np.array([4, 2, 4, 1, 1, 2]), np.array([3, 0, 3]), np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    )  # fmt: skip
    clean = clean_block(block, Allowed(repeated_labels=True))
    assert clean.label_ids.tolist() == [4, 2, 1, 2] and clean.label_counts.tolist() == [2, 0, 2]
    assert clean.relevance is not None and clean.relevance.tolist() == [1.0, 2.0, 4.0, 6.0]
    assert block.label_ids.tolist() == [4, 2, 4, 1, 1, 2], "the argument was changed"


def test_the_same_label_of_two_documents_is_no_repeat() -> None:
    block = Block("f", 1, ["a", "b"], ["t"] * 2, [""] * 2, np.array([4, 4]), np.array([1, 1]))
    check_block(block, Allowed(), num_labels=5)


def test_a_refusal_names_the_first_row_that_is_wrong(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    for line in (20, 7, 33):
        put_json(folder / "trn.json", line, target_ind=[3, 3], target_rel=[1, 1])
    with pytest.raises(DataError, match=r"trn\.json, line 7: "):
        read_world(folder)
