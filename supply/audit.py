"""Ask a public service whether the pinned packages have known vulnerabilities, by way of pip-audit.

No answer is neither good nor bad: the audit then says "not checked". A service that answers but knows nothing would
look good, so it is first asked about a package that is known to be vulnerable.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from supply.rules import RULES
from xc_core.errors import RefusedError, UnavailableError

SERVICES: Final = {"pypi": "pypi.org", "osv": "api.osv.dev"}
VULNERABLE: Final = "django==1.11"
"""A version with dozens of published vulnerabilities, for instance CVE-2019-14234."""


@dataclass(frozen=True)
class Service:
    """A service that knows vulnerabilities, asked through pip-audit."""

    name: str = "pypi"
    """One of SERVICES."""
    timeout: float = 15.0
    """Seconds that one answer may take."""
    limit: float = 300.0
    """Seconds that all answers together may take."""
    url: str = ""
    """Address of another service that answers as OSV does, for `osv`; empty for OSV itself."""
    program: tuple[str, ...] = (sys.executable, "-m", "pip_audit")

    def ask(self, requirements: list[str]) -> dict[str, dict[str, Any]]:
        """Return what the service knows about each pinned requirement, by name.

        Raises UnavailableError if there is no answer, or one that pip-audit cannot read.
        """
        with tempfile.TemporaryDirectory() as scratch:
            listed = Path(scratch) / "requirements.txt"
            listed.write_text("".join(f"{line}\n" for line in requirements))
            options = ["--requirement", str(listed), "--no-deps", "--disable-pip", "--format", "json", "--desc", "off"]
            options += ["--vulnerability-service", self.name, "--timeout", str(int(self.timeout))]
            options += ["--osv-url", self.url] if self.url else []
            options += ["--aliases", "on", "--progress-spinner", "off", "--cache-dir", str(Path(scratch) / "cache")]
            try:
                done = subprocess.run([*self.program, *options], capture_output=True, text=True, timeout=self.limit)
            except subprocess.TimeoutExpired:
                raise self._unavailable(f"nothing after {self.limit:.0f} s") from None
        try:
            return {one["name"]: one for one in json.loads(done.stdout)["dependencies"]}
        except (ValueError, KeyError, TypeError):
            raise self._unavailable((done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]) from None

    def check_answers(self) -> None:
        """Raise UnavailableError if the service does not know that VULNERABLE is vulnerable."""
        (answer,) = self.ask([VULNERABLE]).values() or ({},)
        if not answer.get("vulns"):
            raise self._unavailable(answer.get("skip_reason", f"it knows no vulnerability of {VULNERABLE}"))

    def _unavailable(self, reason: str) -> UnavailableError:
        return UnavailableError(
            f"no answer from {self.url or SERVICES[self.name]} ({reason[:120]})",
            expected=f"the vulnerabilities of {VULNERABLE}",
            do="run `make audit` where the service can be reached, or choose another with SERVICE=osv",
        )


@dataclass(frozen=True)
class Audit:
    """What a service knows about packages."""

    packages: Mapping[str, Mapping[str, Any]]
    """pip-audit's entries by name: version and vulns, or skip_reason."""
    accepted: Mapping[str, str]
    """Reason by identifier of a vulnerability that does not concern the project."""

    def unknown(self) -> list[str]:
        """Return the packages that the service does not know."""
        return sorted(name for name, one in self.packages.items() if "skip_reason" in one)

    def refusals(self) -> Iterator[RefusedError]:
        """Yield an error per package with a vulnerability that is not accepted."""
        for name, one in sorted(self.packages.items()):
            if open_ := [entry for entry in one.get("vulns", ()) if not _names(entry) & self.accepted.keys()]:
                yield _refusal(name, one["version"], open_)

    def unused(self) -> list[str]:
        """Return the accepted vulnerabilities that no package has."""
        seen = {name for one in self.packages.values() for entry in one.get("vulns", ()) for name in _names(entry)}
        return sorted(self.accepted.keys() - seen)


def audited(requirements: list[str], accepted: Mapping[str, str], service: Service) -> Audit:
    """Return what ``service`` knows about pinned requirements; raise UnavailableError if it does not answer."""
    service.check_answers()
    return Audit(service.ask(requirements), accepted)


def pinned(path: Path) -> list[str]:
    """Return the lines NAME==VERSION of a file, without the local part of a version (2.13.0+cpu is 2.13.0)."""
    lines = (line.split("#")[0].split("+")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if re.fullmatch(r"[\w.-]+==\S+", line)]


def _names(entry: Mapping[str, Any]) -> set[str]:
    """Return all identifiers of a vulnerability: PYSEC, CVE and GHSA."""
    return {entry["id"], *entry.get("aliases", ())}


def _refusal(name: str, version: str, entries: list[Mapping[str, Any]]) -> RefusedError:
    described = [f"{entry['id']} (fixed in {', '.join(entry['fix_versions']) or 'no version'})" for entry in entries]
    return RefusedError(
        ", ".join(described),
        expected="no known vulnerability",
        do=f"pin a fixed version of {name} in constraints.txt; if none concerns this project, "
        f"give the reason in [vulnerabilities] of {RULES.name}",
        where=f"{name} {version}",
    )
