"""What every option of every command must have: help, its default in the help, a dataset that is not guessed."""

from __future__ import annotations

import click
import pytest

from xc_core.cli.main import cli

OPTIONS = [
    (name, option)
    for name in cli.list_commands(click.Context(cli))
    if (command := cli.get_command(click.Context(cli), name)) is not None
    for option in command.params
    if isinstance(option, click.Option)
]
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


def test_every_command_asks_for_its_dataset() -> None:
    optional = {name for name, option in OPTIONS if option.opts == ["--dataset"] and not option.required}
    assert optional == set(WITHOUT_DATASET)
