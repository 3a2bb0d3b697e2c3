"""Files of MLflow in a project that was moved or copied: MLflow keeps absolute paths, and looks where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assets.mlflow_errors import if_there
from assets.settings import local_folder


def moved_files(location: str, name: str, artifact_root: str) -> Path | None:
    """Return where files are now that MLflow looks for at ``location``; None if they are not there.

    They are at the same place under ``artifact_root``: in the folder of the experiment of the model ``name``.
    """
    root, recorded = local_folder(artifact_root), local_folder(location)
    if root is None or recorded is None or name not in recorded.parts:
        return None
    start = len(recorded.parts) - 1 - recorded.parts[::-1].index(name)
    folder = root.joinpath(*recorded.parts[start:])
    return folder if folder != recorded and folder.is_dir() else None


def moved_run(client: Any, run: str | None, name: str, artifact_root: str) -> Path | None:
    """Return where the files of a run are now, as ``moved_files``; None for a run that is gone."""
    found = None
    with if_there():
        found = client.get_run(run) if run else None
    return None if found is None else moved_files(str(found.info.artifact_uri), name, artifact_root)
