"""The SBOM: valid, the same for the same packages wherever they are, without a path of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supply import sbom
from supply.rules import Rules
from tests.supply.packages import put
from xc_core.errors import DataError, UnavailableError

RULES = Rules(allowed=frozenset({"MIT"}), names={"mit/x11": "MIT"})
PROJECT = '[project]\nname = "our-thing"\nversion = "0.2.0"\nlicense = "MIT"\ndependencies = ["clear"]\n'


def environment(folder: Path) -> Path:
    """Make an environment with three packages; return its Python."""
    python = sbom.empty_environment(folder)
    site = sbom.site_packages(python)
    put(site, "our-thing", "License-Expression: MIT", "Requires-Dist: clear", version="0.2.0")
    (site / "our_thing-0.2.0.dist-info/direct_url.json").write_text(
        json.dumps({"url": f"file://{folder}/our_thing.whl", "archive_info": {}})
    )
    put(site, "clear", "License-Expression: MIT", "Requires-Dist: vague")
    put(site, "vague", "License: MIT/X11")
    return python


def test_an_sbom_is_valid_complete_and_the_same_anywhere(tmp_path: Path) -> None:
    texts = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(PROJECT)
        python = environment(tmp_path / name / "environment")
        texts.append(sbom.described(python, tmp_path / name, 1_700_000_000, RULES))
    assert texts[0] == texts[1]
    content = json.loads(texts[0])
    assert content["bomFormat"] == "CycloneDX"
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    root = content["metadata"]["component"]
    assert (root["name"], root["version"]) == ("our-thing", "0.2.0")
    components = {one["name"]: one for one in content["components"]}
    assert {name: one["purl"] for name, one in components.items()} == {
        "clear": "pkg:pypi/clear@1.0",
        "vague": "pkg:pypi/vague@1.0",
    }
    assert components["clear"]["licenses"] == [{"license": {"id": "MIT", "acknowledgement": "declared"}}]
    assert components["vague"]["licenses"] == [{"expression": "MIT", "acknowledgement": "concluded"}]
    edges = {one["ref"]: one.get("dependsOn", []) for one in content["dependencies"]}
    assert edges == {root["bom-ref"]: ["clear==1.0"], "clear==1.0": ["vague==1.0"], "vague==1.0": []}
    assert str(tmp_path) not in texts[0]


def test_what_does_not_follow_the_schema_or_names_a_file_is_refused() -> None:
    good = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": []}
    sbom.check(json.dumps(good), [Path("/home/me")])
    with pytest.raises(DataError, match="does not follow the schema"):
        sbom.check(json.dumps({**good, "version": "one"}), [])
    for value in ("see /home/me/project", "file:///srv/wheels/a.whl"):
        component = {"type": "library", "name": "a", "description": value}
        with pytest.raises(DataError, match=f"names files of this machine: {value}"):
            sbom.check(json.dumps({**good, "components": [component]}), [Path("/home/me")])


def test_a_package_that_cannot_be_installed_is_reported(tmp_path: Path) -> None:
    python = sbom.empty_environment(tmp_path / "environment")
    with pytest.raises(UnavailableError, match=r"pip cannot install .*absent\.whl"):
        sbom.install(python, str(tmp_path / "absent.whl"), "--no-index")
