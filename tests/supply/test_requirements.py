"""What pyproject.toml requires can be installed without constraints.txt too, with the newest version of everything."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def required() -> dict[str, list[Requirement]]:
    """Return the requirements of the project, under an empty name, and those of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


def test_boto3_comes_with_the_library_that_limits_it() -> None:
    """`pip install -e '.[s3]'` had tried 66 versions of aiobotocore and found none after seven minutes.

    boto3 was named too: pip takes its newest version first, and no aiobotocore works with a boto3 of the same week.
    """
    groups = required()
    assert {group for group, lines in groups.items() for line in lines if line.name in ("boto3", "botocore")} == set()
    for group, lines in groups.items():
        names = {line.name: line for line in lines}
        if "dvc-s3" in names or "aiobotocore" in names:
            assert names["aiobotocore"].extras == {"boto3"}, group
            assert not names["aiobotocore"].specifier.contains("2.13.2"), "older ones name no boto3 that they work with"
