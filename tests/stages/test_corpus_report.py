"""What the stage corpus says of filters and of the validation documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ToyWorld, make_workspace
from xc_core.chain import run_stage
from xc_core.data.ingest import IngestConfig
from xc_core.stages.corpus import _validation_notes

FAMILIES = {"families": 1200, "documents": 5000, "largest": 1000, "given": False}


def said(validation: int, split: dict[str, Any], fraction: float = 0.1) -> list[str]:
    rows = {"train": 10_000 - validation, "validation": validation, "test": 90_000}
    facts = {"rows": rows, "split": split, "nearness": None}
    return _validation_notes(facts, IngestConfig(validation_fraction=fraction))


NO_PAIR = "corpus: no document has the uid of a label, so nothing is filtered (--filters generate)"


@pytest.mark.parametrize(
    ("filters", "uid", "told"),
    [("generate", "X1", [NO_PAIR]), ("generate", "D0001", []), ("given", "X1", []), ("none", "X1", [])],
)
def test_filters_that_are_made_of_uids_and_have_no_pair_are_reported(
    filters: str, uid: str, told: list[str], tmp_path: Path, lines: list[str]
) -> None:
    world = ToyWorld.make(documents=60, tests=20)
    world.labels[0]["uid"] = uid
    workspace = make_workspace(tmp_path, world)
    workspace.params.declare_dataset("toy", IngestConfig(filters=filters))
    facts = run_stage(workspace, "corpus", "toy").facts
    assert bool(facts["filters"]["pairs"]) == (uid == "D0001")
    assert [line for line in lines if "nothing is filtered" in line] == told


def test_families_are_counted() -> None:
    assert said(1000, FAMILIES) == [
        "5,000 train and validation documents are in 1,200 families of at least two, the largest has 1,000; a family "
        "is held out as a whole"
    ]
    assert said(1000, FAMILIES | {"families": 1})[0].split(" are in ")[1].startswith("1 family of at least two")
    assert said(1000, {"given": False}) == []


@pytest.mark.parametrize(("validation", "warned"), [(499, True), (500, False), (2000, False), (2001, True)])
def test_a_share_of_less_than_half_or_more_than_twice_the_wanted_one_is_reported(validation: int, warned: bool) -> None:
    _, *warning = said(validation, FAMILIES)
    assert (
        warning
        == [f"validation has {validation / 10_000:.0%} of the documents instead of 10%, because families are large"]
        * warned
    )
    assert len(said(validation, FAMILIES | {"given": True})) == 1, "the user chose these documents"
