"""What the project uses of Dagster beyond its interface is there: an upgrade that changes it is seen here."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.storage import tags
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import consume_new_runs_for_automatic_reexecution

from assets import dagster_internals
from assets.dagster_internals import WILL_RETRY, errors_of_postgres, retry_failed
from tests.pipelines.conftest import QUIET


def test_tags_and_jobs_have_the_names_that_dagster_gives_them() -> None:
    """A tag of another name would be missing without an error: no run would be retried, or each of them twice."""
    theirs = {
        "PARTITION": tags.PARTITION_NAME_TAG,
        "PARENT_RUN": tags.PARENT_RUN_ID_TAG,
        "BACKFILL": tags.BACKFILL_ID_TAG,
        "WILL_RETRY": tags.WILL_RETRY_TAG,
        "AUTO_RETRY": tags.AUTO_RETRY_RUN_ID_TAG,
        "LAUNCHED_BY": tags.SENSOR_NAME_TAG,
        "MAX_RETRIES": tags.MAX_RETRIES_TAG,
        "MATERIALIZE": IMPLICIT_ASSET_JOB_NAME,
    }
    ours = {name: value for name, value in vars(dagster_internals).items() if name.isupper() and name[0] != "_"}
    assert ours.pop("OWN_JOB") == IMPLICIT_ASSET_JOB_NAME[:2]
    assert ours == theirs


def test_a_retry_that_dagster_could_not_start_is_known_by_its_message() -> None:
    """Dagster's own code tries it, without a code server."""
    with dg.DagsterInstance.ephemeral(settings={"run_retries": {"enabled": True, "max_retries": 1}}) as instance:
        run = create_run_for_test(instance, "retrain", status=dg.DagsterRunStatus.STARTED)
        instance.report_run_failed(run, "The process of the run was killed.")
        (record,) = instance.get_run_records()
        assert record.dagster_run.tags[WILL_RETRY] == "true"
        assert not retry_failed(instance, run)
        daemon: Any = SimpleNamespace(instance=instance, create_request_context=Mock(side_effect=ConnectionError))
        list(consume_new_runs_for_automatic_reexecution(daemon, [record], logging.getLogger("daemon")))
        assert retry_failed(instance, run)


def test_the_error_of_dagsters_postgres_is_known_if_its_package_is_installed() -> None:
    """Under another name it would be taken for a package that is not installed."""
    pytest.importorskip("dagster_postgres")
    assert errors_of_postgres()


@pytest.mark.filterwarnings("ignore")
def test_pipes_has_the_parts_that_a_stage_takes_and_warns_of_a_preview_of_its_own() -> None:
    """``assets.processes`` opens the session itself, and ``assets.stages`` hides the warning."""
    pipes = dg.PipesSubprocessClient()

    @dg.op
    def opens(context):  # Dagster refuses annotations that are texts
        parts: dict[str, Any] = {"context_injector": pipes.context_injector, "message_reader": pipes.message_reader}
        with dg.open_pipes_session(context, **parts) as session:
            assert session.get_bootstrap_env_vars()
        assert not session.get_custom_messages()

    @dg.job
    def own() -> None:
        opens()

    with pytest.warns(dg.PreviewWarning, match=r".*expected_writer_count"):
        assert own.execute_in_process(QUIET).success
