"""What every option of every command must have: help, its default in the help, a dataset that is not guessed."""

from __future__ import annotations

import os

import click
import pytest

from tests.cli.conftest import Xc
from xc_core.cli.main import cli
from xc_core.cli.options import Names, Number, _use_device
from xc_core.devices import Device
from xc_core.errors import UsageError

COMMANDS = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
OPTIONS = [
    (name, option)
    for name, command in {"": cli, **COMMANDS}.items()
    if command is not None
    for option in command.params
    if isinstance(option, click.Option)
]
"""All options, by the name of their command; those of ``xc`` itself have none."""
WITHOUT_DATASET = {
    "demo": "runs on the bundled dataset",
    "plan": "takes sizes instead",
    "predict": "answers with a model folder instead",
    "serve": "serves a model folder instead",
    "status": "shows all datasets",
}
"""Commands that can run without --dataset, and why."""


@pytest.mark.parametrize("option", [pytest.param(option, id=f"{name} {option.opts[0]}") for name, option in OPTIONS])
def test_every_option_has_help_that_shows_its_default(option: click.Option) -> None:
    text = option.help or ""
    assert len(text.split()) >= 2, "help of at least two words"
    default = option.get_default(click.Context(cli))
    if isinstance(default, str | int | float) and not option.is_flag and not option.multiple:
        shown = option.get_help_extra(click.Context(cli))
        assert "default" in shown or "default" in text, f"--help does not show the default {default}"


def test_names_are_completed_by_their_beginning_and_shown_in_the_help() -> None:
    context, kind = click.Context(cli), Names("stage", ["model", "audit"], "auto")
    asked, given = click.Argument(["stage"], type=kind), click.Option(["--until"], type=kind)
    assert [item.value for item in kind.shell_complete(context, asked, "au")] == ["auto", "audit"]
    assert kind.shell_complete(context, asked, "del") == []
    assert (kind.get_metavar(asked, context), kind.get_metavar(given, context)) == (
        "{auto|model|audit}", "[auto|model|audit]",
    )  # fmt: skip


def test_a_number_may_be_one_of_its_bounds() -> None:
    share, option = Number(0, 1), click.Option(["--share"])
    assert [share.convert(text, option, None) for text in ("0", "0.5", "1")] == [0.0, 0.5, 1.0]
    for text in ("-0.1", "1.1"):
        with pytest.raises(UsageError, match=f"--share {text}\n  expected: a number from 0 to 1\n"):
            share.convert(text, option, None)


def test_a_device_is_used_by_this_process_and_those_that_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_DEVICE", "auto")
    param = click.Option(["--device"])
    _use_device(click.Context(cli), param, None)
    assert os.environ["XC_DEVICE"] == "auto"
    monkeypatch.setattr("xc_core.devices.Device.of", lambda name: Device(name))
    _use_device(click.Context(cli), param, "cuda:1")
    assert os.environ["XC_DEVICE"] == "cuda:1"


def test_every_command_that_runs_an_encoder_takes_a_device() -> None:
    computing = {"train", "tune", "run", "evaluate", "drift", "add-labels", "predict", "serve"}
    assert {name for name, option in OPTIONS if "--device" in option.opts} == computing


def test_every_command_asks_for_its_dataset() -> None:
    optional = {name for name, option in OPTIONS if option.opts == ["--dataset"] and not option.required}
    assert optional == set(WITHOUT_DATASET)


@pytest.mark.parametrize(
    ("command", "form"),
    [
        ("ingest", "--allow KIND"), ("ingest", "--fields COLUMN"), ("ingest", "--allow-loss SHARE"),
        ("update", "--allow KIND"), ("forget", "--document UID"), ("forget", "--label UID"), ("predict", "--part I/N"),
        ("train", "--set STAGE.FIELD=VALUE"), ("plan", "--set STAGE.FIELD=VALUE"), ("tune", "--set STAGE.FIELD=VALUE"),
        ("train", "--budget TIME"), ("tune", "--budget TIME"), ("tune", "--space FILE"),
        ("train", "--until [corpus|tokens|"), ("serve", "--device NAME"),
    ],
)  # fmt: skip
def test_the_help_shows_what_the_value_of_an_option_looks_like(xc: Xc, command: str, form: str) -> None:
    assert f"  {form}" in xc(command, "--help").out
