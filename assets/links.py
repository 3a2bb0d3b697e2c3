"""Addresses of pages of Dagster and MLflow, for links from one to the other. None if the address is not known.

``xc ui`` sets both variables. Behind a proxy they are set by hand, to the address that people type.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from assets.markdown import escaped
from assets.settings import TRACKING_URI

DAGSTER_URL: Final = "XC_DAGSTER_URL"
MLFLOW_URL: Final = "XC_MLFLOW_URL"
_MODE: Final = "?workflowType=machine_learning"
"""MLflow opens in its mode for language models otherwise, whose menu has neither models nor plain runs."""


def dagster_address() -> str | None:
    """Return the address of Dagster's pages, from XC_DAGSTER_URL."""
    return _address(os.environ.get(DAGSTER_URL))


def mlflow_address() -> str | None:
    """Return the address of MLflow's pages: XC_MLFLOW_URL, else the tracking server."""
    return _address(os.environ.get(MLFLOW_URL)) or _address(os.environ.get(TRACKING_URI))


def _address(text: str | None) -> str | None:
    """Return an http or https address without its login, query and trailing slash; None for another text."""
    try:
        parts = urlsplit(text or "")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, a bracket that is not closed
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    return urlunsplit((parts.scheme, netloc, quote(parts.path.rstrip("/"), safe="/%"), "", ""))


def dagster_run(run: str) -> str | None:
    """Return the page of a Dagster run."""
    return _page(dagster_address(), f"/runs/{run}") if run else None


def dagster_asset(stage: str, partition: str) -> str | None:
    """Return the page of an asset at one of its partitions."""
    return _page(dagster_address(), f"/assets/{stage}?view=partitions&partition={quote(partition, safe='')}")


def mlflow_run(experiment: str, run: str) -> str | None:
    """Return the page of an MLflow run."""
    return _page(mlflow_address(), f"/{_run_path(experiment, run)}{_MODE}")


def mlflow_shown(experiment: str, run: str, name: str) -> str | None:
    """Return the page of MLflow that shows a file of a run, an HTML file rendered."""
    return _page(mlflow_address(), f"/{mlflow_own(experiment, run, name)}")


def mlflow_own(experiment: str, run: str, name: str) -> str:
    """Return the same page as ``mlflow_shown``, for links on MLflow's own pages, where no address is needed."""
    return f"{_run_path(experiment, run)}/artifacts/{quote(name)}{_MODE}"


def mlflow_file(run: str, name: str) -> str | None:
    """Return the address of a file of an MLflow run, for a picture that another page shows."""
    return _page(mlflow_address(), f"/{_file_path(run, name)}")


def mlflow_plots(run: str, names: Iterable[str]) -> str:
    """Return pictures among the files of a run as Markdown for MLflow's own pages, where no address is needed."""
    return "\n\n".join(f"![{name}]({_file_path(run, name)})" for name in names if name.endswith(".png"))


def _run_path(experiment: str, run: str) -> str:
    return f"#/experiments/{experiment}/runs/{run}"


def _file_path(run: str, name: str) -> str:
    return f"get-artifact?path={quote(name, safe='')}&run_uuid={run}"


def mlflow_version(model: str, version: int | str) -> str | None:
    """Return the page of a version of a registered model."""
    return _page(mlflow_address(), f"/#/models/{quote(model, safe='')}/versions/{version}{_MODE}")


def markdown(text: str, address: str | None) -> str:
    """Return ``text`` as a Markdown link, as it is if the address is not known."""
    return escaped(text) if address is None else f"[{escaped(text)}]({address})"


def _page(address: str | None, path: str) -> str | None:
    return None if address is None else f"{address}{path}"
