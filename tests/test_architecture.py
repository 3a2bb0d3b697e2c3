"""The structure of the code: names of stages, layers, sizes."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.cli import lint_imports
from ruamel.yaml import YAML

from assets.stages import ASSETS
from tests.source import MODULES, ROOT, nodes, tree
from tests.test_owners import ALLOWED, RULES
from xc_core.chain import STAGES, Workspace

HEAD_LINES, FUNCTION_LINES, FILE_LINES, PARAMETERS = 4, 50, 350, 7


@cache
def dvc_stages() -> dict[str, Any]:
    return dict(YAML(typ="safe").load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"])


def test_the_page_on_the_structure_has_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (declared,) = (one["layers"] for one in contracts if one.get("containers") == ["xc_core"])
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    written = re.findall(r"^\| \d+ \| (`.*?`) \|", page, re.MULTILINE)
    assert [set(re.findall(r"\w+", row)) for row in written] == [set(re.findall(r"\w+", row)) for row in declared]


@pytest.mark.parametrize(
    "package", ["xc_core/chain", "xc_core/lifecycle", "xc_core/planning", "xc_core/tune", "assets/release"]
)
def test_the_page_on_the_structure_says_what_each_module_does(package: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    written = {
        name for row in re.findall(r"^\| (`\w+\.py`.*?) \|", page, re.MULTILINE) for name in re.findall(r"\w+\.py", row)
    }
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    assert not modules - written


def test_what_the_pages_on_structure_and_decisions_name_in_a_module_is_there() -> None:
    pages = (ROOT / "docs/architecture.md", *(ROOT / "docs/decisions").glob("*.md"))
    named = [one for page in pages for one in re.findall(r"`(\w+)` in\s`([\w/]+\.py)`", page.read_text("utf-8"))]
    assert len(named) > 12
    code = {path: (ROOT / path).read_text("utf-8") for _, path in named}
    assert [(name, path) for name, path in named if not re.search(rf"^ *(def )?{name}\b", code[path], re.M)] == []


def test_the_page_has_the_version_of_each_library_whose_insides_are_used() -> None:
    """Whoever pins another one reads there what it may change."""
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    checked = re.findall(r"`([\w-]+)` (\d[\w.]*\d)", upgrades())
    assert len(checked) > 12
    assert checked == [(name, pinned[name]) for name, _ in checked]


def test_the_page_on_upgrades_names_what_is_there() -> None:
    named = re.findall(r"`((?:assets|pipelines|xc_core|tests)/[\w/.]+)`", upgrades())
    assert len(named) > 40
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_page_on_upgrades_names_each_module_that_may_know_the_insides_of_a_library() -> None:
    rules = ("Dagster", "MLflow", "DVC", "private names", "words of errors")
    knowing = {RULES[name].owner for name in rules} | {module for name, module in ALLOWED if name in rules}
    assert not {module for module in knowing if module and f"`{module}`" not in upgrades()}


@cache
def upgrades() -> str:
    """The section on what an upgrade of another program touches."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    return page.partition("\n## Upgrades of other programs\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_one_name_everywhere(name: str) -> None:
    """Its module, its asset, its data folder, its DVC stage, its settings file."""
    stage = STAGES[name]
    assert callable(import_module(f"xc_core.stages.{name}").run)
    assert [name] in [[key.to_user_string() for key in asset.keys] for asset in ASSETS]
    assert Workspace(ROOT).folder(name, "a", "b").name == name
    if not stage.versioned:
        assert name not in dvc_stages()
        return
    entry = dvc_stages()[name]["do"]
    assert entry["cmd"].split()[:3] == ["xc", "run", name]
    assert [Path(folder).name for out in entry["outs"] for folder in out] == [name]
    assert f"settings/{name}.json" in str(entry["deps"])


def test_dvc_knows_no_stage_that_the_registry_does_not() -> None:
    assert set(dvc_stages()) - set(STAGES) == {"settings", "dataset-settings"}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_opens_with_what_it_is_for(module: str) -> None:
    """One to three lines; a package or a module with more to explain may add a paragraph after them."""
    head = (ast.get_docstring(tree(module)) or "").split("\n\n")[0].splitlines()
    assert head, f"{module} has no docstring"
    assert head[-1].rstrip().endswith((".", "?", ":", "::")), f"{module} opens with {head}"
    assert len(head) < HEAD_LINES, f"{module} opens with {len(head)} lines"


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_functions_are_small(module: str) -> None:
    lines = len((ROOT / module).read_text("utf-8").splitlines())
    assert lines <= FILE_LINES, f"{module} has {lines} lines"
    for node in nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{module}: {node.name} has {length} lines"
            taken = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            taken = taken[1:] if taken[:1] in (["self"], ["cls"]) else taken
            assert len(taken) <= PARAMETERS, f"{module}: {node.name} takes {taken}"


@pytest.mark.parametrize("module", MODULES)
def test_polars_takes_no_path_for_a_pattern(module: str) -> None:
    """Otherwise a project in a folder such as "data [1]" cannot be read. read_parquet_schema has no such argument."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and re.fullmatch(r"pl\.(read|scan)_\w+", name := ast.unparse(node.func)):
            patterns = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "glob"]
            assert patterns == ["False"] or name == "pl.read_parquet_metadata", f"{module}:{node.lineno}"


def test_a_package_file_holds_no_code_of_its_own() -> None:
    """It exports what its modules define."""
    for module in MODULES:
        if module.endswith("__init__.py"):
            made = [n.name for n in nodes(module) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            assert not made, f"{module} defines {made}"


@pytest.mark.parametrize("module", MODULES)
def test_a_name_is_imported_from_the_module_that_defines_it(module: str) -> None:
    """``import name as name`` offers it under a second path; mypy refuses an import from there without it."""
    found = [alias.name for node in nodes(module) if isinstance(node, ast.ImportFrom) for alias in node.names
             if alias.asname == alias.name]  # fmt: skip
    assert not found, f"{module} offers names of other modules: {', '.join(found)}"


def test_no_modules_import_each_other() -> None:
    """Imports for types count too."""
    graph = grimp.build_graph("xc_core", "assets", "pipelines", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


def test_the_import_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """pipelines -> assets -> xc_core, ranks inside xc_core, no Dagster, MLflow or DVC in the library."""
    monkeypatch.chdir(ROOT)
    code = lint_imports(no_cache=True)
    assert code == 0, capsys.readouterr().out
