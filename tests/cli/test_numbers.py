"""Numbers on the command line: no command takes one that is not finite or that no machine can count to."""

from __future__ import annotations

import click
import pytest
from click.types import FloatParamType, IntParamType

from tests.cli.conftest import NGAME, TOY, Xc
from xc_core.chain import Workspace
from xc_core.cli.main import cli
from xc_core.cli.numbers import MOST
from xc_core.cli.options import Number
from xc_core.errors import UsageError


def numbers() -> list[tuple[str, click.Parameter]]:
    """Return every number of every command."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return [
        (name, param)
        for name, command in commands.items()
        if command is not None
        for param in command.params
        if isinstance(param.type, IntParamType | FloatParamType)
    ]


@pytest.mark.parametrize(("command", "param"), numbers(), ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize("text", ["99999999999999999999", "-99999999999999999999", "1e300", "nan", "inf", "-inf"])
def test_a_number_out_of_all_bounds_is_refused(command: str, param: click.Parameter, text: str) -> None:
    with pytest.raises((UsageError, click.BadParameter)):
        param.type.convert(text, param, click.Context(cli))


def test_every_number_that_need_not_be_whole_has_the_type_that_is_finite() -> None:
    found = {
        f"{name} {param.opts[0]}": param.type for name, param in numbers() if isinstance(param.type, FloatParamType)
    }
    assert found.keys() >= {"ingest --allow-loss", "predict --tail", "serve --poll", "serve --seconds", "plan --tokens"}
    assert all(isinstance(kind, Number) for kind in found.values()), found


def test_there_are_numbers_and_ordinary_ones_are_taken() -> None:
    found = {(command, str(param.name)): param for command, param in numbers()}
    assert len(found) > 20
    port = found["serve", "port"]
    assert (port.type.convert("80", port, None), port.type.convert(str(-MOST), port, None)) == (80, -MOST)
    with pytest.raises(UsageError, match=f"--port '{MOST + 1}'\n  expected: a whole number up to 1,000,000,000,000"):
        port.type.convert(str(MOST + 1), port, None)
    share = found["ingest", "validation_fraction"]
    assert share.type.convert("0.25", share, None) == 0.25
    assert click.INT.convert(str(10 * MOST), None, None) == 10 * MOST, "click's own type is as it was"


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", *NGAME, "--seconds", "inf"),
        ("serve", *NGAME, "--seconds", 10**9),
        ("serve", *NGAME, "--threads", 2_000_000_000),
        ("serve", *NGAME, "--poll", "nan"),
        ("plan", "--documents", 10**20, "--labels", 5, "--tokens", 5, "--recipe", "ngame"),
        ("promote", *TOY, "--version", 10**20),
        ("lineage", *TOY, 10**20),
        ("predict", *NGAME, "-k", 10**20, "a"),
    ],
)
def test_a_command_says_what_is_wrong_with_a_number(xc: Xc, fresh: Workspace, arguments: tuple[object, ...]) -> None:
    ended = xc(*arguments)
    assert ended.code in (2, 64, 78), ended.err
    assert "Traceback" not in ended.err


def test_the_numbers_of_a_command_are_bounded_once() -> None:
    """Commands that ran in one process made each other slower, and from a thousand on failed."""
    context = click.Context(cli)
    first, second = ([param.type for param in cli.get_command(context, "serve").params] for _ in range(2))  # type: ignore[union-attr]
    assert all(one is two for one, two in zip(first, second, strict=True))
