"""Where Dagster, MLflow and DVC of a project keep what ``xc forget`` cannot reach (entry point ``xc.places``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from assets.release.versions import model_name
from assets.resources import Dvc
from assets.settings import dagster_environment, given_addresses, hide_secrets, local_folder, mlflow_settings
from xc_core.chain.names import ACCEPTANCE
from xc_core.chain.workspace import Workspace
from xc_core.errors import XCError
from xc_core.lifecycle.dvc_settings import DvcSettings
from xc_core.lifecycle.places import Place
from xc_core.outside import text_of, yaml_of


def places(workspace: Workspace, dataset: str) -> list[Place]:
    """Return the places of a dataset, as the settings of the project name them."""
    root = workspace.root
    return [*_dvc(workspace, dataset), *_mlflow(root, dataset), *_dagster(root)]


def _dvc(workspace: Workspace, dataset: str) -> list[Place]:
    """Return DVC's cache and each remote. The new files are recorded first: ``dvc gc`` keeps what is recorded."""
    dvc, home = Dvc.of(workspace.root), workspace.data / dataset
    if not dvc.enabled:
        return []
    record_commands = [_record_command(home / name, workspace.root) for name in ("raw", ACCEPTANCE)]
    steps = (*filter(None, record_commands), "dvc gc --workspace")
    deletes = "deletes every version of every dataset that the workspace does not use"
    local = Place("DVC's cache", f"in this order; the last one {deletes}", steps)
    return [local] + [
        Place(
            f"DVC's remote {name} ({hide_secrets(url)})",
            "run this after the commands above",
            (f"dvc gc --workspace --cloud --remote {name}",),
        )
        for name, url in DvcSettings.of(workspace.root).remotes.items()
    ]


def _record_command(folder: Path, root: Path) -> str | None:
    """Return the command that records a folder as it is now; None for one that DVC does not track."""
    file = folder.with_name(f"{folder.name}.dvc")
    if not file.is_file():
        return None
    target = folder if folder.is_dir() else file
    return f"dvc {'add' if target is folder else 'remove'} {target.relative_to(root).as_posix()}"


def _mlflow(root: Path, dataset: str) -> list[Place]:
    """Return MLflow's database or server, the store of its files, and the registry if it has another address."""
    if not any(given_addresses()) and not (root / ".xc" / "mlflow").is_dir():
        return []  # never used
    settings = mlflow_settings(root)
    name = model_name(dataset)
    versions, runs = f"the registered versions of {name}", f"the runs of each experiment {name}, {name} (2) and so on"
    collect = "then run `mlflow gc` (docs/runbook.md#old-versions)"
    command = f"xc delete --dataset {dataset} --version N --even-previous --yes"
    do = f"delete {versions} with their models ({command}), and"
    stores = [Place(f"MLflow at {settings.shown}", f"{do} {runs}, {collect}")]
    if settings.registry != settings.uri:
        copies = "the registry's own copies of their files, if it keeps any"
        rest = f"the same command deletes the models of these versions; delete {runs}, {collect}"
        stores = [
            Place(f"MLflow's registry at {hide_secrets(settings.registry)}", f"{do} {copies}"),
            Place(f"MLflow at {settings.shown}", rest),
        ]
    return [
        *stores,
        Place(
            f"MLflow's files in {_without_login(settings.artifacts)}",
            "the same commands delete them, but not in a project that was moved since; check that they are gone",
        ),
    ]


def _dagster(root: Path) -> list[Place]:
    """Return Dagster's storage and the logs of its runs, if there are any."""
    environment = dagster_environment(root)
    chosen_home = os.environ.get("DAGSTER_HOME") if not os.environ.get("XC_DAGSTER_HOME") else None
    home = Path(chosen_home or environment["DAGSTER_HOME"])
    state, logs = Path(environment["XC_STATE_DIR"]), Path(environment["XC_LOG_DIR"])
    storage = _storage_kind(home)
    locations = [str(folder) for folder in dict.fromkeys((state, logs)) if folder.is_dir()]
    if storage:
        locations.insert(0, f"{storage}, set in {home / 'dagster.yaml'}")
    do = "delete the runs of this dataset there: their logs and metadata may name it"
    return [Place(f"Dagster ({'; '.join(locations)})", do)] if locations else []


def _storage_kind(home: Path) -> str:
    """Return the kind of the database that a dagster.yaml names, empty for sqlite files."""
    try:
        content: Any = yaml_of(text_of(home / "dagster.yaml"))
    except (XCError, OSError):
        return ""
    storage = content.get("storage") if isinstance(content, dict) else None
    kinds = [str(kind) for kind in storage if kind != "sqlite"] if isinstance(storage, dict) else []
    return kinds[0] if kinds else ""


def _without_login(uri: str) -> str:
    folder = local_folder(uri)
    return hide_secrets(uri) if folder is None else str(folder)
