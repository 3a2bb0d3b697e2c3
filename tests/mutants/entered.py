"""Which tests enter which statement, found by one traced run, so that a mutant is judged by the tests that can see it.

Lines that run while modules are imported belong to every test, lines that run in a fixture of a wider scope to every
test that uses it. Processes that a test starts are not traced: a line that only they enter is judged by all tests.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

IMPORT = ""
"""What runs while no test runs."""
SECONDS = ("cpu_s", "asleep_s", "wall_s")
"""What the traced run took: on a processor, asleep and on the clock."""


class Tracer:
    """A plugin of pytest that notes the lines that each test and each shared fixture enters in some modules."""

    def __init__(self, tree: Path, modules: list[Path], out: Path) -> None:
        self.files, self.out = {str(tree / path): str(path) for path in modules}, out
        self.now = IMPORT
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.users: dict[str, list[str]] = {}

    def start(self) -> None:
        """Trace this process from now on."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines[self.now].add((self.files[frame.f_code.co_filename], frame.f_lineno))
        return self._line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.now = item.nodeid
        for name in (item.nodeid, *(f"fixture {name}" for name in item.fixturenames)):  # type: ignore[attr-defined]
            self.users.setdefault(name, []).append(item.nodeid)
        try:
            return (yield)
        finally:
            self.now = IMPORT

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self.now
        if fixturedef.scope != "function":
            self.now = f"fixture {fixturedef.argname}"
        try:
            return (yield)
        finally:
            self.now = before

    def pytest_sessionfinish(self) -> None:
        lines = {name: sorted(found) for name, found in self.lines.items()}
        self.out.write_text(json.dumps({"lines": lines, "users": self.users}), "utf-8")


@dataclass(frozen=True)
class Entered:
    """What a traced run found."""

    lines: dict[tuple[str, int], set[str]]
    """The tests that enter each line of each module; ``IMPORT`` is among them if it runs at import."""
    cpu_s: float
    asleep_s: float
    wall_s: float
    changed: tuple[str, ...] = ()
    """Files of tests that are new or have changed since; they judge every mutant."""

    @classmethod
    def read(cls, content: dict[str, Any], changed: tuple[str, ...] = ()) -> Entered:
        """Return what a tracer wrote, with the seconds of the run."""
        lines = defaultdict(set)
        for name, found in content["lines"].items():
            for file, line in found:
                lines[file, line].update(content["users"].get(name, [IMPORT]))
        return cls(lines, **{name: content[name] for name in SECONDS}, changed=changed)

    def tests(self, path: Path, source: str, line: int) -> list[str] | None:
        """Return the tests that enter the statement at a line, in order; None if any test may see it."""
        found: set[str] = set()
        for number in statement(source, line):
            found |= self.lines.get((str(path), number), set())
        if IMPORT in found or not found:
            return None
        return [*self.changed, *sorted(test for test in found if test.split("::")[0] not in self.changed)]


def statement(source: str, line: int) -> range:
    """Return the lines of the innermost statement at a line; of one with a body, those before its body."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            if line < end:
                best = range(node.lineno, max(end, node.lineno + 1))
    return best
