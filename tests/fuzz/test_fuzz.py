"""A short form of ``make fuzz``, and every past failure replayed."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.fuzz import CORPUS, ended, fuzz
from tests.fuzz.targets import Target, targets
from xc_core.errors import XCError
from xc_core.outside import yaml_of

CASES = 40
"""Changes of every boundary in the default tests."""


@pytest.fixture(scope="module")
def boundaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {target.name: target for target in targets(tmp_path_factory.mktemp("fuzz"))}


def test_random_changes_are_accepted_or_refused_with_a_message(boundaries: dict[str, Target]) -> None:
    for name, target in boundaries.items():
        tally = fuzz(target, CASES, Random(zlib.crc32(name.encode())))
        assert not tally.failures, (name, tally.failures)
        assert tally.refused > CASES // 3, f"{name}: too few cases are bad to find anything"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_failed_once_has_a_message_now(boundaries: dict[str, Target], path: Path) -> None:
    case = json.loads(path.read_text())
    kind, reason = ended(boundaries[case["target"]], base64.b64decode(case["data"]))
    assert kind != "failed", reason


def test_a_crash_a_bad_message_and_a_fault_are_failures() -> None:
    """Otherwise nothing would ever be found."""

    def run(data: bytes) -> None:
        if data == b"crash":
            raise KeyError(data)
        if data == b"silent":
            raise XCError("", expected="", do="")

    target = Target("a", "a", (b"fine",), lambda data, random: data, run)
    assert [ended(target, data)[0] for data in (b"fine", b"crash", b"silent")] == ["accepted", "failed", "failed"]


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("[]{}&*!:-#\n ,'\"a1.", max_size=60))
def test_any_text_is_yaml_or_refused(text: str) -> None:
    try:
        yaml_of(text)
    except XCError as error:
        assert error.exit_code == 78 and error.found.isprintable()
