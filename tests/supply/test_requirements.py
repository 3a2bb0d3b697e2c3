"""What pyproject.toml requires can be installed without constraints.txt too, with the newest version of everything."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import Specifier

ROOT = Path(__file__).resolve().parents[2]


def required() -> dict[str, list[Requirement]]:
    """Return the requirements of the project, under an empty name, and those of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


def test_boto3_has_the_bound_of_the_library_that_limits_it() -> None:
    """Without bounds `pip install -e '.[s3]'` tried 66 versions of aiobotocore and found none in seven minutes.

    pip takes the newest boto3 first, and no aiobotocore works with a boto3 of the same week. 3.10 has no extra for it.
    """
    groups = required()
    named = {group: {line.name: line for line in lines} for group, lines in groups.items()}
    assert {"boto3", "aiobotocore", "dvc-s3"} <= named["s3"].keys(), "MLflow stores artefacts in S3 with boto3"
    limits = {str(lines["boto3"].specifier) for lines in named.values() if "boto3" in lines}
    assert len(limits) == 1 and "<" in limits.pop(), "one bound for all extras"
    assert {operator for operator, _ in map(split, named["s3"]["aiobotocore"].specifier)} == {">=", "<"}


def test_the_versions_of_constraints_txt_are_allowed() -> None:
    lines = map(str.strip, (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    pinned = {one.name: one.specifier for line in lines if line and line[0] != "#" for one in [Requirement(line)]}
    wrong = [
        f"{line} but {line.name}{pinned[line.name]}"
        for needed in required().values()
        for line in needed
        if line.name in pinned and not all(line.specifier.contains(one.version) for one in pinned[line.name])
    ]
    assert not wrong


def split(one: Specifier) -> tuple[str, str]:
    return one.operator, one.version
