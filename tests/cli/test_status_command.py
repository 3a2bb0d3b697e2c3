"""``xc status``: the exit code says whether something is out of date, missing or damaged."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import NGAME, Xc
from xc_core import artifacts
from xc_core.chain import Workspace

EXPECTED = {"nothing": "up to date", "out of date": "out of date", "missing": "missing", "damaged": "damaged"}


@pytest.mark.parametrize("change", EXPECTED)
def test_the_exit_code_is_1_unless_every_artefact_is_up_to_date(xc: Xc, own: Workspace, change: str) -> None:
    folder = own.folder("model", "toy", "ngame")
    if change == "out of date":
        own.params.declare_experiment("toy", "ngame", "ngame", {"model": {"max_drop": 3.0}, "encoder": {"epochs": 1}})
    elif change == "missing":
        artifacts.remove(folder)
    elif change == "damaged":
        (folder / "encoder.safetensors").write_bytes(b"short")
    ended = xc("status", *NGAME)
    assert ended.code == (0 if change == "nothing" else 1)
    [line] = [line for line in ended.out.splitlines() if line.split()[:1] == ["model"]]
    assert EXPECTED[change] in line
    found = xc("status", *NGAME, "--json")
    assert found.code == 0
    states = {row["stage"]: row["status"] for row in map(json.loads, found.out.splitlines())}
    assert states["model"] == EXPECTED[change]
