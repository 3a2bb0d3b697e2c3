"""``make mutants``: change the code in one place at a time, run the tests that matter, list the changes they missed.

The working tree is copied first and stays as it is. A run of whole packages writes its scores into docs/tests.md.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from tests.mutants.entered import SECONDS, Entered, Tracer
from tests.mutants.judge import (
    LIBRARIES,
    PASSED,
    SERVERS,
    UNDECIDED,
    Limits,
    Verdict,
    changed,
    copy_tree,
    judge,
    preload,
)
from tests.mutants.places import Mutant, mutants, sample
from tests.mutants.scopes import SCOPES, Scope, modules, scope_of
from tests.pages import between, fill

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tests.md"
KNOWN = ROOT / ".xc" / "mutants.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
HEAD = "| package | places | tried | killed | equivalent | survived | score | date |"


@dataclass
class Tally:
    """What came of the mutants of a scope."""

    scope: Scope
    places: int
    killed: int = 0
    equivalent: int = 0
    survived: list[str] = field(default_factory=list)
    undecided: int = 0
    """Those that the clock ended; they count for nothing."""

    @property
    def tried(self) -> int:
        return self.killed + self.equivalent + len(self.survived)

    @property
    def score(self) -> float:
        """Share of killed mutants; those that change nothing do not count."""
        return self.killed / max(self.killed + len(self.survived), 1)

    def row(self) -> str:
        """Return a row of the table in docs/tests.md."""
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        cells = (f"`{self.scope.name}`", f"{self.places:,}", self.tried, self.killed, self.equivalent,
                 len(self.survived), f"{self.score:.0%}", date)  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


@dataclass
class Known:
    """What earlier runs found; ``--resume`` does not run it again."""

    killed: set[str] = field(default_factory=set)
    """Digests of mutated modules that tests have seen. Tests that were deleted since are not noticed."""

    @classmethod
    def read(cls) -> Known:
        """Return what the last run wrote; nothing if there was none."""
        if not KNOWN.exists():
            return cls()
        return cls(set(json.loads(KNOWN.read_text("utf-8"))["killed"]))

    def write(self) -> None:
        """Keep it for the next run."""
        KNOWN.parent.mkdir(exist_ok=True)
        KNOWN.write_text(json.dumps({"killed": sorted(self.killed)}), "utf-8")


@dataclass(frozen=True)
class Budget:
    """How much a run may take."""

    size: int
    """Mutants per scope."""
    end: float
    """When no further mutant begins (``time.monotonic``)."""


def difference(path: Path, before: str, after: str) -> str:
    """Return the lines that differ, without context."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), n=0, lineterm="")
    return "\n".join(list(lines)[2:])


def signature(text: str) -> str:
    """Return a difference without its line numbers, so that it stays the same if lines above it change."""
    return re.sub(r"^@@.*@@\n", "", text, flags=re.MULTILINE)


def equivalents() -> dict[tuple[str, str], str]:
    """Return the mutants known to change nothing that matters, and why, by path and signature."""
    entries = tomllib.loads(EQUIVALENT.read_text("utf-8")).get("mutant", [])
    return {(entry["path"], entry["change"].strip("\n")): entry["why"] for entry in entries}


def changed_lines(reference: str) -> dict[Path, set[int]]:
    """Return the lines of each module that differ from a git reference."""
    patch = subprocess.run(
        ["git", "diff", "-U0", "--no-color", "--no-ext-diff", "--relative", reference, "--", "*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found: dict[Path, set[int]] = {}
    path = Path()
    for line in patch.splitlines():
        if line.startswith("+++ b/"):
            path = Path(line.removeprefix("+++ b/"))
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            found.setdefault(path, set()).update(range(first, first + count))
    return found


def runs(scope: Scope, path: Path | None = None, tests: list[str] | None = None) -> list[list[str]]:
    """Return the arguments of each run of pytest for a scope: first the tests named after the module at ``path``.

    ``tests`` are the ones that can see a bug; None if all can. pytest's limit of time per test is off, because a busy
    machine would exceed it without a bug.
    """
    named = [] if path is None else sorted((ROOT / "tests").rglob(f"test_{path.stem}*.py"))
    own = [str(test.relative_to(ROOT)) for test in named]
    if tests is not None:
        own, tests = ([test for test in tests if (test.split("::")[0] in own) is first] for first in (True, False))
    options = ["-q", "-x", "--no-header", "--timeout=0", *(f"--ignore={test}" for test in scope.left_out)]
    return [[*options, *names] for names in (own, scope.tests if tests is None else tests) if names]


def judged(tree: Path, arguments: list[list[str]], limits: Limits) -> Verdict:
    """Run tests until a run fails; return its verdict, or the last, with the CPU seconds of all."""
    verdicts: list[Verdict] = []
    while len(verdicts) < len(arguments) and all(verdict.outcome == PASSED for verdict in verdicts):
        verdicts.append(judge(tree, arguments[len(verdicts)], limits))
    return replace(verdicts[-1], cpu_s=sum(verdict.cpu_s for verdict in verdicts))


def tried(tree: Path, tally: Tally, chosen: list[Mutant], budget: Budget, known: Known, resume: bool) -> None:
    """Judge the mutants of a scope; print each."""
    started, name = time.monotonic(), tally.scope.name
    entered = cache(partial(_entered, tree, tally.scope, resume))  # not before a mutant has to be judged
    print(f"{name}: {len(chosen)} mutants", flush=True)
    for mutant in chosen:
        if time.monotonic() > budget.end:
            print(f"  the time is over after {tally.tried} of {len(chosen)} mutants", flush=True)
            break
        _one(tree, tally, mutant, entered, known)
        known.write()
    print(f"{name}: score {tally.score:.0%}, {time.monotonic() - started:.0f} s", flush=True)
    if tally.undecided:
        print(f"  {tally.undecided} not decided: the time was over on a busy machine; try again with --resume")


def _entered(tree: Path, scope: Scope, resume: bool) -> Entered:
    """Return what each test of a scope enters, from an earlier run if the code is the same; the tests have to pass."""
    store, code = KNOWN.with_name(f"entered-{scope.name.replace('/', '-')}.json"), modules(tree, scope)
    digests = {
        str(path): hashlib.sha256((tree / path).read_bytes()).hexdigest() for path in (*code, *_files(tree, scope))
    }
    content = json.loads(store.read_text("utf-8")) if resume and store.exists() else {"digests": {}}
    different = [path for path in digests if content["digests"].get(path) != digests[path]]
    if "asleep_s" in content and not set(map(str, code)) & set(different):
        return Entered.read(content, tuple(different))
    tracer = Tracer(tree, code, tree.parent / "entered.json")
    verdict = judge(tree, runs(scope)[0], Limits(3600, 3600, 3600), tracer)
    if verdict.outcome != PASSED:
        raise RuntimeError(f"{scope.name}: its tests fail without a change:\n{verdict.log[-3000:]}")
    found = json.loads(tracer.out.read_text("utf-8"))
    seconds = {name: getattr(verdict, name) for name in SECONDS}
    content = {**found, **seconds, "digests": digests}
    store.parent.mkdir(exist_ok=True)
    store.write_text(json.dumps(content), "utf-8")
    print(f"{scope.name}: its tests take {verdict.cpu_s:.0f} s of CPU, traced", flush=True)
    return Entered.read(content)


def _files(tree: Path, scope: Scope) -> list[Path]:
    """Return the files of the tests of a scope."""
    left_out = {tree / test for test in scope.left_out}
    found = [file for test in scope.tests for file in (sorted((tree / test).rglob("test_*.py")) or [tree / test])]
    return [file.relative_to(tree) for file in dict.fromkeys(found) if file not in left_out]


def _one(tree: Path, tally: Tally, mutant: Mutant, find: Callable[[], Entered], known: Known) -> None:
    before = (tree / mutant.path).read_text("utf-8")
    after = mutant.applied(before)
    if after is None:
        return
    text = difference(mutant.path, before, after)
    digest = hashlib.sha256(f"{mutant.path}\n{after}".encode()).hexdigest()[:16]
    title = f"{mutant.path}:{mutant.line} {mutant.operator.removeprefix('core/')}"
    if (str(mutant.path), signature(text)) in equivalents():
        tally.equivalent += 1
        print(f"  equivalent {title}", flush=True)
    elif digest in known.killed:
        tally.killed += 1
        print(f"  killed before {title}", flush=True)
    else:
        entered = find()
        limits = Limits(3 * entered.cpu_s + 60, 3 * entered.asleep_s + 60, 5 * entered.wall_s + 120)
        tests = entered.tests(mutant.path, before, mutant.line)
        with changed(tree / mutant.path, after):
            verdict = judged(tree, runs(tally.scope, mutant.path, tests), limits)
        if verdict.outcome == PASSED:
            tally.survived.append(text)
        elif verdict.outcome == UNDECIDED:
            tally.undecided += 1
        else:
            tally.killed += 1
            known.killed.add(digest)
        shown = f"\n{text}" if verdict.outcome == PASSED else _first_failure(verdict.log)
        print(f"  {verdict.outcome} {title} ({verdict.cpu_s:.0f} s) {shown}", flush=True)


def _first_failure(log: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE)
    return found[1] if found else ""


def write(tallies: list[Tally]) -> None:
    """Put the rows of these packages into docs/tests.md; rows of other packages stay."""
    from xc_core.chain.costs import processor

    rows = {line.split("|")[1].strip(): line for line in between(PAGE.read_text("utf-8"), "mutants").splitlines()
            if line.startswith("| `")}  # fmt: skip
    rows |= {f"`{tally.scope.name}`": tally.row() for tally in tallies}
    lines = [HEAD, "| --- " * HEAD.count(" | ") + "| --- |", *(rows[name] for name in sorted(rows))]
    fill(PAGE, "mutants", "\n".join(lines) + f"\n\nThe last rows were written on {processor()}.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help="such as xc_core/losses, or a module of it: xc_core/losses/bce.py; by default what changed",
    )
    parser.add_argument("--since", default="HEAD~1", help="git reference: without packages, the lines changed since")
    parser.add_argument("--size", type=int, default=20, help="mutants per package, or of its modules (default 20)")
    parser.add_argument("--minutes", type=float, default=60.0, help="no mutant begins later (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="another sample")
    parser.add_argument("--resume", action="store_true", help="do not run mutants again that were killed before")
    arguments = parser.parse_args()
    names = [scope.name for scope in SCOPES]
    for package in arguments.packages:
        module = Path(package)
        if package.rstrip("/") not in names and not (scope_of(module) and (ROOT / module).is_file()):
            parser.error(f"found package {package}; expected a module, or some of {', '.join(names)}")
    return arguments


def _places(scope: Scope, lines: dict[Path, set[int]] | None) -> list[Mutant]:
    """Return the mutants of a scope, or those on certain lines of its modules."""
    found = []
    for path in modules(ROOT, scope):
        if lines is None or path in lines:
            all_of_it = mutants(path, (ROOT / path).read_text("utf-8"))
            found += [one for one in all_of_it if lines is None or one.line in lines[path]]
    return found


def _all_lines(names: set[str]) -> dict[Path, set[int]]:
    """Return the lines of modules, given by their paths in the repository."""
    return {Path(name): set(range(1, len((ROOT / name).read_text("utf-8").splitlines()) + 1)) for name in names}


def main() -> int:
    """Run; return 1 if a mutant survived or was not decided."""
    arguments = _arguments()
    wanted = [package.rstrip("/") for package in arguments.packages]
    whole = {scope.name for scope in SCOPES} & set(wanted)
    lines = _all_lines(set(wanted) - whole) if wanted else changed_lines(arguments.since)
    names = whole | {scope.name for path in lines if (scope := scope_of(path))}
    known = Known.read() if arguments.resume else Known()
    budget = Budget(arguments.size, time.monotonic() + 60 * arguments.minutes)
    tallies = []
    with tempfile.TemporaryDirectory(prefix="xc-mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(ROOT, tree)
        preload((*LIBRARIES, *(SERVERS if any(name.startswith(("assets", "pipelines")) for name in names) else ())))
        for scope in (scope for scope in SCOPES if scope.name in names):
            found = _places(scope, None if scope.name in whole else lines)
            tally = Tally(scope, len({mutant.place for mutant in found}))
            tried(tree, tally, sample(found, budget.size, arguments.seed), budget, known, arguments.resume)
            tallies.append(tally)
    if rows := [tally for tally in tallies if tally.tried and tally.scope.name in whole]:
        write(rows)
    print(
        "\n".join([HEAD, *(tally.row() for tally in tallies)])
        if tallies
        else f"no module changed since {arguments.since}"
    )
    return int(any(tally.survived or tally.undecided for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
