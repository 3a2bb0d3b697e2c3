"""Passwords and tokens of addresses never reach messages, files or the settings that Dagster stores."""

from __future__ import annotations

import os
import re

import dagster as dg
import pytest
from dagster._utils.error import serializable_error_info_from_exc_info as stored_error

from assets.mlflow_errors import answering
from assets.settings import hide_secrets, mlflow_settings
from assets.tracking import connect
from pipelines.definitions import build, resources
from tests.assets.conftest import Store
from xc_core.chain import Workspace
from xc_core.errors import UnavailableError

ADDRESS = "postgresql+psycopg2://me:5ec/r:e@t@db:5432/mlflow"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ADDRESS, "postgresql+psycopg2://***@db:5432/mlflow"),
        ("https://t0ken@tracking:5000", "https://***@tracking:5000"),
        ("postgresql:///mlflow?user=me&password=5ecret", "postgresql:///mlflow?user=me&password=***"),
        ("https://tracking/api?access_token=5ecret&page=2", "https://tracking/api?access_token=***&page=2"),
        ("http://tracking:5000", "http://tracking:5000"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
    ],
)
def test_logins_and_secrets_of_queries_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown
    assert hide_secrets(f"no answer from {text} (refused)") == f"no answer from {shown} (refused)"


def test_an_error_of_mlflow_names_the_address_without_its_login() -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(UnavailableError) as caught, answering(ADDRESS):
        raise MlflowException(f"cannot parse {ADDRESS}")
    assert "postgresql+psycopg2://***@db:5432/mlflow" in str(caught.value)
    assert not re.search("5ec|e@t", str(caught.value))
    assert not re.search("5ec|e@t", dg.serialize_value(stored_error(caught._excinfo)))


def test_mlflow_does_not_print_the_address_of_a_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    variable = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
    monkeypatch.setenv(variable, "false")
    connect(store.uri, store.lock)
    there = MlflowClient("http://me:5ecret@127.0.0.1:9")._tracking_client
    monkeypatch.setattr(there.store, "get_run", lambda _: store.client.create_run("0"))
    there._log_url("a run that ended")
    assert "5ecret" not in capfd.readouterr().out
    monkeypatch.setenv(variable, "false")
    there._log_url("a run that ended")
    assert "5ecret" in capfd.readouterr().out, "MLflow no longer prints it: this test and the variable can go"


def test_dagster_stores_the_name_of_the_variable_not_the_address(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)
    stored = dg.serialize_value(
        build(workspace).get_repository_def().get_top_level_resources()["tracking"].config_schema.default_value  # type: ignore[arg-type]
    )
    assert "5ec" not in stored
    assert "MLFLOW_TRACKING_URI" in stored
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert resources(workspace.root)["tracking"].uri == mlflow_settings(workspace.root).uri  # type: ignore[attr-defined]


def test_dagster_stores_no_password_of_an_address_that_ends_with_a_line_break(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the file of a secret: the address differed from the one that is used, which was stored in its place."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://mlflow:hidden@db/mlflow\n")
    assert resources(workspace.root)["tracking"].uri == dg.EnvVar("MLFLOW_TRACKING_URI")  # type: ignore[attr-defined]
    assert os.environ["MLFLOW_TRACKING_URI"] == "postgresql://mlflow:hidden@db/mlflow", "which Dagster reads then"
