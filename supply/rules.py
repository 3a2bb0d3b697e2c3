"""Read ``rules.toml``: allowed licences, names of licences, licences that were read, accepted vulnerabilities."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from xc_core.errors import ConfigError

RULES: Final = Path(__file__).with_name("rules.toml")


@dataclass(frozen=True)
class Read:
    """The licence of a package that somebody read in its licence file."""

    stated: str
    """What the package's metadata said then."""
    licence: str
    """An SPDX expression."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a person decided about packages."""

    allowed: frozenset[str]
    """SPDX identifiers, some with an exception: "GPL-2.0-only WITH GCC-exception-2.0"."""
    names: Mapping[str, str] = field(default_factory=dict)
    """SPDX expression of a licence's name, in lower case."""
    read: Mapping[str, Read] = field(default_factory=dict)
    """By normalised name of a package."""
    accepted: Mapping[str, str] = field(default_factory=dict)
    """Reason by identifier of a vulnerability."""
    extras: tuple[str, ...] = ()
    """Extras of a release."""

    def __post_init__(self) -> None:
        """Raise ConfigError if something that should be an SPDX expression is not one in its canonical form."""
        for text in (*self.allowed, *self.names.values(), *(one.licence for one in self.read.values())):
            if spdx(text) != text:
                raise ConfigError(
                    f"the licence {text!r}",
                    expected=f"an SPDX expression, for instance {spdx(text) or 'BSD-3-Clause'!r}",
                    do="fix it; https://spdx.org/licenses lists the identifiers",
                    where=RULES.name,
                )

    @classmethod
    def open(cls, path: Path = RULES) -> Self:
        """Read the rules of a file; raise ConfigError if one is not valid."""
        content: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        licences = content["licences"]
        return cls(
            allowed=frozenset(licences["allowed"]),
            names=licences["names"],
            read={canonicalize_name(name): Read(**entry) for name, entry in licences["read"].items()},
            accepted=content["vulnerabilities"],
            extras=tuple(content["release"]["extras"]),
        )


def spdx(text: str) -> str | None:
    """Return ``text`` as a canonical SPDX expression; None if it is not one."""
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return None
