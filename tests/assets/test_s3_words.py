"""The words by which errors of an object store are known are those of boto3, which need not be installed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assets.mlflow_errors import answering
from tests.assets.test_tracking import certificate
from xc_core.errors import UnavailableError

boto3 = pytest.importorskip("boto3", reason="pip install -e '.[s3]'")
pytestmark = pytest.mark.filterwarnings("ignore")
LOGIN = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@contextmanager
def store(code: str = "AccessDenied", tls: Path | None = None) -> Iterator[str]:
    """Yield the address of a store that answers each request with an error."""

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            content = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def client(address: str) -> Any:
    config = boto3.session.Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=5)
    return boto3.session.Session().client("s3", "eu-north-1", endpoint_url=address, config=config)


def refused(request: Callable[[], object]) -> str:
    """Return what the error of a request is called."""
    with pytest.raises(UnavailableError) as caught, answering("http://tracking:5000"):
        request()
    return str(caught.value)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("AccessDenied", "a refusal by the S3 store"),
        ("InvalidAccessKeyId", "a refusal by the S3 store"),
        ("ExpiredToken", "a temporary login that has not expired"),
        ("RequestTimeTooSkewed", "the same time here as there"),
        ("NoSuchBucket", "no bucket in the S3 store"),
    ],
)
def test_the_code_of_an_answer_is_in_the_words(code: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    with store(code) as address:
        plain = client(f"http://{address}")
        assert found in refused(lambda: plain.put_object(Bucket="b", Key="k", Body=b"a"))
        assert found in refused(lambda: plain.upload_file(str(tmp_path / "file"), "b", "k")), "as MLflow does"


def test_an_answer_without_a_code_has_its_number() -> None:
    with store() as address:
        assert "a refusal by the S3 store" in refused(
            lambda: client(f"http://{address}").head_object(Bucket="b", Key="k")
        )


def test_a_login_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with store() as address:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        assert "set AWS_ACCESS_KEY_ID" in refused(lambda: client(f"http://{address}").list_buckets())
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        assert "set AWS_ACCESS_KEY_ID" in refused(lambda: client(f"http://{address}").list_buckets())


def test_a_session_that_has_expired_is_said() -> None:
    from botocore.exceptions import UnauthorizedSSOTokenError

    def ask() -> None:
        raise UnauthorizedSSOTokenError

    assert "a temporary login that has not expired" in refused(ask)


def test_tls_and_a_store_that_is_down_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no answer from the S3 store" in refused(lambda: client("http://127.0.0.1:9").list_buckets())
    with store() as address:
        assert "no TLS connection to the S3 store" in refused(lambda: client(f"https://{address}").list_buckets())
    with store(tls=certificate(tmp_path / "server.pem", "127.0.0.1", 3)) as address:
        found = refused(lambda: client(f"https://{address}").list_buckets())
        assert "a certificate that is not trusted, of the S3 store" in found
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "absent.pem"))
        assert "no TLS connection to the S3 store" in refused(lambda: client(f"https://{address}").list_buckets())
