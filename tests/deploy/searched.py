"""Search files for secrets: as they are, in the forms that addresses and headers give them, and inside databases."""

from __future__ import annotations

import base64
import gzip
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

_SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"


def forms(secret: str) -> list[bytes]:
    """Return a secret as it is, quoted as in an address, and the parts of its base64 form that any neighbours leave."""
    encoded = [base64.b64encode(b" " * shift + secret.encode())[4 if shift else 0 :] for shift in range(3)]
    return [secret.encode(), quote(secret, safe="").encode(), *(part.rstrip(b"=")[:-1] for part in encoded)]


def found_in(folder: Path, secrets: Mapping[str, str]) -> list[str]:
    """Return "name of the secret: file" for each file below ``folder`` that holds one."""
    looked_for = {name: forms(secret) for name, secret in secrets.items()}
    return sorted(
        f"{name}: {path.relative_to(folder)}"
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        for name in holds(b"\n".join(contents(path)), looked_for)
    )


def holds(content: bytes, looked_for: Mapping[str, list[bytes]]) -> list[str]:
    """Return the names of the secrets in some bytes."""
    return [name for name, some in looked_for.items() if any(form in content for form in some)]


def contents(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file; what they unpack to; of a database every row, which its pages may cut in two."""
    content = path.read_bytes()
    yield content
    if content.startswith(_GZIP):
        yield gzip.decompress(content)
    if content.startswith(_SQLITE):
        with closing(sqlite3.connect(path)) as database:
            yield "\n".join(database.iterdump()).encode("utf-8", "surrogateescape")
