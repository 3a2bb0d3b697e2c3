"""Logs runs to MLflow: parameters, metrics in batches, plots. MLflow is imported only when a stage is logged."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from assets import database, links
from assets.mlflow_errors import answering, check_drivers
from assets.mlflow_internals import limit_tries
from assets.settings import given_addresses, given_artifacts, is_server, local_folder
from assets.waiting import RETRIES, first_contact
from xc_core.chain import Workspace
from xc_core.chain.registry import STAGES
from xc_core.data.corpus import Corpus
from xc_core.data.history import read_history
from xc_core.errors import StorageError
from xc_core.locks import locked
from xc_core.params import dotted
from xc_core.sqlite import sqlite_file

_BATCH: Final = 1000
"""Metrics per request; the limit of MLflow."""
NOTE: Final = "mlflow.note.content"
"""Tag of a run's description."""
PARENT: Final = "mlflow.parentRunId"
"""Tag of a child run: the id of its parent."""
_KIND: Final = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment: MLflow shows its pages for training, not those for language models."""
_DIGEST: Final = 36
"""Characters of a dataset's digest that MLflow takes."""
_MAX_LOCATIONS: Final = 100
"""Folders that a project may have been in, one after the other; in each a dataset has another experiment."""
_PATIENCE: Final = 120.0
"""Seconds to wait for the first connection of another process."""
_RETRIES: Final = "3"
"""Retries per request, 14 seconds in total; MLflow's default of 7 takes minutes if there is no server."""
_DATABASE_TRIES: Final = 7
"""Tries to connect to a database, 12 seconds in total; with MLflow's 10 a command waits 100 seconds for one that is
down."""
_POOL_CLASS: Final = "MLFLOW_SQLALCHEMYSTORE_POOLCLASS"
"""NullPool opens the file of a database for each request. A connection that stays open reads a file that a restored
backup has replaced, or that was deleted."""
_POOL_SIZES: Final = ("MLFLOW_SQLALCHEMYSTORE_POOL_SIZE", "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW")
"""Set by a user who wants a pool; SQLAlchemy refuses them with NullPool."""


def connect(uri: str, lock: Path) -> Any:
    """Return a client of ``uri`` after a first connection."""
    import mlflow

    addresses = (uri, given_addresses()[1])
    check_drivers(*addresses)
    with answering(uri):
        mlflow.set_tracking_uri(uri)
        with _first_connection(*addresses, lock=lock), first_contact(uri):
            database.made(*addresses)
            client = mlflow.MlflowClient(uri)  # which connects too, if the database is a file
            client.search_experiments(max_results=1)
    return client


@contextmanager
def asking_registry(uri: str, lock: Path) -> Iterator[Any]:
    """Yield a client for a question about registered models, the only request; the tracking server is not asked.

    Errors of MLflow in the block become UnavailableError; each request in it has the short time of a first one.
    """
    import mlflow

    check_drivers(uri)
    with answering(uri), first_contact(uri):
        with _first_connection(uri, lock=lock):
            client = mlflow.MlflowClient(uri, uri)
        yield client


@contextmanager
def _first_connection(*addresses: str, lock: Path) -> Iterator[None]:
    """Set MLflow up for a first connection to the addresses, in the block.

    It connects to a sqlite file under ``lock``, because processes that create one, or its tables, at the same time
    crash. Who may not write the lock connects without it.
    """
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault(RETRIES, _RETRIES)
    if not all(map(is_server, filter(None, addresses))):
        limit_tries(_DATABASE_TRIES)
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # it would print the address with its login
    is_file = any(map(sqlite_file, addresses))
    if is_file and not any(os.environ.get(name) for name in _POOL_SIZES):
        os.environ.setdefault(_POOL_CLASS, "NullPool")
    with ExitStack() as first:
        if is_file:
            with suppress(StorageError):
                first.enter_context(locked(lock, "the first connection to MLflow", patience=_PATIENCE))
        yield


@contextmanager
def connected(uri: str, lock: Path) -> Iterator[Any]:
    """Yield a client of ``uri``; errors of MLflow in the block become UnavailableError.

    After a power cut sqlite takes back its last change if the deletion of its journal is not on the disk yet. Raises
    StorageError if the disk fails then.
    """
    with answering(uri):
        yield connect(uri, lock)
    synced_databases(uri, given_addresses()[1])


def synced_databases(*uris: str) -> None:
    """Write the folders of databases that are files to the disk; raise StorageError if that fails."""
    for file in filter(None, map(sqlite_file, uris)):
        database.synced(file.parent)


@dataclass(frozen=True)
class DataVersion:
    """A version of a corpus, which MLflow shows as the dataset of a run."""

    digest: str
    """Digest of the artefact."""
    folder: Path
    counts: dict[str, int]

    @classmethod
    def of(cls, workspace: Workspace, dataset: str) -> DataVersion:
        """Return the version of a dataset's corpus that is there now."""
        folder = workspace.folder("corpus", dataset)
        corpus = Corpus.unsealed(folder)
        counts = {"documents": corpus.num_documents, "labels": corpus.num_labels}
        return cls(workspace.digest("corpus", dataset), folder, counts)


@dataclass(frozen=True)
class StageRun:
    """What is logged of one stage."""

    stage: str
    dataset: str
    recipe: str | None
    dagster_run: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    series: list[tuple[str, int, float]]
    """(name, step, value) of curves."""
    files: list[Path]
    data: DataVersion | None = None
    """What the stage read."""

    @property
    def partition(self) -> str:
        """The partition in Dagster."""
        return f"{self.dataset}|{self.recipe}" if self.recipe else self.dataset


@dataclass(frozen=True)
class Logged:
    """Where a stage was logged: ids of the MLflow experiment and of the run."""

    experiment: str
    run: str


def log_stage(client: Any, artifact_root: str, run: StageRun, ended: Callable[[str], bool]) -> Logged:
    """Log one stage as a child of the materialisation's parent run.

    ``ended`` says whether a Dagster run has ended, by its id.
    """
    experiment = experiment_id(client, artifact_root, run.dataset)
    _end_killed(client, experiment, run, ended)
    parent = _parent_run_id(client, experiment, run)
    child = client.create_run(
        experiment,
        run_name=run.stage,
        tags={PARENT: parent, "xc.stage": run.stage, **_identity_tags(run), **run.tags},
    )
    run_id = str(child.info.run_id)
    if run.data is not None:
        for target in (run_id, parent):
            log_data(client, target, run.data, "evaluation" if run.stage == "evaluation" else "training")
    log_figures(client, run_id, run.metrics, run.params, run.series)
    for path in run.files:
        client.log_artifact(run_id, str(path))
    plots = links.mlflow_plots(run_id, [path.name for path in run.files])
    client.set_tag(run_id, NOTE, f"{_stage_note(run)}\n\n{plots}")
    if run.stage == "evaluation":
        log_figures(client, parent, run.metrics, run.params, run.series)
        client.set_tag(parent, NOTE, f"{_parent_note(run)}\n\n{plots}")
    client.set_terminated(run_id)
    client.set_terminated(parent)
    return Logged(experiment, run_id)


def _end_killed(client: Any, experiment: str, run: StageRun, ended: Callable[[str], bool]) -> None:
    """End the runs of steps that were killed, or failed, while they were logged: MLflow shows them as running.

    These are runs of Dagster runs that have ended, and that of an earlier attempt at the same step.
    """
    for running in client.search_runs([experiment], "attributes.status = 'RUNNING' and tags.`dagster.run_id` != ''"):
        tags = running.data.tags
        same_dagster_run = tags["dagster.run_id"] == run.dagster_run
        if tags.get("xc.stage") == run.stage if same_dagster_run else ended(tags["dagster.run_id"]):
            client.set_terminated(running.info.run_id, "KILLED")


def _identity_tags(run: StageRun) -> dict[str, str]:
    tags = {"xc.dataset": run.dataset, "dagster.run_id": run.dagster_run}
    return tags | ({"xc.recipe": run.recipe} if run.recipe else {})


def _stage_note(run: StageRun) -> str:
    """Return the description of a stage's run, which MLflow shows as Markdown at the top of its page."""
    asset = links.markdown(f"{run.stage} of {run.partition}", links.dagster_asset(run.stage, run.partition))
    return f"{STAGES[run.stage].does}\n\n- {_dagster_line(run)}\n- Dagster asset: {asset}"


def _parent_note(run: StageRun) -> str:
    summary = "The stages of one Dagster run, a child run each. The figures here are those of the stage `evaluation`."
    return f"{summary}\n\n- {_dagster_line(run)}"


def _dagster_line(run: StageRun) -> str:
    return f"Dagster run: {links.markdown(run.dagster_run[:8], links.dagster_run(run.dagster_run))}"


def experiment_id(client: Any, artifact_root: str, dataset: str) -> str:
    """Return the id of the dataset's experiment; a new one stores its files under ``artifact_root``.

    MLflow keeps the place of an experiment for ever. If the project was moved or copied, that is a folder of another
    project; XC_MLFLOW_ARTIFACTS may name another place since. Then the next experiment is "xc-DATASET (2)".
    """
    name = f"xc-{dataset}"
    titles = itertools.chain([name], (f"{name} ({number})" for number in range(2, _MAX_LOCATIONS)))
    location = f"{artifact_root.rstrip('/')}/{name}"
    candidates = (_get_or_create(client, title, location) for title in titles)
    found = next((experiment for experiment in candidates if _is_at(experiment, location)), None)
    found = found or _get_or_create(client, name, location)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)  # somebody deleted it in the interface; runs cannot be added
    return str(found.experiment_id)


def _get_or_create(client: Any, title: str, location: str) -> Any:
    """Return the experiment with a title; a new one stores its files in ``location``."""
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(title)) is not None:
        return found
    try:
        return client.get_experiment(client.create_experiment(title, artifact_location=location, tags=_KIND))
    except MlflowException:
        if (found := client.get_experiment_by_name(title)) is None:
            raise
        return found  # another process was faster


def _is_at(experiment: Any, location: str) -> bool:
    """Return False if files of the experiment are elsewhere than ``location``, which a user has named.

    Without XC_MLFLOW_ARTIFACTS it is the default folder: then only another folder of this machine is elsewhere.
    """
    actual, expected = local_folder(str(experiment.artifact_location)), local_folder(location)
    if actual is None or expected is None:
        return str(experiment.artifact_location).rstrip("/") == location or not given_artifacts()
    return actual == expected


def _parent_run_id(client: Any, experiment: str, run: StageRun) -> str:
    name = f"{run.recipe or run.stage} {run.dagster_run[:8]}"
    partition = f"{run.dataset}/{run.recipe or ''}"
    identity = {"dagster.run_id": run.dagster_run, "xc.role": "parent", "xc.partition": partition}
    query = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in identity.items())
    runs = client.search_runs([experiment], query, max_results=1)
    if runs:
        return str(runs[0].info.run_id)
    tags = {"xc.role": "parent", "xc.partition": partition, **_identity_tags(run), NOTE: _parent_note(run)}
    return str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)


def log_data(client: Any, run_id: str, data: DataVersion, use: str) -> None:
    """Log a version of a corpus as a dataset of a run, with what it is used for; a repeated one counts once."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, source = f"{data.folder.parent.name}/{data.folder.name}", json.dumps({"uri": data.folder.as_uri()})
    dataset = Dataset(name, data.digest[:_DIGEST], "local", source, profile=json.dumps(data.counts))
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", use)])])


def log_figures(
    client: Any,
    run_id: str,
    figures: Mapping[str, float],
    settings: Mapping[str, str],
    series: Iterable[tuple[str, int, float]] = (),
) -> None:
    """Log metrics, parameters and curves of (name, step, value); values that are not finite are left out."""
    from mlflow.entities import Metric, Param

    timestamp = int(time.time() * 1000)
    metrics = [Metric(name, value, timestamp, 0) for name, value in figures.items() if math.isfinite(value)]
    metrics += [Metric(name, value, timestamp, step) for name, step, value in series if math.isfinite(value)]
    params = [Param(name, value[:6000]) for name, value in settings.items()]
    for start in range(0, len(metrics), _BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + _BATCH])
    for start in range(0, len(params), 100):
        client.log_batch(run_id, params=params[start : start + 100])


def curves(folder: Path) -> list[tuple[str, int, float]]:
    """Return the loss of every step and the figures of every refresh of a training; nothing for other artefacts."""
    history = read_history(folder)
    if history is None:
        return []
    points = [("loss", step, float(loss)) for step, loss in enumerate(history["losses"])]
    for refresh in history["refreshes"]:
        epoch = int(refresh["epoch"])
        points += [
            (f"refresh_{name}", epoch, float(v)) for name, v in refresh.items() if name != "epoch" and v is not None
        ]
    return points


def flat(config: Any) -> dict[str, str]:
    """Return nested settings as texts under dotted names."""
    settings = {name: value for name, value in dotted(config or {}).items() if value != {}}
    return {name: json.dumps(value) if isinstance(value, list) else str(value) for name, value in settings.items()}
