"""Where a module can be changed, and the changed source: operators of cosmic-ray, and two of our own.

cosmic-ray changes operators, numbers, conditions and loops. It never leaves out an argument or a call, and that is how
settings and filters were lost here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ARGUMENT, CALL = "argument left out", "call left out"
_QUIET = frozenset({"debug", "info", "warning", "report"})
"""Calls that only tell something."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of one module."""

    path: Path
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def place(self) -> tuple[Path, int, int, str]:
        """What it changes: the mutants ``a - b`` and ``a * b`` of ``a + b`` are one place."""
        return self.path, self.line, self.column, self.operator.split("_")[0]

    def applied(self, source: str) -> str | None:
        """Return the changed source; None if it is the same or no Python."""
        if self.operator in (ARGUMENT, CALL):
            changed: str | None = _left_out(source, self.operator, self.occurrence)
        else:
            try:
                changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
            except AttributeError:  # cosmic-ray cannot replace an exception with a dotted name, one of several
                return None
        return changed if changed != source and _is_python(changed) else None


def mutants(path: Path, source: str) -> list[Mutant]:
    """Return all mutants of a module.

    Annotations are left alone: nothing evaluates them. So are the options of a dataclass, such as ``frozen``: the type
    checker reads them, and tests/contracts/test_settings_contract.py.
    """
    tree, quiet = get_ast(source), _declarations(source)
    nodes = list(ast_nodes(tree))
    found = []
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue
        made = operator()
        places = (start for node in nodes for start, _ in made.mutation_positions(node))
        found += [Mutant(path, line, column, name, number) for number, (line, column) in enumerate(places)]
    for name in (ARGUMENT, CALL):
        nodes_left_out = _nodes(source, name)
        found += [Mutant(path, node.lineno, node.col_offset, name, at) for at, node in enumerate(nodes_left_out)]
    return sorted(one for one in found if not any(start <= (one.line, one.column) < end for start, end in quiet))


def sample(found: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """Draw ``size`` places with equal chances, and one mutant of each, in random order.

    A larger sample begins with the smaller one, so a run that is short of time and a later one count the same mutants.
    """
    by_place: dict[tuple[Path, int, int, str], list[Mutant]] = {}
    for mutant in found:
        by_place.setdefault(mutant.place, []).append(mutant)
    places = list(by_place)
    Random(seed).shuffle(places)
    return [Random(f"{seed} {place}").choice(by_place[place]) for place in places[:size]]


def _declarations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the first and last positions of all annotations and of the options of all dataclasses."""
    nodes: list[ast.expr | ast.keyword | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes.append(node.returns)
        elif isinstance(node, ast.Call) and _called(node) == "dataclass":
            nodes += node.keywords
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0))
        for node in nodes
        if node is not None
    ]


def _nodes(source: str, operator: str) -> list[ast.keyword | ast.Expr]:
    """Return what can be left out: keyword arguments of calls, or statements that are calls."""
    return list(_arguments(source) if operator == ARGUMENT else _calls(source))


def _arguments(source: str) -> Iterator[ast.keyword]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and not _called(node).endswith("Error"):
            yield from (word for word in node.keywords if word.arg is not None)


def _calls(source: str) -> Iterator[ast.Expr]:
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        value = value.value if isinstance(value, ast.Await) else value
        if isinstance(node, ast.Expr) and isinstance(value, ast.Call) and _called(value) not in _QUIET:
            yield node


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _left_out(source: str, operator: str, occurrence: int) -> str:
    """Return the source without an argument, its comma too, or with ``pass`` in the place of a statement."""
    node = _nodes(source, operator)[occurrence]
    start, end = _offset(source, node.lineno, node.col_offset), _offset(source, node.end_lineno, node.end_col_offset)
    if operator == CALL:
        return f"{source[:start]}pass{source[end:]}"
    rest = source[end:]
    spaces = len(rest) - len(rest.lstrip())
    return source[:start] + (rest[spaces + 1 :] if rest[spaces] == "," else rest)


def _offset(source: str, line: int | None, column: int | None) -> int:
    """Return the place in the text of a line, from 1, and a column in bytes of UTF-8, from 0."""
    assert line is not None and column is not None
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _is_python(source: str | None) -> bool:
    try:
        ast.parse(source or "(")
    except SyntaxError:
        return False
    return True
