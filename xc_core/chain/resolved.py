"""The resolved settings of every recipe, in one readable file each: ``python -m xc_core.chain.resolved`` writes them.

A test compares the files with the code, so a change of a default shows in a diff. DVC reads them too: an experiment is
resolved again when the file of its recipe changes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from xc_core import recipes
from xc_core.artifacts import write_file
from xc_core.chain.dataset import Dataset
from xc_core.chain.registry import Scope, versioned_stages
from xc_core.params import in_use
from xc_core.recipes import RECIPES

FOLDER: Final = Path(recipes.__file__).parent / "resolved"
_HEAD: Final = "# Written by `python -m xc_core.chain.resolved`; a test compares it with the code.\n"


def contents() -> dict[str, str]:
    """Return the content of every file by its name: of the recipes of this package, and of a dataset's stages."""
    built_in = (RECIPES[name] for name in RECIPES if RECIPES[name].module.startswith("xc_core.recipes."))
    files = {f"{recipe.name}.yaml": _yaml(_stages("experiment", recipe)) for recipe in built_in}
    default = Dataset("dataset")
    return files | {"dataset.yaml": _yaml(_stages("dataset", default))}


def _stages(scope: Scope, owner: Any) -> dict[str, Any]:
    return {
        stage.name: {"code_version": stage.code_version, "settings": _readable(getattr(owner, stage.name))}
        for stage in versioned_stages(scope)
    }


def _readable(settings: Any) -> Any:
    """Return settings in use; named parts as a mapping, which YAML keeps in order."""
    used = in_use(settings)
    return dict(used) if isinstance(used, list) else used


def _yaml(content: dict[str, Any]) -> str:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(content, out)
    return _HEAD + out.getvalue()


def differences() -> Iterator[str]:
    """Yield the names of files that differ from the code."""
    expected = contents()
    present = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.yaml")}
    yield from sorted(name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name))


if __name__ == "__main__":
    for name, text in contents().items():
        write_file(FOLDER / name, text)
