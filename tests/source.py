"""The modules of the code and their syntax trees, for the tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("xc_core", "assets", "pipelines")

MODULES = sorted(path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text("utf-8"))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Return all nodes of the tree: to walk it takes longer than to parse it, and many rules do."""
    return tuple(ast.walk(tree(module)))
