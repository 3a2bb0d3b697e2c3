"""The resolved settings of every recipe, one file each: they are what the recipes are, and a difference is found."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from xc_core.chain import STAGES
from xc_core.chain import resolved as module
from xc_core.chain.dataset import Dataset
from xc_core.chain.resolved import FOLDER, contents, differences
from xc_core.params import in_use
from xc_core.plugins import Part
from xc_core.recipes import RECIPES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, which a test may change."""
    monkeypatch.setattr(module, "FOLDER", Path(shutil.copytree(FOLDER, tmp_path / "resolved")))
    return module.FOLDER


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text("utf-8"))


def test_the_files_are_what_the_recipes_resolve_to() -> None:
    assert list(differences()) == [], "run: python -m xc_core.chain.resolved"


def test_there_is_a_file_for_every_recipe_of_this_package_and_for_a_dataset() -> None:
    own = {name for name in RECIPES if RECIPES[name].module.startswith("xc_core.recipes.")}
    assert {path.stem for path in FOLDER.iterdir()} == own | {"dataset"}
    assert len(own) >= 22


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_a_file_has_the_settings_in_use_of_every_stage_in_the_order_of_the_pipeline(name: str) -> None:
    owner = Dataset("dataset") if name == "dataset" else RECIPES[name]
    scope = "dataset" if name == "dataset" else "experiment"
    found = read(FOLDER / f"{name}.yaml")
    assert list(found) == [stage.name for stage in STAGES.values() if stage.scope == scope and stage.versioned]
    for stage, content in found.items():
        used = in_use(getattr(owner, stage))
        settings = list(map(list, content["settings"].items())) if isinstance(used, list) else content["settings"]
        assert content == {"code_version": STAGES[stage].code_version, "settings": content["settings"]}
        assert settings == used, stage


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("margin: 0.3", "margin: 0.4"),
        ("kind: triplet", "kind: supcon"),
        ("code_version: '1'", "code_version: '2'"),
        ("refit: true", "refit: false"),
        ("seed: 0\n", ""),
    ],
)
def test_a_planted_difference_is_found(old: str, new: str, folder: Path) -> None:
    path = folder / "ngame.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert list(differences()) == ["ngame.yaml"]


def test_a_file_that_is_missing_or_too_many_is_found(folder: Path) -> None:
    (folder / "astra.yaml").unlink()
    (folder / "dataset.yaml").rename(folder / "another.yaml")
    assert list(differences()) == ["another.yaml", "astra.yaml", "dataset.yaml"]


def test_a_changed_recipe_and_a_changed_code_version_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = RECIPES["renee"].variant("renee", "a paper", RECIPES["renee"].module, {"encoder": {"epochs": 9.0}})
    with monkeypatch.context() as patch:
        patch.setitem(RECIPES._parts, "renee", changed)
        assert list(differences()) == ["renee.yaml"]
    monkeypatch.setattr(module, "versioned_stages", lambda scope: [])
    assert list(differences()) == sorted(contents())


def test_a_recipe_of_another_package_has_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stray = RECIPES["ngame"].variant("stray", "a paper", "another.recipes", {"encoder": {"epochs": 9.0}})
    monkeypatch.setitem(RECIPES._parts, "stray", stray)
    assert list(differences()) == []


def test_the_command_writes_every_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs as a script, so what it finds and where it writes is set from outside."""
    (folder / "ngame.yaml").write_text("changed by hand\n")
    before = contents()
    monkeypatch.setattr("xc_core.recipes.__file__", str(tmp_path / "__init__.py"))
    monkeypatch.delitem(__import__("sys").modules, "xc_core.chain.resolved")
    runpy.run_module("xc_core.chain.resolved", run_name="__main__")
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == before


def test_parts_are_readable_with_their_kind() -> None:
    encoder = read(FOLDER / "ngame.yaml")["encoder"]["settings"]
    loss = RECIPES["ngame"].encoder.loss
    assert isinstance(loss, Part)
    assert encoder["loss"] == {"kind": "triplet", "margin": 0.3, "hardest": 10, "positives": 1, "temperature": 0.1}
    scores = read(FOLDER / "house.yaml")["scores"]["settings"]
    assert list(scores) == list(RECIPES["house"].scores)
