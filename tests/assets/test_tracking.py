"""What is logged to MLflow: a parent per materialisation, a child per stage, legal names; and errors of MLflow."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import ssl
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.file_utils import local_file_uri_to_path
from requests import ConnectionError as NoConnection
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from assets import database, tracking, waiting
from assets.metadata import summary
from assets.mlflow_errors import answering, check_drivers
from assets.release.client import client_of, registry_of, versions_client
from assets.settings import mlflow_settings
from assets.shown import SHOWN
from assets.tracking import (
    DataVersion,
    StageRun,
    asking_registry,
    connect,
    connected,
    curves,
    experiment_id,
    flat,
    log_stage,
)
from tests.artefacts import started
from tests.assets.conftest import Store, failing
from xc_core.artifacts import building, read_made
from xc_core.chain import STAGES, Workspace
from xc_core.data.history import write_history
from xc_core.errors import BusyError, ConfigError, MissingError, StorageError, UnavailableError, XCError
from xc_core.locks import locked
from xc_core.sqlite import sqlite_address, sqlite_file

pytestmark = pytest.mark.filterwarnings("ignore")

LEGAL = re.compile(r"[\w\-. :/]+")
"""Names that MLflow accepts for metrics and parameters."""


def stage_run(**changes: Any) -> StageRun:
    """Return what is logged of a stage, of a dataset that no other test uses."""
    plain = StageRun(
        stage="encoder", dataset=f"d-{uuid.uuid4().hex[:8]}", recipe="ngame", dagster_run="0123456789", tags={},
        params={}, metrics={}, series=[], files=[],
    )  # fmt: skip
    return replace(plain, **changes)


def ended(dagster_run: str) -> bool:
    """Return False: no other Dagster run has ended."""
    return False


def runs(store: Store, dataset: str) -> list[Any]:
    experiment = store.client.get_experiment_by_name(f"xc-{dataset}")
    return list(store.client.search_runs([experiment.experiment_id]))


def test_a_stage_is_a_child_of_its_materialisations_one_parent(store: Store, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    first = stage_run(
        metrics={"loss": 0.5}, params={"epochs": "3"}, tags={"xc.git": "abc"}, files=[tmp_path / "report.json"]
    )
    second = replace(first, stage="evaluation", metrics={"P_at_1": 90.0}, files=[])
    children = {stage.stage: log_stage(store.client, store.artifacts, stage, ended).run for stage in (first, second)}
    found = {run.info.run_id: run for run in runs(store, first.dataset)}
    (parent,) = [run for run in found.values() if run.data.tags.get("xc.role") == "parent"]
    assert len(found) == 3
    for stage, child in children.items():
        tags = found[child].data.tags
        assert (tags["xc.stage"], tags["mlflow.parentRunId"]) == (stage, parent.info.run_id)
        assert (tags["xc.recipe"], tags["dagster.run_id"]) == ("ngame", "0123456789")
        assert found[child].info.status == "FINISHED"
    assert found[children["encoder"]].data.params == {"epochs": "3"}
    assert found[children["encoder"]].data.tags["xc.git"] == "abc"
    assert [f.path for f in store.client.list_artifacts(children["encoder"])] == ["report.json"]
    assert parent.data.metrics == {"P_at_1": 90.0}, "the metrics of the evaluation are logged to the parent too"


def test_the_version_of_the_corpus_is_the_dataset_of_a_stage_and_of_its_parent(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "corpus"
    first = stage_run(data=DataVersion("ab" * 32, folder, {"documents": 7, "labels": 3}))
    logged = [
        log_stage(store.client, store.artifacts, replace(first, stage=stage), ended)
        for stage in ("encoder", "evaluation")
    ]
    (parent,) = [run for run in runs(store, first.dataset) if run.data.tags.get("xc.role") == "parent"]
    for run, used in ((logged[0].run, "training"), (logged[1].run, "evaluation"), (parent.info.run_id, "training")):
        (found,) = store.client.get_run(run).inputs.dataset_inputs
        assert (found.dataset.name, found.dataset.digest) == ("mine/corpus", "ab" * 18)
        assert json.loads(found.dataset.profile) == {"documents": 7, "labels": 3}
        assert json.loads(found.dataset.source) == {"uri": folder.as_uri()}
        assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", used)]


@pytest.mark.parametrize("address", ["http://127.0.0.1:3000/", ""])
def test_a_run_says_what_its_stage_does_and_leads_back_to_dagster(
    store: Store, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("XC_DAGSTER_URL", address)
    stage = stage_run()
    logged = log_stage(store.client, store.artifacts, stage, ended)
    note = store.client.get_run(logged.run).data.tags["mlflow.note.content"]
    (parent,) = [run for run in runs(store, stage.dataset) if run.data.tags.get("xc.role") == "parent"]
    assert logged.experiment == parent.info.experiment_id
    assert note.startswith(STAGES["encoder"].does)
    run, asset = f"http://127.0.0.1:3000/runs/{stage.dagster_run}", "http://127.0.0.1:3000/assets/encoder"
    for text in (note, parent.data.tags["mlflow.note.content"]):
        assert (f"\n- Dagster run: [01234567]({run})" in text) is bool(address)
        assert address or "\n- Dagster run: 01234567" in text
    partition = f"partition={stage.dataset}%7Cngame"
    assert (f"({asset}?view=partitions&{partition})" in note) is bool(address)
    assert address or "](" not in note, "no link if the address is not known"


@pytest.mark.parametrize("change", [{"dagster_run": "9876543210"}, {"recipe": "other"}, {"recipe": None}])
def test_another_materialisation_or_partition_has_another_parent(store: Store, change: dict[str, Any]) -> None:
    first = stage_run()
    for stage in (first, replace(first, **change)):
        log_stage(store.client, store.artifacts, stage, ended)
    parents = [run for run in runs(store, first.dataset) if run.data.tags.get("xc.role") == "parent"]
    assert len(parents) == 2


def test_runs_that_killed_steps_left_are_ended_by_the_next_stage_that_is_logged(store: Store, tmp_path: Path) -> None:
    """MLflow would show them as running for ever. A step of a run that is at work is left alone, also of this one."""
    stage = stage_run(files=[tmp_path / "absent"])
    at_work = [replace(stage, stage="index"), replace(stage, dagster_run="at work")]
    for own in (stage, *at_work, replace(stage, dagster_run="killed")):
        with pytest.raises(Exception, match="absent"):
            log_stage(store.client, store.artifacts, own, ended)
    log_stage(store.client, store.artifacts, replace(stage, files=[]), lambda run: run == "killed")
    found = sorted(
        (run.data.tags["dagster.run_id"], "xc.stage" in run.data.tags, run.info.status)
        for run in runs(store, stage.dataset)
    )
    assert found == [
        ("0123456789", False, "FINISHED"),
        ("0123456789", True, "FINISHED"),
        ("0123456789", True, "KILLED"),
        ("0123456789", True, "RUNNING"),
        ("at work", False, "RUNNING"),
        ("at work", True, "RUNNING"),
        ("killed", False, "KILLED"),
        ("killed", True, "KILLED"),
    ]


def test_numbers_that_are_not_finite_are_left_out_and_long_series_arrive_complete(store: Store) -> None:
    series = [("loss", step, 1.0 / (step + 1)) for step in range(2500)] + [("loss", 2500, math.nan)]
    stage = stage_run(metrics={"good": 1.0, "nan": math.nan, "inf": -math.inf}, series=series)
    run = log_stage(store.client, store.artifacts, stage, ended).run
    assert set(store.client.get_run(run).data.metrics) == {"good", "loss"}
    history = store.client.get_metric_history(run, "loss")
    assert sorted((point.step, point.value) for point in history) == [(step, value) for _, step, value in series[:-1]]


def test_many_and_long_parameters_arrive(store: Store) -> None:
    params = {f"p{i}": str(i) for i in range(250)} | {"long": "x" * 10_000}
    run = log_stage(store.client, store.artifacts, stage_run(params=params), ended).run
    found = store.client.get_run(run).data.params
    assert len(found) == 251
    assert found["p249"] == "249"
    assert found["long"] == "x" * 6000


def test_an_experiment_is_created_once_and_keeps_its_artifact_root(store: Store) -> None:
    first = experiment_id(store.client, store.artifacts + "/", "a.b-c")
    assert experiment_id(store.client, store.artifacts, "a.b-c") == first
    found = store.client.get_experiment(first)
    assert found.artifact_location == f"{store.artifacts}/xc-a.b-c"
    assert found.tags["mlflow.experimentKind"] == "custom_model_development", "not the pages for language models"


@pytest.mark.parametrize("name", STAGES)
def test_all_that_is_logged_of_a_stage_has_legal_names(store: Store, trained: Workspace, name: str) -> None:
    """Of the real pipeline, as its asset logs it; MLflow refuses @ in a name."""
    stage = STAGES[name]
    recipe = "ngame" if stage.scope == "experiment" else None
    folder = trained.folder(name, "toy", recipe)
    made = read_made(folder)
    shown = summary(folder, made, SHOWN.get(name))
    own = stage_run(stage=name, recipe=recipe, metrics=shown.metrics, series=curves(folder), params=flat(made.settings))
    run = store.client.get_run(log_stage(store.client, store.artifacts, own, ended).run)
    finite = {key for key, value in own.metrics.items() if math.isfinite(value)} | {key for key, _, _ in own.series}
    assert set(run.data.metrics) == finite
    assert set(run.data.params) == set(own.params)
    assert not [key for key in (*run.data.metrics, *run.data.params) if not LEGAL.fullmatch(key)]
    if name == "evaluation":
        assert {"P_at_1", "P_at_5", "nDCG_at_5", "PSP_at_5", "R_at_10"} <= finite
    if name in ("encoder", "classifier"):
        assert {"loss"} <= finite
        assert run.data.params["epochs"] == ("4.0" if name == "encoder" else "6.0")


def test_nested_settings_become_dotted_names() -> None:
    config = {"a": {"b": 1, "c": [1, "x"]}, "d": None, "e": True, "f": {}}
    assert flat(config) == {"a.b": "1", "a.c": '[1, "x"]', "d": "None", "e": "True"}
    assert flat(None) == flat({}) == {}


def test_curves_hold_every_loss_and_every_figure_of_a_refresh(tmp_path: Path) -> None:
    refreshes = [{"epoch": 1, "radius": 0.8, "share": None}, {"epoch": 2, "radius": 0.7, "share": 0.1}]
    with building(tmp_path / "trained", kind="encoder") as build:
        write_history(build, {"losses": [0.5, 0.25], "refreshes": refreshes})
    assert curves(tmp_path / "trained") == [
        ("loss", 0, 0.5), ("loss", 1, 0.25), ("refresh_radius", 1, 0.8), ("refresh_radius", 2, 0.7),
        ("refresh_share", 2, 0.1),
    ]  # fmt: skip
    with building(tmp_path / "untrained", kind="clusters") as build:
        build.json("a.json", {})
    assert curves(tmp_path / "untrained") == []


@pytest.mark.parametrize(
    "error",
    [
        MlflowException("no connection\nand more"),
        NoConnection("no connection"),
        OperationalError("SELECT 1", None, Exception("no connection")),
    ],
)
def test_an_error_of_mlflow_its_database_or_the_network_names_what_to_do(error: Exception) -> None:
    with pytest.raises(UnavailableError, match="no connection") as caught, answering("http://tracking:5000"):
        raise error
    assert caught.value.found.startswith("no answer from MLflow at http://tracking:5000 (")
    assert "\n" not in caught.value.found
    assert "MLFLOW_TRACKING_URI" in caught.value.do


@pytest.mark.parametrize(
    ("answer", "found", "do"),
    [
        (500, r"errors of MLflow at \S+ \(too many 500 error responses\)", "log of the server"),
        (429, r"errors of MLflow at \S+ \(too many 429 error responses\)", "log of the server"),
        (0, r"no answer from MLflow at \S+ \(Remote end closed connection without response\)", "start the server"),
        (None, r"no answer in time from MLflow at \S+ \(.*Read timed out.*\)", waiting.TIMEOUT),
    ],
)
def test_a_message_has_the_reason_for_which_a_request_failed(
    answer: int | None, found: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut before the reason: a server that was down, slow or failing gave the same message."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv(waiting.TIMEOUT, "1")
    asked = threading.Event()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answer is None:
                asked.wait(30)
            elif answer:
                self.send_error(answer)

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(UnavailableError, match=found) as caught:
            connect(uri, tmp_path / "lock")
        asked.set()
        server.shutdown()
    assert do in caught.value.do
    with pytest.raises(UnavailableError, match=r"no answer from MLflow at \S+ \(.*Connection refused\)"):
        connect(uri, tmp_path / "lock")


def certificate(file: Path, host: str, days: int) -> Path:
    """Write a key and a certificate, which it signs itself, of a host until some days from now."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    ends = datetime.now(UTC) + timedelta(days=days)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, ends - timedelta(days=9), ends).add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(secret + made.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return file


@pytest.mark.parametrize(
    ("host", "days", "trusted", "found", "do"),
    [
        (
            "127.0.0.1",
            3,
            False,
            r"a certificate that is not trusted, of MLflow at \S+ \(.*self.signed",
            "of the authority",
        ),
        ("127.0.0.1", -3, True, r"a certificate that is not trusted, of MLflow at \S+ \(.*expired", "renew one"),
        (
            "127.0.0.9",
            3,
            True,
            r"a certificate that is not trusted, of MLflow at \S+ \(.*not valid for",
            "host that it",
        ),
        ("", 3, False, r"no TLS connection to MLflow at \S+ \(.*SSL: ", "write http:// if the server has no TLS"),
        (
            None,
            3,
            True,
            r"no TLS connection to MLflow at \S+ \(.*invalid path: ",
            "fix the file that holds",
        ),
    ],
    ids=["self-signed", "expired", "other host", "no TLS", "no file"],
)
def test_a_server_whose_certificate_is_refused_is_not_called_down(
    host: str | None, days: int, trusted: bool, found: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to start the server."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    file = certificate(tmp_path / "server.pem", host, days) if host else tmp_path / "absent.pem"
    if trusted:
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(file))
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if host:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UnavailableError, match=found) as caught:
            connect(f"https://127.0.0.1:{server.server_port}", tmp_path / "lock")
        server.shutdown()
    assert do in caught.value.do and "start the server" not in caught.value.do


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_a_server_that_refuses_a_login_is_not_called_down(code: str) -> None:
    """The advice was to start the server, which had answered."""
    with pytest.raises(UnavailableError, match="no such user") as caught, answering("http://tracking:5000"):
        raise RestException({"error_code": code, "message": "no such user"})
    assert caught.value.found.startswith("a refusal by MLflow at http://tracking:5000 (")
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.do and "start the server" not in caught.value.do


@pytest.mark.parametrize("code", ["RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "ENDPOINT_NOT_FOUND"])
def test_a_server_that_answers_with_an_error_is_not_called_down(code: str) -> None:
    """The advice was to start the server, which had answered."""
    with pytest.raises(UnavailableError, match="no run 7") as caught, answering("http://tracking:5000"):
        raise RestException({"error_code": code, "message": "no run 7"})
    assert caught.value.found.startswith("an error of MLflow at http://tracking:5000 (")
    assert "somebody deleted it" in caught.value.do and "start the server" not in caught.value.do


def test_a_value_that_mlflow_refuses_is_named_and_nothing_is_called_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to start the server."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "99")
    with pytest.raises(UnavailableError, match="max_retries value \\(99\\)") as caught:
        connect("http://127.0.0.1:9", tmp_path / "lock")
    assert caught.value.found.startswith("a value refused by MLflow at http://127.0.0.1:9 (")
    assert "fix the value" in caught.value.do and "start the server" not in caught.value.do


@pytest.mark.parametrize("uri", ["sqlite:////project/mlflow.db", "http://server:5000"])
def test_a_full_disk_of_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    """MLflow copies a packed model there before it registers it, and wraps the error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines = "failures while downloading:\n[Errno 28] No space left on device: '/data/a' -> '{}/x/a'"
    with pytest.raises(StorageError, match=re.escape(f"while writing {tmp_path}\n")), answering(uri):
        raise MlflowException(lines.format(tmp_path))
    with pytest.raises((StorageError, UnavailableError)) as caught, answering(uri):
        raise MlflowException(lines.format("/store"))
    assert str(tmp_path) not in str(caught.value)


def test_an_error_of_mlflow_is_reported_if_no_temporary_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(UnavailableError, match="no answer"), answering("http://server:5000"):
        raise NoConnection("no connection")


def test_a_full_disk_of_mlflows_own_database_is_a_storage_error(tmp_path: Path) -> None:
    full = OperationalError("INSERT", None, Exception("(sqlite3.OperationalError) database or disk is full"))
    file = tmp_path / "mlflow.db"
    with pytest.raises(StorageError, match=re.escape("a full disk (")) as caught, answering(f"sqlite:///{file}"):
        raise full
    assert caught.value.found.endswith(f"while writing {file}")
    with pytest.raises(UnavailableError), answering("http://tracking:5000"):
        raise full


def test_a_database_in_a_folder_that_is_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file that exists") as caught:
        connect(f"sqlite:///{tmp_path}/file/mlflow.db", tmp_path / "lock")
    assert caught.value.found.endswith(f"while writing {tmp_path}/file/mlflow.db")


def test_a_database_whose_tables_were_half_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow makes them in many steps, and fails at those that were done."""
    file, lock = tmp_path / "home" / "mlflow.db", tmp_path / "lock"

    def killed(engine: Any) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE model_version_tags (version INTEGER)")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("mlflow.store.db.utils._initialize_tables", killed)
        connect(f"sqlite:///{file}", lock)
    assert list(file.parent.iterdir()) == []
    connect(f"sqlite:///{file}", lock)
    assert list(file.parent.iterdir()) == [file]


def test_a_new_database_is_moved_to_its_place_when_it_is_whole(tmp_path: Path) -> None:
    database.made(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == [tmp_path / "mlflow.db"]


def test_a_database_that_another_process_made_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold runs already."""
    file = tmp_path / "mlflow.db"

    def make(address: str) -> None:
        Path(address.removeprefix("sqlite:///")).write_text("new")
        file.write_text("of another process")

    monkeypatch.setattr(database, "make_database", make)
    database.made(f"sqlite:///{file}")
    assert file.read_text() == "of another process"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["it's", """both ' and " ones""", ":b", "50%", "a b"])
def test_a_database_is_made_in_a_folder_of_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    client = connect(f"sqlite:///{tmp_path / name}/mlflow.db", tmp_path / "lock")
    place = client.get_experiment("0").artifact_location
    assert local_file_uri_to_path(place) == str(tmp_path / name / "mlruns" / "0")


def test_a_link_to_a_database_on_another_disk_stays_one(tmp_path: Path) -> None:
    file, disk = tmp_path / "mlflow.db", tmp_path / "disk"
    disk.mkdir()
    file.symlink_to(disk / "large.db")
    connect(f"sqlite:///{file}", tmp_path / "lock")
    assert file.is_symlink()
    assert list(disk.iterdir()) == [disk / "large.db"]


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(ZeroDivisionError), answering("http://tracking:5000"):
        _ = 1 / 0


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("http://127.0.0.1:9", "no answer from"),
        ("sqlite:///{folder}/text.db", "no whole database of"),
        ("sqlite:///{folder}", "a folder instead of a file for"),
    ],
)
def test_a_store_that_cannot_be_opened_is_an_error_that_names_it(
    uri: str, what: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "text.db").write_text("text, no database\n" * 100)
    wanted = uri.format(folder=tmp_path)
    with pytest.raises(UnavailableError, match=re.escape(f"{what} MLflow at {wanted} (")) as caught:
        connect(wanted, tmp_path / "lock")
    assert ("restore" in caught.value.do) is ("text.db" in uri)
    assert (f"=sqlite:///{tmp_path}/mlflow.db" in caught.value.do) is (wanted == f"sqlite:///{tmp_path}")
    connect(store.uri, store.lock)


def test_a_file_that_cannot_be_opened_is_named_with_its_folder(tmp_path: Path) -> None:
    """As in a folder without permission, which stops no administrator."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with (
        pytest.raises(UnavailableError, match=f"no file that can be opened for MLflow at {uri}") as caught,
        answering(uri),
    ):
        raise SQLAlchemyError("unable to open database file")
    assert f"make the folder {tmp_path}, or fix MLFLOW_TRACKING_URI" in caught.value.do


def test_postgres_in_the_form_of_some_services_is_refused_with_the_form_that_is_taken(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to move the runs of a folder into a database."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := "postgres://u:secret@host/db")
    with pytest.raises(ConfigError) as caught, connected(uri, tmp_path / "lock"):
        pass
    assert caught.value.do == "write postgresql+psycopg2:// in place of postgres://"
    assert "secret" not in str(caught.value)
    connect(store.uri, store.lock)


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"])
@pytest.mark.parametrize(
    "uri", ["file:///x/mlruns", "/x/mlruns", "mlruns", "nonsense://x", "sqlite:x.db", "sqlite://x"]
)
def test_an_address_that_names_no_server_and_no_database_is_a_wrong_setting(
    uri: str, variable: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a service that does not answer (69), so Dagster tried the stage again."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv(variable, uri)
    asked = asking_registry if variable == "MLFLOW_REGISTRY_URI" else connected
    with pytest.raises(ConfigError) as caught, asked(uri, tmp_path / "lock") as client:
        client.search_registered_models(max_results=1)
    assert caught.value.found.startswith(f"{variable} = {uri}, an address that MLflow does not take (")
    assert "migrate-filestore" in caught.value.do
    connect(store.uri, store.lock)


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"])
@pytest.mark.parametrize(
    ("uri", "what", "do"),
    [
        (
            "mysql://{login}host/runs",
            "whose driver cannot be imported (",
            "pip install mysqlclient, or name another driver",
        ),
        ("mssql+pymssql://{login}host/runs", "whose driver cannot be imported (", "pip install pymssql, or "),
        ("postgresql+psycopg2://{login}host/runs", "(libpq.so.5: no such file)", "-e '.[postgres]', or name another"),
        ("postgresql+xyz://{login}host/runs", "a driver that SQLAlchemy does not know", "fix the variable"),
    ],
)
def test_a_database_without_its_driver_is_a_wrong_setting(
    uri: str, what: str, do: str, variable: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called a fault of xc (70), or a service that does not answer (69)."""
    for name in ("MySQLdb", "pymssql"):
        monkeypatch.setitem(sys.modules, name, None)
    unloaded = failing(ImportError("libpq.so.5: no such file", name="psycopg2._psycopg"))
    monkeypatch.setattr(PGDialect_psycopg2, "import_dbapi", unloaded)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv(variable, address := uri.format(login="me:secret@"))
    used = os.environ["MLFLOW_TRACKING_URI"]
    for asked in (connected(used, store.lock), asking_registry(address, store.lock)):
        with pytest.raises(ConfigError) as caught, asked:
            pass
        assert caught.value.found.startswith(f"{variable} = {uri.format(login='***@')}, a")
        assert what in caught.value.found
        assert do in caught.value.do
        assert "secret" not in str(caught.value)
    assert mlflow.get_tracking_uri() == store.uri


@pytest.mark.parametrize("host", ["me:secret@host:PORT", "me:secret@host:", "me:sec@a:ret@host"])
def test_a_database_whose_port_is_no_number_is_a_wrong_setting(
    host: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy's error is none of its own kinds, and names the end of a password with @ and a colon."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address := f"postgresql://{host}/runs")
    with pytest.raises(ConfigError, match="port is no number") as caught:
        connect(address, store.lock)
    assert "sec" not in str(caught.value) and "ret" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize("text", ["unsupported URI 'odd://x'", "connection refused"])
def test_an_error_names_the_variable_that_had_the_address_before_mlflow_wrote_it_into_another(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "odd://x")
    with pytest.raises(XCError) as caught, answering("odd://x"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "odd://x")
        raise MlflowException(text)
    assert "MLFLOW_REGISTRY_URI" in str(caught.value) and "MLFLOW_TRACKING_URI" not in str(caught.value)


def test_a_driver_that_is_broken_has_no_name_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built for another Python: its error has no module."""

    def broken() -> None:
        raise ImportError("undefined symbol: PyNone")

    monkeypatch.setattr("sqlalchemy.dialects.sqlite.pysqlite.SQLiteDialect_pysqlite.import_dbapi", staticmethod(broken))
    with pytest.raises(ConfigError, match="pip install its package, or name another driver"):
        check_drivers("sqlite:///runs.db")


def test_only_addresses_of_databases_have_a_driver() -> None:
    """MLflow reads the second half of databricks://SCOPE:PREFIX as the prefix of a secret, SQLAlchemy as a port."""
    check_drivers("databricks://scope:prefix", "http://host:PORT", "./mlruns", "")


def test_a_database_that_a_backup_replaces_is_read_from_then_on(store: Store, tmp_path: Path) -> None:
    """A connection that stayed open read the old file: `xc serve` never noticed that the champion was another one."""
    file, backup = tmp_path / "mlflow.db", tmp_path / "backup.db"
    shutil.copy(store.uri.removeprefix("sqlite:///"), file)
    client = connect(sqlite_address(file), tmp_path / "lock")
    shutil.copy(file, backup)
    client.create_experiment("after the backup")
    backup.rename(file)
    assert client.get_experiment_by_name("after the backup") is None
    connect(store.uri, store.lock)


@pytest.mark.parametrize(
    ("registry", "pool"), [("sqlite:////r.db", "NullPool"), ("postgresql://a/b", None), ("", None)]
)
def test_a_registry_in_a_file_of_its_own_is_opened_for_each_request_and_no_server_is(
    registry: str, pool: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow.MlflowClient", "mlflow.set_tracking_uri", "assets.database.made"):
        monkeypatch.setattr(name, Mock())
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry)
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "")  # restored at the end
    monkeypatch.delenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS")
    connect("http://127.0.0.1:1", tmp_path / "lock")
    assert os.environ.get("MLFLOW_SQLALCHEMYSTORE_POOLCLASS") == pool
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "StaticPool")
    connect("http://127.0.0.1:1", tmp_path / "lock")
    assert os.environ["MLFLOW_SQLALCHEMYSTORE_POOLCLASS"] == "StaticPool", "a user's own is kept"


def test_a_change_is_on_the_disk_when_the_command_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sqlite deletes its journal last and does not wait for that: after a power cut the change would be taken back."""
    synced: list[str] = []
    folders = [tmp_path / name for name in ("tracking", "registry")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", sqlite_address(folders[1] / "mlflow.db"))
    monkeypatch.setattr(tracking, "connect", Mock())
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    with tracking.connected(sqlite_address(folders[0] / "mlflow.db"), tmp_path / "lock"):
        assert not synced, "before the change"
    assert synced == list(map(str, folders))
    for number, fails in ((errno.EINVAL, False), (errno.EIO, True)):
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
        raised = pytest.raises(StorageError, match="a failing disk") if fails else nullcontext()
        with raised, tracking.connected(sqlite_address(folders[0] / "mlflow.db"), tmp_path / "lock"):
            pass


@pytest.mark.parametrize("name", ["POOL_SIZE", "MAX_OVERFLOW"])
def test_a_size_of_the_pool_that_a_user_has_set_is_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """SQLAlchemy refuses it beside NullPool: each command ended with a TypeError."""
    monkeypatch.delenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", raising=False)
    monkeypatch.setenv(f"MLFLOW_SQLALCHEMYSTORE_{name}", "2")
    file = tmp_path / "mlflow.db"
    shutil.copy(store.uri.removeprefix("sqlite:///"), file)
    assert connect(sqlite_address(file), tmp_path / "lock").search_experiments(max_results=1)
    assert "MLFLOW_SQLALCHEMYSTORE_POOLCLASS" not in os.environ
    connect(store.uri, store.lock)


def test_a_first_connection_waits_for_another_one_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, before, uri, lock = list[str](), time.monotonic(), sqlite_address(tmp_path / "new.db"), tmp_path / "lock"
    with monkeypatch.context() as patched:
        patched.setattr(waiting, "_QUIET_SECONDS", 0.01)
        patched.setattr(waiting, "report", lines.append)
        patched.setattr(tracking, "_PATIENCE", 0.2)
        with locked(lock, "another one"), pytest.raises(BusyError, match="the first connection to MLflow"):
            connect(uri, lock)
        (tmp_path / "new.db").touch()  # as for a container: MLflow makes the tables of an empty file too
        with locked(lock, "another one"), pytest.raises(BusyError, match="the first connection to MLflow"):
            connect(uri, lock)
    assert time.monotonic() - before > 0.2
    assert lines == [], "MLflow was not asked: the time of its answer begins when the other process has ended"
    assert connect(uri, lock)
    assert connect(uri, tmp_path / "new.db" / "lock"), "who may not write the lock may read the database"


@pytest.mark.parametrize("own", [None, "300"])
def test_a_server_that_does_not_answer_is_waited_for_aloud_and_for_a_short_time(
    own: str | None, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own limit, four times 120 s, kept `xc serve` silent for eight minutes; a user's limit counts."""
    limits: list[str | None] = []

    def slow(*_: object, **__: object) -> None:
        limits.append(os.environ.get(waiting.TIMEOUT))
        assert said.wait(10)

    said, lines = threading.Event(), list[str]()
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "report", lambda line: (lines.append(line), said.set()))
    monkeypatch.setattr("mlflow.MlflowClient.search_experiments", slow)
    monkeypatch.delenv(waiting.TIMEOUT, raising=False)
    if own is not None:
        monkeypatch.setenv(waiting.TIMEOUT, own)
    connect("http://me:secret@tracking:5000", tmp_path / "lock")
    assert lines == ["waiting for an answer from MLflow at http://***@tracking:5000"]
    assert limits == [own or "20"]
    assert os.environ.get(waiting.TIMEOUT) == own
    monkeypatch.undo()
    connect(store.uri, store.lock)


@pytest.mark.parametrize(
    ("reason", "found", "do"),
    [
        ("SSL validation failed for https://s3:1/b [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
         "a certificate that is not trusted, of the S3", "set AWS_CA_BUNDLE "),
        ("SSL validation failed for https://s3:1/b [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
         "no TLS connection to the S3", "write http:// in AWS_ENDPOINT_URL "),
        ("SSL validation failed for https://s3:1/b [Errno 2] No such file or directory",
         "no TLS connection to the S3", "write http:// in AWS_ENDPOINT_URL "),
        ("Failed to upload x to b/x: An error occurred (403) when calling the PutObject operation: Forbidden",
         "a refusal by the S3", "set AWS_ACCESS_KEY_ID "),
        ("Unable to locate credentials", "a refusal by the S3", "set AWS_ACCESS_KEY_ID "),
        ("An error occurred (ExpiredToken) when calling the PutObject operation: The provided token has expired.",
         "a refusal by the S3", "renew the login: AWS_ACCESS_KEY_ID, "),
        ("The SSO session associated with this profile has expired or is otherwise invalid.",
         "a refusal by the S3", "renew the login: AWS_ACCESS_KEY_ID, "),
        ("An error occurred (RequestTimeTooSkewed) when calling the PutObject operation: The difference is too large",
         "a refusal by the S3", "set the clock of this machine; "),
        ("Failed to upload x to b/x: An error occurred (NoSuchBucket) when calling the PutObject operation",
         "no bucket in the S3", "create it, or fix XC_MLFLOW_ARTIFACTS"),
        ('Could not connect to the endpoint URL: "http://s3:1/b"', "no answer from the S3", "start the store, "),
    ],
)  # fmt: skip
def test_an_error_of_the_object_store_is_not_one_of_the_tracking_server(
    reason: str, found: str, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to start MLflow, or to set MLflow's variable for certificates, which the S3 client does not read.

    The reasons are those of boto3, which need not be installed.
    """

    class BotoError(Exception):
        pass

    monkeypatch.setattr("assets.mlflow_errors._errors_of_s3", lambda: (BotoError,))
    with pytest.raises(UnavailableError) as caught, answering("http://tracking:5000"):
        raise BotoError(reason)
    assert caught.value.found == f"{found} store of MLflow's files ({reason})"
    assert caught.value.do.startswith(do)
    assert "MLFLOW_TRACKING" not in caught.value.do


def test_a_registry_at_another_address_has_a_short_time_too(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands waited for it up to eight minutes."""
    limits: list[str | None] = []

    def asked(*_: object, **__: object) -> None:
        limits.append(os.environ.get(waiting.TIMEOUT))

    monkeypatch.setattr("mlflow.MlflowClient.search_registered_models", asked)
    monkeypatch.delenv(waiting.TIMEOUT, raising=False)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://registry:5000")
    with client_of(Workspace(tmp_path)):
        pass
    assert limits == ["20"]


def test_a_slow_machine_that_opens_a_database_waits_for_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message was that MLflow does not answer yet, although no other process held the file."""
    said, lines = threading.Event(), list[str]()
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "report", lambda line: (lines.append(line), said.set()))
    with waiting.first_contact(store.uri):
        assert said.wait(10)
    assert lines == [f"opening MLflow's database at {store.uri}"]


def test_a_server_that_is_down_is_waited_for_aloud_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`xc serve` asks every few seconds: its log had a line for each."""
    lines: list[str] = []
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "report", lines.append)

    def ask(*, answers: bool) -> None:
        with suppress(OSError), waiting.first_contact("http://down:5000"):
            for thread in threading.enumerate():
                if isinstance(thread, threading.Timer):
                    thread.join()
            if not answers:
                raise OSError

    ask(answers=False)
    ask(answers=False)
    assert lines == ["waiting for an answer from MLflow at http://down:5000"]
    ask(answers=True)
    ask(answers=False)
    assert len(lines) == 2


def test_an_experiment_that_was_deleted_in_the_interface_takes_runs_again(store: Store) -> None:
    first = experiment_id(store.client, store.artifacts, "deleted")
    store.client.delete_experiment(first)
    assert experiment_id(store.client, store.artifacts, "deleted") == first
    store.client.create_run(first)


def test_a_project_that_was_moved_logs_to_its_own_folder(store: Store, tmp_path: Path) -> None:
    """An experiment keeps its folder, which belongs to another project now, or to none."""
    first = experiment_id(store.client, (tmp_path / "old").as_uri(), "moved")
    new = (tmp_path / "new").as_uri()
    second = experiment_id(store.client, new, "moved")
    found = store.client.get_experiment(second)
    assert (found.name, found.artifact_location) == ("xc-moved (2)", f"{new}/xc-moved")
    assert experiment_id(store.client, new, "moved") == second
    assert experiment_id(store.client, (tmp_path / "old").as_uri(), "moved") == first
    third = experiment_id(store.client, (tmp_path / "third").as_uri(), "moved")
    assert store.client.get_experiment(third).name == "xc-moved (3)"


def test_new_files_go_where_the_variable_says_also_those_of_an_existing_experiment(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that was named later was ignored without a word. Who names no place takes that of the others."""
    places = [(tmp_path / "files").as_uri(), "s3://one/files", "s3://two/files", "mlflow-artifacts:/files"]
    ids = [experiment_id(store.client, place, "placed") for place in places]
    found = [store.client.get_experiment(number) for number in ids]
    assert [experiment.artifact_location for experiment in found] == [f"{place}/xc-placed" for place in places]
    assert found[1].name == "xc-placed (2)"
    assert [experiment_id(store.client, f"{place}/", "placed") for place in places] == ids
    on_s3 = experiment_id(store.client, "s3://one/files", "shared")
    monkeypatch.delenv("XC_MLFLOW_ARTIFACTS")
    assert experiment_id(store.client, (tmp_path / "default").as_uri(), "shared") == on_s3


def test_a_place_may_be_a_plain_path(store: Store, tmp_path: Path) -> None:
    """MLflow stores it as it was given."""
    first = experiment_id(store.client, str(tmp_path / "old"), "plain")
    assert experiment_id(store.client, (tmp_path / "old").as_uri(), "plain") == first
    assert experiment_id(store.client, (tmp_path / "new").as_uri(), "plain") != first


def test_the_path_to_a_project_may_be_spelt_in_two_ways(store: Store, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    first = experiment_id(store.client, (tmp_path / "real").as_uri(), "spelt")
    assert experiment_id(store.client, (tmp_path / "link").as_uri(), "spelt") == first


def test_a_store_of_files_that_does_not_answer_is_unavailable() -> None:
    botocore = pytest.importorskip("botocore.exceptions")
    store = pytest.raises(UnavailableError, match="no answer from the S3 store of MLflow's files")
    with store, answering("sqlite:///x.db"):
        raise botocore.EndpointConnectionError(endpoint_url="http://127.0.0.1:9")


@pytest.mark.parametrize("name", ["what?", "feature%2Fx"])
def test_a_path_that_an_address_cannot_hold_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy would open another file: one beside the project, or in a folder that is not there."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="move or rename the folder"):
        mlflow_settings(tmp_path / name)
    assert list(tmp_path.rglob("*")) == [tmp_path / name]


@pytest.mark.parametrize("asks", [client_of, versions_client, registry_of])
def test_nothing_is_made_at_the_old_place_of_a_project_that_was_moved(
    asks: Callable[[Workspace], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made the folders of the lock and of a new database there, also each time that xc serve asks the registry."""
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(variable, raising=False)
    moved = pytest.raises(MissingError, match="which was moved or deleted since this command began")
    with moved, asks(Workspace(tmp_path / "project")):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("localhost:5000", "no http:// before the host"),
        ("mlflow.example.org:443/path", "no http:// before the host"),
        ("'http://host:5000'", "quotes around it"),
        ('"sqlite:///x.db"', "quotes around it"),
        ("http://", "no host"),
        ("https:///path", "no host"),
        ("sqlite://", "a database in memory, which ends with each command"),
        ("sqlite:///:memory:", "a database in memory, which ends with each command"),
    ],
)
@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "XC_MLFLOW_ARTIFACTS"])
def test_a_text_that_is_nearly_an_address_is_refused_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, given: str, why: str
) -> None:
    """The advice was to use the same release of MLflow, and the exit code that of a server that is down.

    In memory `xc promote` registered a model, said so, and it was lost.
    """
    monkeypatch.setenv(variable, given)
    with pytest.raises(ConfigError) as caught:
        mlflow_settings(tmp_path)
    assert caught.value.found.startswith(f"{variable} = ") and caught.value.found.endswith(f" ({why})")


def test_a_line_break_at_the_end_of_an_address_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the file of a secret: the address was an "Invalid url", and no server can be started at it."""
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "XC_MLFLOW_ARTIFACTS"):
        monkeypatch.setenv(variable, "http://host:5000\n")
    found = mlflow_settings(tmp_path)
    assert (found.uri, found.registry, found.artifacts) == ("http://host:5000",) * 3
    assert os.environ["MLFLOW_REGISTRY_URI"] == "http://host:5000", "which MLflow itself reads"


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_address_of_the_registry_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", blank)
    assert mlflow_settings(tmp_path).registry == "http://host:5000"
    assert not os.environ["MLFLOW_REGISTRY_URI"], "which MLflow itself reads"


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "XC_MLFLOW_ARTIFACTS"])
def test_a_variable_that_holds_no_address_is_named(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "http://[::1:5000")
    with pytest.raises(ConfigError, match=f"found {variable} = http://"):
        mlflow_settings(tmp_path)


def test_a_folder_of_mlflow_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that only reads needs no folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / ".xc").write_text("")
    uri = mlflow_settings(tmp_path).uri
    with pytest.raises(StorageError, match=re.escape(f"while writing {tmp_path}/.xc/mlflow/mlflow.db\n")):
        database.made(uri)


@pytest.mark.parametrize("name", ["50 % more", "a#b", "quo'te", "größe"])
def test_the_file_of_an_address_is_the_one_that_sqlalchemy_opens(name: str, tmp_path: Path) -> None:
    uri = sqlite_address(tmp_path / name / "mlflow.db")
    assert make_url(uri).database == str(sqlite_file(uri)) == str(tmp_path / name / "mlflow.db")
    assert sqlite_file("sqlite:///relative.db") is sqlite_file("postgresql://host/db") is None


def test_an_empty_variable_names_no_store_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `${VARIABLE:-}` of a compose file gives it."""
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", "")
    assert mlflow_settings(tmp_path).artifacts == (tmp_path / ".xc" / "mlflow" / "artifacts").as_uri()


LOCKER = """
    import sqlite3, sys, time

    database = sqlite3.connect(sys.argv[1], isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_database_on_a_disk_without_locks_is_not_called_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to end another program. sqlite says the same of both."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with (
        pytest.raises(UnavailableError, match="is locked") as caught,
        answering(sqlite_address(tmp_path / "mlflow.db")),
    ):
        raise OperationalError("SELECT 1", None, Exception("database is locked"))
    assert caught.value.do.startswith("mount its disk with locks, or give another address: MLFLOW_TRACKING_URI=sqlite:")


def test_a_database_that_another_program_has_locked_is_called_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to start a server, or to set another address; then it was to end the other program."""
    refused, lines = OperationalError("SELECT 1", None, Exception("database is locked")), list[str]()
    with pytest.raises(UnavailableError, match="is locked") as caught, answering("sqlite:////no/mlflow.db"):
        raise refused
    assert caught.value.do.startswith(
        "wait for the end of the other program, or end it; then run the same command or job again"
    )
    file = Path(shutil.copy(store.uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db"))
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "report", lines.append)
    with started(LOCKER, file) as other:
        name = f"process {other.pid}" if Path("/proc/locks").exists() else ""
        with pytest.raises(UnavailableError, match="is locked") as caught:
            connect(f"{sqlite_address(file)}?timeout=1", tmp_path / "lock")
        assert f"wait for the end of {name or 'the other program'}, or end it" in caught.value.do
        does, why = ("waiting for", f", which {name} has locked") if name else ("opening", "")
        assert lines == [f"{does} MLflow's database at {sqlite_address(file)}?timeout=1{why}"]
    connect(store.uri, store.lock)


@pytest.mark.parametrize("name", ["tracking", "registry"])
def test_a_database_that_is_down_is_tried_for_as_long_as_a_server(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow tries it for 100 seconds, in which `xc predict` does not answer with the last known champion either."""
    uri, slept = f"sqlite:///{tmp_path}", list[float]()  # a folder cannot be opened
    monkeypatch.setattr("time.sleep", slept.append)
    with pytest.raises(UnavailableError):
        if name == "tracking":
            connect(uri, tmp_path / "lock")
        else:
            with asking_registry(uri, tmp_path / "lock"):
                pass
    assert 5 < sum(slept) < 15
