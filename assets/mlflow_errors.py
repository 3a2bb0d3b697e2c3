"""Errors of MLflow, its database, its store of files and the network, with what to do about them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from assets.settings import REGISTRY_URI, TRACKING_URI, given_addresses, hide_secrets
from assets.waiting import TIMEOUT
from xc_core.causes import is_locked, storage_error, storage_reason
from xc_core.errors import ConfigError, UnavailableError, first_line
from xc_core.plugins import importing
from xc_core.sqlite import lockers, sqlite_file, without_locks
from xc_core.visible import cut

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException

_ANSWERS: Final = (
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_STATE",
    "BAD_REQUEST",
    "NOT_IMPLEMENTED",
    "ENDPOINT_NOT_FOUND",
)
"""MLflow's codes of errors about the request: it names what does not exist or is not accepted. Other errors may be of
the network."""
_ABSENT: Final = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a missing model or version, and for a missing alias."""
_TLS: Final = re.compile(r"SSLError|\bTLS\b.*invalid path")
_NO_LOGIN: Final = re.compile(r"\(403\)|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|credentials")
"""What the S3 client says of a login that is missing, wrong or without permission."""
_EXPIRED: Final = re.compile(r"ExpiredToken|InvalidToken|RequestExpired|\b(token|session)\b.*\bexpired")
"""What it says of a temporary login that has ended."""
_NO_STORE: Final = re.compile(
    r"filesystem tracking backend|unsupported URI|not supported by the store with URI|SQLAlchemy URL|Invalid SQLite URL"
)
"""What MLflow says of an address that names no server and no database, for instance a folder of runs."""
_DAMAGED: Final = re.compile(r"file is not a database|disk image is malformed|file is encrypted")
"""What sqlite says of a file that is damaged, or no database."""
_DATABASES: Final = ("postgresql", "mysql", "mssql", "sqlite")
"""Kinds of databases that MLflow takes."""
_PACKAGES: Final = {
    **dict.fromkeys(("psycopg", "psycopg2"), "-c constraints.txt -e '.[postgres]'"),
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
}
"""What pip installs for the module of a driver; for other drivers it has the name of the module."""
_REASON: Final = re.compile(r"""\(Caused by .*(["'])(.+?)\1\)\)""")
"""The innermost reason in an error of requests: the address before it may be so long that a message is cut there."""


@contextmanager
def answering(uri: str) -> Iterator[None]:
    """Turn errors of MLflow, its database, its store of files or the network in the block into an UnavailableError.

    It is a StorageError if a disk is full or refuses the write: that of temporary files, where MLflow copies a model
    first, or that of its database, if this is a file. It is a ConfigError if MLflow cannot use the address at all.
    """
    with importing():
        from mlflow.exceptions import MlflowException
        from requests import RequestException
        from sqlalchemy.exc import SQLAlchemyError

    variable = _variable(uri)  # now: in the block MLflow may write the address into the environment as that of runs
    s3_errors = _errors_of_s3()
    handled: tuple[type[Exception], ...] = (MlflowException, RequestException, SQLAlchemyError, *s3_errors)
    try:
        yield
    except handled as error:
        temporary = tempfile.tempdir  # gettempdir raises an error itself if no folder can be written
        file = Path(temporary) if temporary and f"'{temporary}/" in str(error) else sqlite_file(uri)
        if file and (reason := storage_reason(error, file)):
            raise storage_error(reason, file) from None
        if _NO_STORE.search(str(error)):
            raise _address_error(error, uri, variable) from None
        of_s3 = isinstance(error, s3_errors)
        problem, expected, do = _advice_on_s3(error) if of_s3 else _advice(error, uri, variable)
        cause = RuntimeError(nested[2]) if (nested := _REASON.search(str(error))) else error
        service = "the S3 store of MLflow's files" if of_s3 else f"MLflow at {hide_secrets(uri)}"
        found = f"{problem} {service} ({hide_secrets(first_line(cause))})"
        do += "; then run the same command or job again (finished artefacts are kept)"
        # Dagster would store the cause, which has the address with its login
        raise UnavailableError(found, expected=expected, do=do) from None


def _variable(uri: str) -> str:
    """Return the variable that names the address ``uri``."""
    tracking, registry = given_addresses()
    return REGISTRY_URI if tracking != uri == registry else TRACKING_URI


def check_drivers(*addresses: str) -> None:
    """Raise ConfigError if the driver of a database is not installed, or does not exist; MLflow ends with its error."""
    for uri in addresses:
        _check_driver(uri)


def _check_driver(uri: str) -> None:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    if (kind := re.split(r"[+:]", uri, maxsplit=1)[0]) not in _DATABASES:
        return
    address = f"{_variable(uri)} = {hide_secrets(uri)}"
    try:
        make_url(uri).get_dialect().import_dbapi()
    except ValueError:  # whose text may have a part of the password
        raise ConfigError(
            f"{address}, an address whose port is no number",
            expected="host:5432, or host alone; @ in a login is written %40",
            do="fix the variable",
        ) from None
    except NoSuchModuleError:
        raise ConfigError(
            f"{address}, an address with a driver that SQLAlchemy does not know",
            expected="one that it knows, such as postgresql+psycopg2:// or mysql+pymysql://",
            do="fix the variable",
        ) from None
    except ArgumentError:  # what is no address of a database is refused by MLflow
        return
    except ImportError as error:
        module = (error.name or "").partition(".")[0] or "its package"
        raise ConfigError(
            f"{address}, a database whose driver cannot be imported ({hide_secrets(first_line(error))})",
            expected="a driver that is installed in this environment",
            do=f"pip install {_PACKAGES.get(module, module)}, or name another driver, which is installed: "
            f"{kind}+DRIVER://",
        ) from None


def _address_error(error: Exception, uri: str, variable: str) -> ConfigError:
    do = "fix the variable; `mlflow migrate-filestore` moves the runs of a folder into a database"
    if uri.startswith("postgres:"):  # as some services write it
        do = "write postgresql+psycopg2:// in place of postgres://"
    return ConfigError(
        f"{variable} = {hide_secrets(uri)}, an address that MLflow does not take "
        f"({hide_secrets(cut(first_line(error), 100))})",
        expected="a tracking server, such as http://host:5000, or a database, such as sqlite:////absolute/path.db",
        do=do,
    )


@contextmanager
def if_there() -> Iterator[None]:
    """Ignore an error of MLflow in the block if something does not exist or was deleted; raise other errors."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if not is_absent(error):
            raise


def is_absent(error: MlflowException) -> bool:
    """Return True if MLflow says that a model, a version or an alias does not exist; anything else is a fault."""
    return error.error_code in _ABSENT


def _advice(error: Exception, uri: str, variable: str) -> tuple[str, str, str]:
    """Return what an error of MLflow is, what was expected, and what to do."""
    if is_locked(error):
        if (file := sqlite_file(uri)) and without_locks(file.parent):
            do = f"mount its disk with locks, or give another address: {variable}=sqlite:////PATH/mlflow.db"
            return "no answer from", "a database on a disk that gives file locks", do
        do = f"wait for the end of {lockers(file) or 'the other program'}, or end it"
        return "no answer from", "a database that no other program keeps locked", do
    if (file := sqlite_file(uri)) and _DAMAGED.search(str(error)):
        do = (
            f"fix {variable} if it names another file; else restore {file} from a backup or, without one, move it away "
        )
        do += "and register the packed models again (xc promote --recipe)"
        return "no whole database of", "a database of MLflow that sqlite can read", do
    if file and "unable to open database file" in str(error):
        if file.is_dir():
            return (
                "a folder instead of a file for",
                "the address of a file",
                f"name a file in it: {variable}=sqlite:///{file}/mlflow.db",
            )
        expected = "a file, in a folder that is there and can be written"
        return "no file that can be opened for", expected, f"make the folder {file.parent}, or fix {variable}"
    code = getattr(error, "error_code", "")
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        do = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return "a refusal by", "a login that has this permission", do
    if code == "INVALID_PARAMETER_VALUE":
        do = "fix the value if it is a setting of yours (MLFLOW_...), or use the same release of MLflow there as here"
        return "a value refused by", "values that MLflow takes", do
    if code in _ANSWERS:
        do = "see whether somebody deleted it, or MLFLOW_TRACKING_URI or MLFLOW_REGISTRY_URI names another MLflow"
        return "an error of", "an MLflow that has what this project recorded there, and takes its requests", do
    if re.search(r"too many \d+ error responses", str(error)):
        return "errors of", "a server that answers requests", "look at the log of the server, or of the proxy before it"
    if "Read timed out" in str(error):
        return "no answer in time from", "an idle server", f"look at its load, or set {TIMEOUT} to more seconds"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        do = "set MLFLOW_TRACKING_SERVER_CERT_PATH to a file with the certificate of the authority that signed the "
        do += "server's; renew one that is expired, or use the host that it names"
        return "a certificate that is not trusted, of", "one that is valid for this host", do
    if _TLS.search(str(error)):
        do = "write http:// if the server has no TLS; else fix the file that holds certificates "
        do += "(MLFLOW_TRACKING_SERVER_CERT_PATH, MLFLOW_TRACKING_CLIENT_CERT_PATH, REQUESTS_CA_BUNDLE)"
        return "no TLS connection to", "a server that takes TLS, and files of certificates that can be read", do
    expected = "a reachable tracking server, or sqlite:////absolute/path.db"
    return "no answer from", expected, f"start the server or set {variable}"


def _advice_on_s3(error: Exception) -> tuple[str, str, str]:
    """Return what an error of the S3 client is, what was expected, and what to do; it has variables of its own."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        do = "set AWS_CA_BUNDLE to a file with the certificate of the authority that signed the store's; renew one "
        do += "that is expired, or use the host that it names"
        return "a certificate that is not trusted, of", "one that is valid for this host", do
    if "SSL" in text:
        do = "write http:// in AWS_ENDPOINT_URL or MLFLOW_S3_ENDPOINT_URL if the store has no TLS; else fix the file "
        return "no TLS connection to", "a store that takes TLS, and certificates that can be read", do + "AWS_CA_BUNDLE"
    if "RequestTimeTooSkewed" in text:
        return "a refusal by", "the same time here as there, to a few minutes", "set the clock of this machine"
    if _EXPIRED.search(text):
        do = "renew the login: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile's session"
        return "a refusal by", "a temporary login that has not expired", do
    if _NO_LOGIN.search(text):
        return "a refusal by", "a login that has this permission", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if "NoSuchBucket" in text:
        return "no bucket in", "the bucket of XC_MLFLOW_ARTIFACTS", "create it, or fix XC_MLFLOW_ARTIFACTS"
    do = "start the store, or fix AWS_ENDPOINT_URL or MLFLOW_S3_ENDPOINT_URL"
    return "no answer from", "a store that answers", do


def _errors_of_s3() -> tuple[type[Exception], ...]:
    """Return the errors of the S3 client, which MLflow does not convert; none if it is not installed."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ()
    return (Boto3Error, BotoCoreError, ClientError)
