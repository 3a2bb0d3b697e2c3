"""Copies of registered models whose files are not on a disk of this machine: few, and deleted with the process.

MLflow leaves a copy to its caller. A server that tries a broken version every minute would fill the disk with copies.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from xc_core.leftovers import drop

_KEPT: Final = 3
"""Versions of a model, at most: the one that answers, the next one, and the one that the gate compares them with."""


def destination(uri: str, name: str, version: str) -> str | None:
    """Return an empty folder for a copy of a version; None if its files are here, so that MLflow copies nothing.

    An earlier copy of the version is deleted, and the oldest copies of the model; an open file outlives that.
    """
    if _is_here(uri):
        return None
    home = Path(_folder().name) / name
    home.mkdir(exist_ok=True)
    place = home / str(version)
    drop(place)
    older = sorted(home.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in older[: max(len(older) - _KEPT + 1, 0)]:
        drop(path)
    place.mkdir()
    return str(place)


def _is_here(uri: str) -> bool:
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository

    found: Any = ModelsArtifactRepository(uri)
    while isinstance(found, ModelsArtifactRepository):
        found = found.repo
    return isinstance(found, LocalArtifactRepository)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="xc-models-")


def bundle_name(folder: Path) -> str:
    """Return the name of the packed model in the folder of a version."""
    from ruamel.yaml import YAML

    content = YAML(typ="safe").load((folder / "MLmodel").read_text("utf-8"))
    return Path(content["flavors"]["python_function"]["artifacts"]["bundle"]["path"]).name
