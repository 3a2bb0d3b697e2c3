"""Alerts: a failed run, and a failed check of a run that succeeded, such as a refusal by the gate.

Each alert is logged by its sensor, and sent to a webhook (XC_ALERT_WEBHOOK) and by mail (XC_ALERT_MAIL, XC_SMTP) if
these are set. A webhook gets JSON with the field ``text``, which Slack, Mattermost and Teams read. Addresses come from
the environment alone and are never logged.
"""

from __future__ import annotations

import json
import os
import smtplib
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from email.message import EmailMessage
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

import dagster as dg

from assets.dagster_internals import OWN_JOB, PARTITION
from assets.links import dagster_run
from assets.settings import hide_secrets
from xc_core.errors import ConfigError, preview

WEBHOOK: Final = "XC_ALERT_WEBHOOK"
MAIL: Final = "XC_ALERT_MAIL"
SMTP: Final = "XC_SMTP"
_SECONDS: Final = 10
"""Time that a webhook or mail server has to answer."""
_MAX_CHARACTERS: Final = 4_000
"""Characters of an alert."""


def failures() -> dg.SensorDefinition:
    """Return the sensor that reports every failed run with its cause."""

    @dg.run_failure_sensor(
        name="alert_failed_runs", default_status=dg.DefaultSensorStatus.RUNNING, description="Reports every failed run."
    )
    def _report(context: dg.RunFailureSensorContext) -> None:
        causes = list(_causes(context)) or [context.failure_event.message or "no reason given"]
        alert(context, f"{_run_title(context.dagster_run)} failed: {'; '.join(causes)}")

    return _report


def refusals() -> dg.SensorDefinition:
    """Return the sensor that reports failed checks of runs that succeeded: a refusal by the gate, for instance."""

    @dg.run_status_sensor(
        name="alert_failed_checks",
        run_status=dg.DagsterRunStatus.SUCCESS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports failed checks of runs that succeeded, of jobs and of assets that somebody materialised: a "
        "model that the gate refused, for instance.",
    )
    def _report(context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        failed = list(_failed_checks(context.instance, context.dagster_run.run_id))
        if failed:
            alert(context, f"{_run_title(context.dagster_run)} succeeded, but: {'; '.join(failed)}")
        return None

    return _report


def alert(context: dg.RunStatusSensorContext, text: str) -> None:
    """Log ``text`` and send it to the webhook and the address that are set; what cannot be sent is logged too.

    Logins in addresses are hidden: the text has messages of other libraries.
    """
    text = hide_secrets(text)[:_MAX_CHARACTERS]
    context.log.error(text)
    for name, send in ((WEBHOOK, _post), (MAIL, _mail)):
        if target := os.environ.get(name):
            try:
                send(target, text)
            except (OSError, ValueError, HTTPException, smtplib.SMTPException) as error:
                context.log.error(f"the alert was not sent to {name}: {type(error).__name__}")


def _run_title(run: dg.DagsterRun) -> str:
    page, job = dagster_run(run.run_id), run.job_name
    if job.startswith(OWN_JOB):  # for assets that somebody materialised
        job = ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ())) or "assets"
    return f"{job} of {run.tags.get(PARTITION, '-')} (run {page or run.run_id[:8]})"


def _causes(context: dg.RunFailureSensorContext) -> Iterator[str]:
    """Yield what each failed step says."""
    for event in context.get_step_failure_events():
        data = event.step_failure_data
        description = data.user_failure_data.description if data.user_failure_data else None
        yield f"{event.step_key}: {description or _root_message(data.error) or event.message}"


def _root_message(error: Any) -> str:
    """Return the message of the first error in a chain of causes."""
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else ""


def _failed_checks(instance: dg.DagsterInstance, run_id: str) -> Iterator[str]:
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        event = entry.dagster_event
        evaluation = event.asset_check_evaluation_data if event is not None else None
        if evaluation is not None and not evaluation.passed:
            key = evaluation.asset_key.to_user_string()
            reason = f": {evaluation.description}" if evaluation.description else ""
            yield f"check {evaluation.check_name} of {key} failed{reason}"


def _post(url: str, text: str) -> None:
    """Send ``text`` to a webhook.

    Raises ValueError for an address that is not http or https, OSError or HTTPException if it is not taken.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not an http address")
    request = urllib.request.Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=_SECONDS):
        pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirection an error: urllib would follow it by a GET without the text, and the alert would be lost."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""
        return


def mail_server() -> tuple[str, int]:
    """Return host and port of XC_SMTP, by default localhost and 25; raise ConfigError if it has another form."""
    text = os.environ.get(SMTP) or "localhost"
    with suppress(ValueError):  # a port that is no number up to 65535, a bracket that is not closed
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.netloc == text and "@" not in text and text.split() == [text]:
            return parts.hostname, parts.port or 25
    found, do = f"{SMTP}={preview(text)}", f"fix {SMTP}, or unset it"
    raise ConfigError(found, expected="a mail server as host:port", do=do)


def _mail(address: str, text: str) -> None:
    """Send ``text`` by the mail server of XC_SMTP (host:port, by default localhost:25), which asks for no password."""
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = text.splitlines()[0][:120], "xc@localhost", address
    message.set_content(text)
    host, port = mail_server()
    with smtplib.SMTP(host, port, timeout=_SECONDS) as server:
        server.send_message(message)
