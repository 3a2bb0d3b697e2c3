"""Run tests on a copy of the working tree, in processes that begin with the libraries already imported.

Importing torch and polars takes longer than most tests, and every mutant needs a new process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.mutants.entered import Tracer

LIBRARIES = (
    "torch", "transformers", "polars", "numpy", "scipy.sparse", "pyarrow.parquet", "pydantic", "fastapi", "starlette",
    "starlette.testclient", "uvicorn", "ruamel.yaml", "prometheus_client", "click", "hydra", "hypothesis", "tokenizers",
    "torch.fx.experimental.symbolic_shapes", "faiss", "lightgbm",
)  # fmt: skip
"""What most packages need."""
SERVERS = ("dagster", "mlflow", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store",
           "mlflow.store.model_registry.sqlalchemy_store")  # fmt: skip
"""What the packages assets and pipelines need too."""
OURS = frozenset({"xc_core", "assets", "pipelines", "tests", "benchmarks"})
PASSED, FAILED, TOO_LONG, UNDECIDED = "survived", "killed", "too long", "not decided"
_POLL_S = 0.2
_ASLEEP = frozenset("SZIX")
"""States of a thread in /proc that does not ask for a processor. R does, D waits for a disk, T was stopped."""


@dataclass(frozen=True)
class Limits:
    """How much a run of tests may take."""

    cpu_s: float
    """Processor time of each process; a run that takes more is too long: an endless loop."""
    asleep_s: float
    """Time in which every process sleeps; a run that takes more is too long: it waits for what never happens."""
    wall_s: float
    """Time on the clock; a run that takes more, but neither of the others, is not decided: the machine is busy."""


@dataclass(frozen=True)
class Verdict:
    """How a run of tests ended."""

    outcome: str
    """PASSED, FAILED, TOO_LONG or UNDECIDED."""
    cpu_s: float
    asleep_s: float
    wall_s: float
    log: str


def copy_tree(root: Path, target: Path) -> None:
    """Copy the files of a git working tree that git does not ignore, changed and new ones too.

    The copy is a repository of its own without a commit: DVC reads a project only in one.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    subprocess.run(["git", "init", "--quiet", str(target)], check=True)


def preload(names: Iterable[str] = LIBRARIES) -> None:
    """Import the libraries that tests need; those that are missing are skipped. Nothing of ours is imported."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@contextlib.contextmanager
def changed(path: Path, source: str) -> Iterator[None]:
    """Put ``source`` into a file for a while."""
    before = path.read_text("utf-8")
    path.write_text(source, "utf-8")
    try:
        yield
    finally:
        path.write_text(before, "utf-8")


def judge(tree: Path, arguments: list[str], limits: Limits, tracer: Tracer | None = None) -> Verdict:
    """Run pytest with ``arguments`` in ``tree``; the limits hold for each process, and for all of them together."""
    log, started = tree.parent / "log", time.monotonic()
    child = os.fork()
    if not child:
        _run(tree, arguments, log, limits.cpu_s, tracer)
    status, used, asleep_s = _waited(child, limits)
    seconds = used.ru_utime + used.ru_stime, asleep_s, time.monotonic() - started
    text = log.read_text("utf-8", "replace")
    if status is None and asleep_s <= limits.asleep_s:
        return Verdict(UNDECIDED, *seconds, text)
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return Verdict(TOO_LONG, *seconds, text)
    code = os.waitstatus_to_exitcode(status)
    if code == pytest.ExitCode.USAGE_ERROR and "while loading conftest" in text:
        return Verdict(FAILED, *seconds, text)  # the package that a conftest.py imports cannot be imported
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest {' '.join(arguments)} ran no tests:\n{text[-2000:]}")
    return Verdict(FAILED if code else PASSED, *seconds, text)


def _waited(child: int, limits: Limits) -> tuple[int | None, resource.struct_rusage, float]:
    """Wait for a process; end it and its group, so that nothing of it runs on. The status is None if it took too long.

    The last number is how long it slept with all that it started, in seconds.
    """
    status: int | None = None
    end, asleep_s = time.monotonic() + limits.wall_s, 0.0
    while True:
        found, raw, used = os.wait4(child, os.WNOHANG)
        if found:
            status = raw
            break
        if time.monotonic() > end or asleep_s > limits.asleep_s:
            break
        time.sleep(_POLL_S)
        asleep_s += _POLL_S * _asleep(child)
    if status is None:
        for process in psutil.Process(child).children(recursive=True):  # some may have left the group
            with contextlib.suppress(psutil.Error):
                process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        used = os.wait4(child, 0)[2]
    return status, used, asleep_s


def _asleep(child: int) -> bool:
    """Return True if no thread of a process and of those that it started, here and there, asks for a processor."""
    with contextlib.suppress(psutil.Error, OSError):  # one has just ended, so something happens
        processes = [child, *(process.pid for process in psutil.Process(child).children(recursive=True))]
        stats = [stat.read_text("utf-8") for pid in processes for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
        return bool(stats) and all(stat.rpartition(")")[2].split()[0] in _ASLEEP for stat in stats)
    return False


def _run(tree: Path, arguments: list[str], log: Path, cpu_limit_s: float, tracer: Tracer | None) -> None:
    """Become a process that runs the tests of ``tree``, and end."""
    code = 1
    gc.freeze()  # a search for garbage would copy the pages of all that is imported
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stderr = sys.__stderr__ or sys.stderr  # not the one in which a test captures
        os.chdir(tree)
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", os.environ.get("PYTHONPATH")))]
        sys.argv = ["pytest", *arguments]
        sys.dont_write_bytecode = tracer is None  # of the code without a change it is right, and saves time afterwards
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tree.parent)  # pytest deletes old files there, not of other runs
        found = importlib.util.find_spec("xc_core")
        assert found and found.origin and Path(found.origin).is_relative_to(tree), f"{found} is not the changed copy"
        limit = int(cpu_limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        if tracer:
            tracer.start()
        arguments = [*arguments, "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for the plugin anyio
        code = int(pytest.main(arguments, plugins=[tracer] if tracer else []))
        sys.stdout.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
