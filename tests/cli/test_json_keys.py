"""Each key that a command prints with ``--json`` is in the table of docs/data-formats.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from tests.cli.conftest import NGAME, TOY, Xc
from tests.conftest import ToyWorld
from tests.source import ROOT
from xc_core.chain import Workspace
from xc_core.cli.main import cli
from xc_core.lifecycle.update import update

SIZES = ("--documents", 3000, "--labels", 200, "--tokens", 12, "--set", "encoder.encoder.name=bag", "--dim", 16)
ASKED: dict[str, tuple[tuple[object, ...], ...]] = {
    "drift": (NGAME,),
    "status": ((),),
    "compare": ((*TOY, "ngame:classifier", "ngame"), (*TOY, "ngame:classifier", "ngame", "--on", "validation")),
    "ablate": (NGAME,),
    "plan": (SIZES,),
    "predict": ((*NGAME, "falcon"),),
}
"""Each command with ``--json``, and arguments that make it print."""


def documented() -> dict[str, list[str]]:
    """Return the keys in the table, by command."""
    page = (ROOT / "docs/data-formats.md").read_text("utf-8")
    table = page.partition("\n## Output of `--json`\n")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    name = ""
    for command, keys in re.findall(r"^\| (?:`xc ([\w-]+)`)? ?\| (`.*?`) \|", table, re.MULTILINE):
        name = command or name
        found.setdefault(name, []).extend(re.findall(r"`(.+?)`", keys))
    return found


def printed(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the key of each value that is neither an object nor a list of objects, with those that it is in."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from printed(part, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for part in value:
            yield from printed(part, f"{prefix}[]")
    else:
        yield prefix


def unknown(command: str, key: str) -> bool:
    """Return True if the table does not have a key of a command; a word in capitals stands for any name."""
    table = documented()
    if command == "status" and key.startswith("drift.") and not unknown("drift", key.removeprefix("drift.")):
        return False
    patterns = (re.sub(r"(?<![a-z\\])[A-Z]{3,}", ".+", re.escape(known)) for known in table[command])
    return not any(re.fullmatch(pattern, key) for pattern in patterns)


def test_the_commands_are_those_with_the_option() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    found = {
        name
        for name, command in commands.items()
        if command and any("--json" in parameter.opts for parameter in command.params)
    }
    assert found == ASKED.keys() == documented().keys()


@pytest.mark.parametrize("command", ASKED)
def test_each_key_is_documented(xc: Xc, own: Workspace, command: str) -> None:
    if command == "status":
        world = ToyWorld.make()
        world.train, world.test = [world.train[0] | {"uid": "NEW"}], []
        update(own, world.write(own.root / "new"), "toy")
        xc("drift", *NGAME)
    keys = set[str]()
    for arguments in ASKED[command]:
        ended = xc(command, *arguments, "--json")
        assert ended.code == 0, ended.err
        keys |= {key for line in ended.out.splitlines() for key in printed(json.loads(line))}
    assert len(keys) > 4
    assert sorted(key for key in keys if unknown(command, key)) == []
    if command == "status":
        assert {"split", "validation_file", "last_change.number", "drift.line", "drift.verdict.answer"} <= keys


def test_a_key_that_nobody_documented_is_seen() -> None:
    assert unknown("status", "new_key") and unknown("status", "drift.new_key")
    assert unknown("compare", "metrics.P_at_1.new_key") and unknown("compare", "[].uid")
