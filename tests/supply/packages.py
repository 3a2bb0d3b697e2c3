"""Installed packages that exist only as metadata."""

from __future__ import annotations

from importlib.metadata import Distribution, PathDistribution
from pathlib import Path


def put(site: Path, name: str, *fields: str, version: str = "1.0") -> Distribution:
    """Write the metadata of a package into a folder of installed packages; return the package."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    head = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    (folder / "METADATA").write_text("\n".join([*head, *fields]) + "\n", "utf-8")
    return PathDistribution(folder)
