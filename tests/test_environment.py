"""Numbers and names in environment variables: what is no plain number, or none in range, is refused with a message."""

from __future__ import annotations

import os

import pytest

from xc_core.distributed import World
from xc_core.environment import checkpoint_seconds, device_name, number, whole
from xc_core.errors import ConfigError


@pytest.mark.parametrize(("text", "value"), [("", 30.0), ("0", 0.0), ("2.5", 2.5), ("1e3", 1000.0)])
def test_a_number_is_read_and_an_empty_variable_is_not_set(
    monkeypatch: pytest.MonkeyPatch, text: str, value: float
) -> None:
    monkeypatch.setenv("XC_NUMBER", text)
    assert number("XC_NUMBER", 30.0) == value


WRONG = ["nan", "inf", "-inf", "1e999", "-0.5", " ", " 60", "60 ", "６０", "often", "0x3c", "1" * 5000]


@pytest.mark.parametrize("text", [*WRONG, "1000000001"])
def test_another_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XC_NUMBER", text)
    with pytest.raises(ConfigError) as caught:
        number("XC_NUMBER", 30.0)
    assert caught.value.found.startswith(f"XC_NUMBER='{text[:9]}")
    assert caught.value.expected == "a number from 0 to 1,000,000,000"
    assert caught.value.do == "fix XC_NUMBER, or unset it"


@pytest.mark.parametrize("text", [*WRONG, "2.0", "-1", "0", "1_0", "9999999999"])
def test_another_whole_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XC_NUMBER", text)
    with pytest.raises(ConfigError, match=r"expected: a whole number from 1 to 1,000,000,000"):
        whole("XC_NUMBER", 2, least=1)


def test_checkpoints_are_a_minute_apart_by_default_and_may_follow_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (("", 60.0), ("0.5", 0.5), ("-1", -1.0)):
        monkeypatch.setenv("XC_CHECKPOINT_SECONDS", text)
        assert checkpoint_seconds() == seconds


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "CPU", "cuda:0 ", "cuda:１", "cuda:" + "9" * 5000])
def test_a_wrong_name_of_a_device_is_refused_without_torch(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XC_DEVICE", text)
    with pytest.raises(ConfigError, match="auto, cpu, cuda or cuda:N"):
        device_name()


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE"])
def test_a_process_whose_number_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "two")
    with pytest.raises(ConfigError, match=f"{variable}='two'"):
        World.from_environment()


@pytest.mark.parametrize(("rank", "size"), [("1", ""), ("2", "2")])
def test_a_process_outside_its_group_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    """Left over from another program, RANK=1 alone made a process that wrote and said nothing."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ConfigError, match=f"RANK={rank} of"):
        World.from_environment()


def test_no_test_reads_the_addresses_of_whoever_runs_it() -> None:
    """A fixture deleted this one for the session, but after its first test the environment was set back."""
    assert "MLFLOW_TRACKING_URI" not in os.environ
