"""Recognise files that may hold a password, a token or a private key, so that no record of a run carries them away."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

_NAMES: Final = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".htpasswd",
    ".git-credentials", "kubeconfig", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12",
    "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*secret*", "*credential*", "*password*", "*passwd*",
)  # fmt: skip
"""Patterns of lower-case file names."""
_FOLDERS: Final = frozenset({".aws", ".azure", ".docker", ".gnupg", ".kube", ".ssh", "secrets"})
_SOURCE: Final = frozenset({".py", ".pyi", ".md", ".rst"})
"""Suffixes of code and texts, which may speak of passwords: only a value that is one counts."""
_SHAPES: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    rb"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    rb"|\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_\w{22,}|glpat-[\w-]{20,})"  # GitHub, GitLab
    rb"|\bhf_[0-9A-Za-z]{30,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{35}\b|\bsk-[\w-]{20,}"  # Hugging Face, Slack, others
)
"""Keys and tokens that are recognised by their form."""
_LOGIN: Final = re.compile(rb"://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@")
"""The login in an address."""
_SETTING: Final = re.compile(
    rb"(?:password|passwd|passphrase|secret|(?:api|access|account|private)_?key|(?:access|auth|api)_?token)"
    rb"[\"']?[ \t]*[:=][ \t]*[\"']?(?!\d+(?:[\s,;}\]]|$))[^\s\"'#,;}{$<][^\s\"'#,;}]{3,}",
    re.IGNORECASE,
)
"""A setting with a value. A bare number is a word's id in a vocabulary; ``{env: X}`` and ``$X`` name a variable."""
_VARIABLE: Final = re.compile(r"PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN(?!IZER)|(?:API|ACCESS|PRIVATE)_?KEY|WEBHOOK")
_SHORTEST: Final = 8
"""Characters of a variable's value that is looked for: a shorter one is in many texts by chance."""


def why_confidential(name: str, content: bytes) -> str:
    """Return why a file may hold a secret, in words; an empty string if nothing says so.

    ``name`` is its path in the project. Its name counts, and what is in it: keys and tokens of known forms, values of
    the environment's own secrets, and, except in code and texts, passwords in settings and addresses.
    """
    path = PurePosixPath(name.lower())
    is_source = path.suffix in _SOURCE
    if not is_source and (any(fnmatch(path.name, pattern) for pattern in _NAMES) or _FOLDERS & set(path.parts[:-1])):
        return "named as files with secrets are"
    if _SHAPES.search(content):
        return "holds a key or a token"
    if not is_source and (_SETTING.search(content) or _LOGIN.search(content)):
        return "holds a password, a key or a login"
    leaked = next((variable for variable, value in _values(os.environ).items() if value in content), "")
    return leaked and f"holds the value of {leaked}"


def _values(environment: Mapping[str, str]) -> dict[str, bytes]:
    """Return the secrets of the environment by the names of their variables; also the password in an address."""
    values = {name: value for name, value in environment.items() if _VARIABLE.search(name.upper())}
    for name, value in environment.items():
        if login := re.search(r"://[^/\s:@]*:([^\s]+)@", value):
            values[name] = login[1]
    return {name: os.fsencode(value) for name, value in values.items() if len(value) >= _SHORTEST}
