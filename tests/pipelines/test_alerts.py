"""Alerts say what failed and why, and reach a webhook and a mailbox."""

from __future__ import annotations

import json
import smtplib
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from pipelines import alerts
from pipelines.definitions import build
from tests.pipelines.conftest import QUIET
from tests.pipelines.test_sensors import finish
from tests.pipelines.ticker import Ticker
from xc_core.chain import Workspace
from xc_core.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")


class Webhook:
    """A server that keeps what it is sent, and answers with ``status``."""

    def __init__(self) -> None:
        self.status, self.texts = 200, list[str]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.texts.append(json.loads(body)["text"])
                self.send_response(outer.status)
                self.send_header("Location", outer.url)
                self.end_headers()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret-path"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    found = Webhook()
    monkeypatch.setenv(alerts.WEBHOOK, found.url)
    yield found
    found.server.shutdown()
    found.server.server_close()


def judged(instance: dg.DagsterInstance, *, passed: bool, job: str = "retrain") -> None:
    """Run a job whose check ``gate`` has this result; "" for a run of the asset itself."""

    @dg.asset(check_specs=[dg.AssetCheckSpec("gate", asset="model")])
    def model() -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster refuses MaterializeResult[Any] with checks
        result = dg.AssetCheckResult(passed=passed, check_name="gate", description="P@5 is 6.5 below the champion")
        return dg.MaterializeResult(check_results=[result])

    jobs = [dg.define_asset_job(job, selection="*")] if job else []
    found = dg.Definitions(assets=[model], jobs=jobs)
    built = found.resolve_job_def(job) if job else found.resolve_implicit_global_asset_job_def()
    chosen = None if job else [dg.AssetKey("model")]
    tags = {"dagster/partition": "toy|ngame"}
    assert built.execute_in_process(QUIET, instance, tags=tags, asset_selection=chosen).success


@pytest.mark.parametrize(
    ("job", "tags", "where"),
    [("prepare", {"dagster_partition": "toy"}, "toy"), ("retrain", {"dagster_partition": "toy|ngame"}, "toy|ngame"),
     ("compare", {}, "-")],
)  # fmt: skip
def test_a_failed_run_is_reported_with_job_partition_and_cause(
    workspace: Workspace, instance: dg.DagsterInstance, webhook: Webhook, job: str, tags: dict[str, str], where: str
) -> None:
    ticker = Ticker(workspace, instance, "alert_failed_runs")
    ticker.tick()
    run = finish(instance, job, fails=True, **tags)
    (reaction,) = ticker.tick().dagster_run_reactions
    assert (reaction.dagster_run.run_id, reaction.error) == (run, None)
    (text,) = webhook.texts
    assert text.startswith(f"{job} of {where} (run {run[:8]}) failed: step: ")
    assert "no room on the disk" in text


def test_a_run_that_succeeds_is_not_reported(
    workspace: Workspace, instance: dg.DagsterInstance, webhook: Webhook
) -> None:
    for name in ("alert_failed_runs", "alert_failed_checks"):
        ticker = Ticker(workspace, instance, name)
        ticker.tick()
        judged(instance, passed=True)
        ticker.tick()
    assert webhook.texts == []


@pytest.mark.parametrize("job", ["retrain", "refresh", "another", ""])
def test_a_refusal_by_the_gate_is_reported(
    workspace: Workspace, instance: dg.DagsterInstance, webhook: Webhook, job: str
) -> None:
    """Also in a run that somebody started by "Materialize"."""
    ticker = Ticker(workspace, instance, "alert_failed_checks")
    ticker.tick()
    judged(instance, passed=False, job=job)
    ticker.tick()
    (text,) = webhook.texts
    assert text.startswith(f"{job or 'model'} of toy|ngame (run ")
    assert text.endswith("succeeded, but: check gate of model failed: P@5 is 6.5 below the champion")


def test_a_login_is_hidden_also_where_an_alert_is_cut() -> None:
    """Cut first, the end of the address that makes it one would be gone."""
    logged: list[str] = []
    context: Any = SimpleNamespace(log=SimpleNamespace(error=logged.append))
    alerts.alert(context, "x" * (alerts._MAX_CHARACTERS - 18) + " http://me:hunter22@example.org/runs")
    assert len(logged[0]) <= alerts._MAX_CHARACTERS
    assert logged[0].startswith("xxx") and "hunter" not in logged[0]


@pytest.mark.parametrize("trouble", ["refused", "closed", "no address", "moved"])
def test_an_alert_that_cannot_be_sent_is_logged_without_the_address(
    workspace: Workspace,
    instance: dg.DagsterInstance,
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    trouble: str,
) -> None:
    webhook.status = 302 if trouble == "moved" else 500
    if trouble == "closed":
        monkeypatch.setenv(alerts.WEBHOOK, "http://127.0.0.1:9/secret-path")
    if trouble == "no address":
        monkeypatch.setenv(alerts.WEBHOOK, "file:///secret-path")
    ticker = Ticker(workspace, instance, "alert_failed_runs")
    ticker.tick()
    finish(instance, "prepare", fails=True, dagster_partition="toy")
    (reaction,) = ticker.tick().dagster_run_reactions
    assert reaction.error is None
    logged = capsys.readouterr().err
    assert "prepare of toy (run " in logged
    assert "the alert was not sent to XC_ALERT_WEBHOOK" in logged
    assert "secret-path" not in logged


def test_an_alert_is_sent_by_mail(
    workspace: Workspace, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, int, EmailMessage]] = []

    class Server:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            self.place = (host, port)

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send_message(self, message: EmailMessage) -> None:
            sent.append((*self.place, message))

    monkeypatch.setattr(smtplib, "SMTP", Server)
    monkeypatch.setenv(alerts.MAIL, "team@example.org")
    monkeypatch.setenv(alerts.SMTP, "mail.example.org:2525")
    ticker = Ticker(workspace, instance, "alert_failed_runs")
    ticker.tick()
    finish(instance, "prepare", fails=True, dagster_partition="toy")
    ticker.tick()
    ((host, port, message),) = sent
    assert (host, port, message["To"]) == ("mail.example.org", 2525, "team@example.org")
    assert "no room on the disk" in message.get_content()
    assert "\n" not in message["Subject"]


class Log(list[str]):
    """The log of a sensor, as far as an alert needs it."""

    @property
    def log(self) -> Log:
        return self

    error = list.append


@pytest.mark.parametrize(
    ("server", "place"),
    [
        (None, ("localhost", 25)),
        ("", ("localhost", 25)),
        ("mail.example.org", ("mail.example.org", 25)),
        ("mail:2525", ("mail", 2525)),
        ("[::1]:25", ("::1", 25)),
    ],
)
def test_a_mail_server_is_this_machine_and_port_25_by_default(
    monkeypatch: pytest.MonkeyPatch, server: str | None, place: tuple[str, int]
) -> None:
    """It refuses the mail, which is logged; the webhook has been told before."""
    asked: list[Any] = []

    def refuse(*where: Any, timeout: float) -> None:
        asked.append((where, timeout))
        raise smtplib.SMTPServerDisconnected("team@example.org")

    monkeypatch.setattr(smtplib, "SMTP", refuse)
    monkeypatch.setattr(alerts, "_post", lambda url, text: asked.append(url))
    monkeypatch.setenv(alerts.WEBHOOK, "http://hook")
    monkeypatch.setenv(alerts.MAIL, "team@example.org")
    monkeypatch.delenv(alerts.SMTP, raising=False)
    if server is not None:
        monkeypatch.setenv(alerts.SMTP, server)
    log: Any = Log()
    alerts.alert(log, "retrain of toy failed")
    assert asked == ["http://hook", (place, 10)]
    assert log == ["retrain of toy failed", "the alert was not sent to XC_ALERT_MAIL: SMTPServerDisconnected"]


def test_a_webhook_that_takes_no_alert_does_not_keep_the_mail_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(alerts, "_mail", lambda address, text: sent.append(f"{address}: {text}"))
    monkeypatch.setenv(alerts.WEBHOOK, "no address")
    monkeypatch.setenv(alerts.MAIL, "team@example.org")
    log: Any = Log()
    alerts.alert(log, "retrain of toy failed")
    assert sent == ["team@example.org: retrain of toy failed"]
    assert log == ["retrain of toy failed", "the alert was not sent to XC_ALERT_WEBHOOK: ValueError"]


def test_a_webhook_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensor waits meanwhile, and no other failure is reported."""
    monkeypatch.setattr(alerts, "_SECONDS", 0.05)
    monkeypatch.delenv(alerts.MAIL, raising=False)
    log: Any = Log()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        late = threading.Timer(20, silent.close)
        late.start()
        monkeypatch.setenv(alerts.WEBHOOK, f"http://127.0.0.1:{silent.getsockname()[1]}")
        alerts.alert(log, "retrain of toy failed")
        late.cancel()
    assert log == ["retrain of toy failed", "the alert was not sent to XC_ALERT_WEBHOOK: TimeoutError"]


@pytest.mark.parametrize(
    "text", ["mail:x", "mail:-1", "mail:99999", "mail:２５", ":25", " mail:25", "me@mail", "::1", "[::1"]
)
def test_a_mail_server_of_another_form_is_refused_when_dagster_loads_the_project(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(alerts.SMTP, text)
    with pytest.raises(ConfigError, match="a mail server as host:port"):
        build(workspace)


def test_the_subject_of_a_mail_is_the_start_of_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[EmailMessage] = []
    server: Any = nullcontext(type("Server", (), {"send_message": lambda self, message: sent.append(message)})())
    monkeypatch.setattr(smtplib, "SMTP", lambda *_, **__: server)
    alerts._mail("team@example.org", f"{'x' * 200}\nmore")
    assert (sent[0]["Subject"], sent[0].get_content()) == ("x" * 120, f"{'x' * 200}\nmore\n")


def test_the_cause_of_a_failure_is_that_of_the_first_error() -> None:
    def error(message: str, cause: Any = None) -> Any:
        return type("Error", (), {"message": message, "cause": cause})()

    assert alerts._root_message(error("outer", error("middle", error(" inner\n")))) == "inner"
    assert alerts._root_message(None) == ""


def test_a_long_alert_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(alerts.WEBHOOK, raising=False)
    monkeypatch.delenv(alerts.MAIL, raising=False)
    log: Any = Log()
    alerts.alert(log, "x" * 9_000)
    assert log == ["x" * 4_000]


def test_an_alert_hides_the_logins_of_addresses(
    workspace: Workspace, instance: dg.DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "_causes", lambda _: ["no answer from http://me:5ecret@tracking:5000/api"])
    ticker = Ticker(workspace, instance, "alert_failed_runs")
    ticker.tick()
    finish(instance, "compare", fails=True)
    ticker.tick()
    (text,) = webhook.texts
    assert text.endswith("no answer from http://***@tracking:5000/api")
