"""A short form of ``make fuzz``, and every past failure replayed."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import names
from tests.fuzz.fuzz import CORPUS, FAILURES, Tally, ended, fuzz, table
from tests.fuzz.served import SEEDS, Answer, Client, check, client
from tests.fuzz.settings import check_settings
from tests.fuzz.targets import Target, targets
from xc_core.chain import Workspace
from xc_core.chain import workspace as workspace_module
from xc_core.errors import ConfigError, XCError
from xc_core.outside import yaml_of
from xc_core.recipes.settings import ModelSettings

CASES = 40
"""Changes of every boundary in the default tests."""


@pytest.fixture(scope="module")
def served(trained: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    model = trained.folder("model", "toy", "ngame")
    with client(tmp_path_factory.mktemp("served"), model) as running:
        yield running


@pytest.fixture(scope="module")
def boundaries(served: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {target.name: target for target in targets(tmp_path_factory.mktemp("fuzz"), served)}


def test_random_changes_are_accepted_or_refused_with_a_message(boundaries: dict[str, Target]) -> None:
    for name, target in boundaries.items():
        tally = fuzz(target, CASES, Random(zlib.crc32(name.encode())))
        assert not tally.failures, (name, tally.failures)
        assert tally.refused > CASES // 3, f"{name}: too few cases are bad to find anything"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_failed_once_has_a_message_now(boundaries: dict[str, Target], path: Path) -> None:
    case = json.loads(path.read_text())
    kind, reason = ended(boundaries[case["target"]], base64.b64decode(case["data"]))
    assert kind not in FAILURES, reason


def test_a_crash_a_bad_message_and_a_fault_are_failures() -> None:
    """Otherwise nothing would ever be found."""

    def run(data: bytes) -> None:
        if data == b"crash":
            raise KeyError(data)
        if data == b"silent":
            raise XCError("", expected="", do="")

        assert data != b"quiet"

    target = Target("a", "a", (b"fine",), lambda data, random: data, run)
    cases = {b"fine": "accepted", b"crash": "crash", b"silent": "crash", b"quiet": "quiet"}
    assert {data: ended(target, data)[0] for data in cases} == cases
    tally = fuzz(Target("a", "a", (b"fine",), lambda data, random: b"quiet", run), 3, Random(0))
    assert table([(target, tally), (target, Tally(tried=2, refused=2))]).splitlines()[2:] == [
        "| a | 2 | 5 | 2 | 0 | 0 | 3 | 0 |", "| all | 2 | 5 | 2 | 0 | 0 | 3 | 0 |",
    ]  # fmt: skip


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_seed_may_be_late_twice(late: int) -> None:
    """A server on a busy machine does not answer a request on a socket in time."""
    calls: list[bytes] = []

    def run(data: bytes) -> None:
        calls.append(data)
        if len(calls) <= late:
            raise ConfigError("nothing", expected="an answer", do="wait")

    target = Target("a", "a", (b"fine",), lambda data, random: data, run)
    if late < 3:
        assert fuzz(target, 2, Random(0)).accepted == 2
        return
    with pytest.raises(AssertionError, match=r"its own seed is .*refused"):
        fuzz(target, 2, Random(0))


LABELS = [{"uid": "L0", "score": 0.5}, {"uid": "L1", "score": 0.25}]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(),
        Answer(500, "application/json", b'{"found": "a", "expected": "b", "do": "c"}'),
        Answer(422, "application/json", b'{"found": "a", "expected": "", "do": "c"}'),
        Answer(422, "application/json", b'{"found": "%s", "expected": "b", "do": "c"}' % (b"a" * 3000)),
        Answer(200, "application/json", b'{"model":0,"answers":[]}'),
        Answer(200, "application/json", b'{"model":0,"answers":[[{"uid":"L0","score":NaN}]]}'),
        Answer(200, "application/json", b'{"model":0,"answers":[[{"uid":"L2","score":0.5}]]}'),
        Answer(200, "application/json", b'{"model":0,"answers":[%s]}' % json.dumps(LABELS[::-1]).encode()),
    ],
    ids=["nothing", "500", "no parts", "long", "an answer too few", "NaN", "excluded", "order"],
)
def test_a_response_that_breaks_a_rule_is_seen(answer: Answer) -> None:
    body, labels = b'{"text": "a", "exclude": ["L2"]}', frozenset({"L0", "L1", "L2"})
    check(Answer(200, "application/json", b'{"model":0,"answers":[%s]}' % json.dumps(LABELS).encode()), body, labels)
    with pytest.raises(AssertionError):
        check(answer, body, labels)


@pytest.mark.parametrize("number", [-0.1, 100.1, 101.0, float("nan")])
def test_an_accepted_setting_that_cannot_be_right_is_seen(number: float) -> None:
    config = ModelSettings(min_P_at_1=100.0)
    check_settings(config)
    object.__setattr__(config, "min_P_at_1", number)
    with pytest.raises(AssertionError, match=r"ModelSettings\.min_P_at_1"):
        check_settings(config)


ANYWHERE = ("../x", "a/b", "", ".", "..", "-a", "a b", "a|b", "x\n", "\udcff", "$HOME")


@pytest.mark.parametrize(("place", "name"), [(0, "a:b"), *((place, name) for place in (0, 1) for name in ANYWHERE)])
def test_an_accepted_name_that_another_program_reads_otherwise_is_seen(
    boundaries: dict[str, Target], monkeypatch: pytest.MonkeyPatch, name: str, place: int
) -> None:
    pair = [b"toy", b"ngame"]
    assert ended(boundaries["names"], b"\0".join(pair)) == ("accepted", "")
    pair[place] = os.fsencode(name)
    assert ended(boundaries["names"], b"\0".join(pair))[0] == "refused"
    for module in (names, workspace_module):
        monkeypatch.setattr(module, "checked_name", lambda kind, name: name)
    assert ended(boundaries["names"], b"\0".join(pair))[0] in FAILURES


def test_a_server_that_is_gone_is_seen(served: Client) -> None:
    served.by_socket(SEEDS[0])
    with pytest.raises(OSError):
        replace(served, port=1).by_socket(SEEDS[0])


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("[]{}&*!:-#\n ,'\"a1.", max_size=60))
def test_any_text_is_yaml_or_refused(text: str) -> None:
    try:
        yaml_of(text)
    except XCError as error:
        assert error.exit_code == 78 and error.found.isprintable()
