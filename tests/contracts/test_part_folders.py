"""A module in the folder of a table is enough to add a part: importing the package imports all of its modules."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

PACKAGES = ("ann", "data.formats", "encoders", "fusion", "losses", "recipes", "sampling", "scores")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_parts_imports_every_module_of_its_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, imported = importlib.import_module(f"xc_core.{name}"), list[str]()
    monkeypatch.setattr(importlib, "import_module", imported.append)
    importlib.reload(package)
    modules = {path.stem for path in Path(str(package.__file__)).parent.glob("*.py")} - {"__init__"}
    assert modules <= {module.removeprefix(f"xc_core.{name}.") for module in imported}
