"""The audit: no answer is neither good nor bad, an answer that knows nothing is none, a vulnerability is refused."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import supply.__main__
from supply.audit import VULNERABLE, Audit, Service, audited, pinned
from xc_core.errors import UnavailableError

FAKE = """
import json, sys, time
listed = open(sys.argv[sys.argv.index("--requirement") + 1]).read().split()
known = json.loads({known!r})
if known is None:
    sys.exit("requests.exceptions.ConnectionError: no route")
if known == "slow":
    time.sleep(60)
entries = [{{"name": n, "version": v, **known.get(n, {{"vulns": []}})}} for n, v in (x.split("==") for x in listed)]
print(json.dumps({{"dependencies": entries, "fixes": []}}))
sys.exit(any(one.get("vulns") for one in entries))
"""
"""A program with the options and the answers of pip-audit."""
DJANGO = {"vulns": [{"id": "PYSEC-1", "aliases": [], "fix_versions": []}]}
HOLE = {"id": "PYSEC-2", "aliases": ["CVE-2026-1"], "fix_versions": ["1.1", "2.0"]}


def service(folder: Path, known: Any, limit: float = 30) -> Service:
    program = folder / "fake.py"
    program.write_text(FAKE.format(known=json.dumps(known)))
    return Service(limit=limit, program=(sys.executable, "-I", str(program)))


@pytest.mark.parametrize(
    ("known", "limit", "reason"),
    [
        (None, 30, "ConnectionError: no route"),
        ("slow", 0.5, "nothing after 0 s"),
        ({}, 30, f"it knows no vulnerability of {VULNERABLE}"),
        ({"django": {"skip_reason": "not found on PyPI"}}, 30, "not found on PyPI"),
    ],
)
def test_no_answer_and_an_answer_without_knowledge_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Any, limit: float, reason: str
) -> None:
    fake = service(tmp_path, known, limit)
    with pytest.raises(UnavailableError, match=r"no answer from pypi\.org") as caught:
        audited(["thing==1.0"], {}, fake)
    assert reason in str(caught.value)
    monkeypatch.setattr(supply.__main__, "Service", lambda *_, **__: fake)
    done = CliRunner().invoke(supply.__main__.cli, ["audit"])
    assert done.exit_code == 0
    assert done.output.startswith("SKIPPED")
    assert "not checked: no answer from pypi.org" in done.output
    assert "no known vulnerability (" not in done.output
    with pytest.raises(UnavailableError):
        CliRunner().invoke(supply.__main__.cli, ["audit", "--strict"], catch_exceptions=False)


def test_a_vulnerability_is_refused_and_an_unknown_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"django": DJANGO, "numpy": {"vulns": [HOLE]}, "torch": {"skip_reason": "not found"}}
    monkeypatch.setattr(supply.__main__, "Service", lambda *_, **__: service(tmp_path, known))
    done = CliRunner().invoke(supply.__main__.cli, ["audit"])
    assert done.exit_code == 77
    assert "found PYSEC-2 (fixed in 1.1, 2.0)" in done.output
    assert "pin a fixed version of numpy in constraints.txt" in done.output
    assert "SKIPPED  not checked, the service does not know them: torch" in done.output
    monkeypatch.setattr(supply.__main__, "Service", lambda *_, **__: service(tmp_path, {"django": DJANGO}))
    done = CliRunner().invoke(supply.__main__.cli, ["audit"])
    assert done.exit_code == 0
    assert "packages: no known vulnerability (pypi)" in done.output


def test_a_service_of_ones_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = service(tmp_path, {"django": DJANGO})
    monkeypatch.setattr(supply.__main__, "Service", lambda name, _, url: replace(fake, name=name, url=url))
    done = CliRunner().invoke(supply.__main__.cli, ["audit", "--url", "http://audit.example/v1"])
    assert "packages: no known vulnerability (http://audit.example/v1)" in done.output


class Osv(BaseHTTPRequestHandler):
    """Answers as OSV does, for two packages."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        package, name = asked["package"], asked["package"]["name"]
        events = [{"introduced": "0"}, {"fixed": "9.9"}]
        affected = [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}]
        hole = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "affected": affected, "summary": "bad"}
        answer = json.dumps({"vulns": [hole]} if name in ("django", "holey") else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


def test_answers_of_a_service_are_read_by_way_of_pip_audit_itself() -> None:
    with HTTPServer(("127.0.0.1", 0), Osv) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = Service("osv", url=f"http://127.0.0.1:{server.server_port}/v1/query")
        result = audited(["holey==1.0", "sound==2.0"], {}, there)
        server.shutdown()
    (error,) = result.refusals()
    assert str(error).startswith("holey 1.0: found PYSEC-2026-1 (fixed in 9.9)\n")
    assert list(Audit(result.packages, {"CVE-2026-1": "not reachable"}).refusals()) == []
    assert result.unknown() == []


@pytest.mark.parametrize("name", ["PYSEC-2", "CVE-2026-1"])
def test_an_accepted_vulnerability_is_not_refused_by_any_of_its_names(name: str) -> None:
    packages = {"thing": {"name": "thing", "version": "1.0", "vulns": [HOLE]}}
    assert len(list(Audit(packages, {}).refusals())) == 1
    accepted = Audit(packages, {name: "not reachable", "CVE-1": "old"})
    assert list(accepted.refusals()) == []
    assert accepted.unused() == ["CVE-1"]


def test_pins_are_read_without_comments_and_local_versions(tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("# a comment\ntorch==2.13.0+cpu\nzc.lockfile==4.0  # why\nloose>=1\n\n")
    assert pinned(path) == ["torch==2.13.0", "zc.lockfile==4.0"]
