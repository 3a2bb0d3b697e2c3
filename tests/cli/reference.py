"""The page docs/commands.md, made from the commands themselves: ``python -m tests.cli.reference`` writes it again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from xc_core.cli.main import cli

PAGE: Final = Path(__file__).parents[2] / "docs" / "commands.md"
_HEAD: Final = """\
# Commands

Every command with its arguments and options, as `xc COMMAND --help` shows them; the commands write this page. The
[runbook](runbook.md) says when to use which, the [tutorial](tutorial.md) starts with the first ones."""


def page() -> str:
    """Return the text of the page."""
    context = click.Context(cli, info_name="xc", help_option_names=cli.context_settings["help_option_names"])
    commands = {name: command for name in cli.list_commands(context) if (command := cli.get_command(context, name))}
    lines = [f"| [xc {name}](#xc-{name}) | {_cell(own.get_short_help_str(200))} |" for name, own in commands.items()]
    table = "\n".join(("| command | what it does |", "| --- | --- |", *lines))
    sections = [_HEAD, *_section(context, cli), table]
    for name, command in commands.items():
        own = click.Context(command, info_name=name, parent=context)
        sections += [f"## xc {name}", *_section(own, command)]
    return "\n\n".join(sections) + "\n"


def _section(context: click.Context, command: click.Command) -> Iterator[str]:
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield f"```\n{usage}\n```"
    yield from _paragraphs(command.help or "")
    shown = command.get_params(context) if command is cli else command.params  # --help once
    rows = [_row(parameter, context) for parameter in shown]
    yield "\n".join(("| argument or option | meaning |", "| --- | --- |", *rows))
    if command.epilog:
        yield from _paragraphs(command.epilog)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs on one line each; those whose lines click keeps, as a block of code."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = part.startswith("\b\n")
        yield f"```\n{part[2:]}\n```" if kept else " ".join(part.split())


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """Return the line of an argument or option: its names and the form of its value, and its help."""
    if isinstance(parameter, click.Option):
        record = parameter.get_help_record(context)
        assert record is not None, f"{context.command_path} {parameter.name} is hidden"
        names, text = record
    else:
        names, text = parameter.make_metavar(context), "[required]" if parameter.required else "[optional]"
    return f"| `{_cell(names)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    """Return a text for a cell of a table: on one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
