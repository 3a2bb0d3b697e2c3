"""Where MLflow and Dagster keep their state: environment variables, with defaults inside the project."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MlflowSettings:
    """Tracking URI, root folder of artifacts, and the lock file of the first connection."""

    uri: str
    artifacts: str
    lock: Path


def mlflow_settings(root: Path) -> MlflowSettings:
    """Return the settings: MLFLOW_TRACKING_URI and XC_MLFLOW_ARTIFACTS, else sqlite and a folder under ``.xc``."""
    state = root / ".xc" / "mlflow"
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        state.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{state / 'mlflow.db'}"
    return MlflowSettings(
        uri,
        os.environ.get("XC_MLFLOW_ARTIFACTS", (state / "artifacts").as_uri()),
        root / ".xc" / "lock" / "mlflow",
    )


def dagster_environment(root: Path) -> dict[str, str]:
    """Return the environment Dagster's own commands need: its home, state, logs, and the project's root."""
    return {
        "DAGSTER_HOME": str(root),
        "XC_STATE_DIR": os.environ.get("XC_STATE_DIR") or str(root / ".xc" / "dagster"),
        "XC_LOG_DIR": os.environ.get("XC_LOG_DIR") or str(root / ".xc" / "dagster" / "logs"),
        "XC_ROOT": str(root),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
