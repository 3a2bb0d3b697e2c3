"""``python -m supply licences|audit|sbom|release-check``; `make` has a target for each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from datetime import date
from pathlib import Path

import click

from supply import built, licences, sbom
from supply.audit import SERVICES, Service, audited, pinned
from supply.installed import installed, needed
from supply.release import checks, version_of
from supply.rules import Rules
from xc_core.errors import RefusedError, UnavailableError, XCError

PROJECT = Path(__file__).resolve().parents[1]


@click.group()
def cli() -> None:
    """Check what a release is made of."""


@cli.command("licences")
@click.option("--extras", default="cpu,minilm,dev", show_default=True, help="Extras of the project, by commas.")
def check_licences(extras: str) -> None:
    """List the licence of every package that the project needs; fail if one is not allowed."""
    packages, rules = needed(PROJECT, extras.split(",")), Rules.open()
    for name, found in licences.by_licence(packages, rules).items():
        listed = f"{name} ({len(found)}): {', '.join(found)}"
        click.echo(textwrap.fill(listed, 120, subsequent_indent="  ", break_on_hyphens=False))
    for name in licences.unused(packages, rules):
        click.echo(f"note: [licences.read] names {name}, whose metadata changed; delete or correct the entry")
    _conclude(licences.refusals(packages, rules), f"licences of {len(packages)} packages: all allowed")


@cli.command()
@click.option("--service", default="pypi", show_default=True, type=click.Choice(list(SERVICES)))
@click.option("--timeout", default=15.0, show_default=True, help="Seconds for one answer.")
@click.option("--url", default="", help="Address of a service that answers as OSV does; implies --service osv.")
@click.option("--strict", is_flag=True, help="Fail if there is no answer.")
def audit(service: str, timeout: float, url: str, strict: bool) -> None:
    """Ask a public service for known vulnerabilities of the pinned packages; fail if there is one."""
    requirements = pinned(PROJECT / "constraints.txt")
    try:
        asked = Service("osv" if url else service, timeout, url=url)
        result = audited(requirements, Rules.open().accepted, asked)
    except UnavailableError as error:
        if strict:
            raise
        click.echo(f"SKIPPED  vulnerabilities of {len(requirements)} packages: not checked: {error.found}", err=True)
        return
    if names := result.unknown():
        click.echo(f"SKIPPED  not checked, the service does not know them: {', '.join(names)}", err=True)
    for name in result.unused():
        click.echo(f"note: [vulnerabilities] accepts {name}, which no package has; delete the entry")
    count = len(result.packages) - len(names)
    _conclude(
        result.refusals(),
        f"{count} of {len(requirements)} packages: no known vulnerability ({asked.url or asked.name})",
    )


@cli.command("sbom")
@click.option("--output", type=click.Path(path_type=Path), help="Default: dist/xc-platform-VERSION.cdx.json.")
@click.option("--environment", type=click.Path(exists=True, path_type=Path), help="Describe this one; make none.")
def write_sbom(output: Path | None, environment: Path | None) -> None:
    """Write the SBOM of a release; fail if it ships a package whose licence is not allowed."""
    rules, target = Rules.open(), output or PROJECT / "dist" / f"xc-platform-{version_of(PROJECT)}.cdx.json"
    with tempfile.TemporaryDirectory() as scratch:
        python = environment / "bin" / "python" if environment else _release_environment(Path(scratch), rules.extras)
        text = sbom.described(python, PROJECT, _commit_time(), rules)
        packages = list(installed(sbom.site_packages(python)).values())
        _refuse(licences.refusals(packages, rules))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    click.echo(
        f"{len(packages)} packages in {target.relative_to(PROJECT) if target.is_relative_to(PROJECT) else target}"
    )


@cli.command("release-check")
def release_check() -> None:
    """Check all that must hold before the version in pyproject.toml is tagged."""
    failed = 0
    for name, check in checks(PROJECT, date.today()).items():
        found = _raised_or_yielded(check())
        failed += len(found)
        click.echo(f"{'FAIL' if found else 'ok':>4}  {name}")
        for error in found:
            click.echo(textwrap.indent(str(error), "      "))
    if failed:
        click.echo(f"{failed} to fix before v{version_of(PROJECT)} is tagged")
        sys.exit(RefusedError.exit_code)
    click.echo(f"ready: git tag --annotate v{version_of(PROJECT)}")


def _release_environment(scratch: Path, extras: Iterable[str]) -> Path:
    """Install the wheel with the extras of a release and the pinned versions; return the environment's Python."""
    click.echo("making the environment of a release, which takes minutes ...", err=True)
    wheel = built.build(PROJECT, scratch / "dist").wheel
    python = sbom.empty_environment(scratch / "environment")
    pins = str(PROJECT / "constraints.txt")
    sbom.install(python, f"{wheel}[{','.join(extras)}]", "--constraint", pins, "--no-compile")
    return python


def _commit_time() -> int:
    """Return the time of the last commit, in seconds since 1970."""
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout)


def _raised_or_yielded(found: Iterable[XCError]) -> list[XCError]:
    """Return all errors of a check, the one that ended it too."""
    errors: list[XCError] = []
    try:
        errors.extend(found)
    except XCError as error:
        errors.append(error)
    return errors


def _refuse(found: Iterable[XCError]) -> None:
    """Print errors and end with exit code 77, if there are any."""
    if errors := list(found):
        click.echo("\n".join(map(str, errors)), err=True)
        sys.exit(RefusedError.exit_code)


def _conclude(found: Iterable[XCError], good: str) -> None:
    _refuse(found)
    click.echo(good)


def main() -> None:
    """Run a command; an error for users is printed and gives the exit code."""
    try:
        cli(prog_name="python -m supply")
    except XCError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
