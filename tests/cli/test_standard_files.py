"""Standard files that are closed, or whose disk is full: the exit code is that of the work, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import make_workspace

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def run(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a shell in which ``xc`` is the command line of this project.

    Python buffers what it prints, though the environment of these tests may forbid it (PYTHONUNBUFFERED).
    """
    xc = f'xc() {{ "{sys.executable}" -m xc_core.cli.main "$@"; }}\n'
    environment = {**os.environ, "XC_ROOT": str(root), "PYTHONUNBUFFERED": ""}
    return subprocess.run(["sh", "-c", xc + command], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_standard_files_change_nothing(closed: str, tmp_path: Path) -> None:
    """Without the null device in its place, the number of a closed file is given to the next one that is opened."""
    make_workspace(tmp_path)
    script = (
        "import os; from xc_core.cli import main as m;"
        "m.cli.main = lambda **_: [m.click.echo('a'), m.report('b'), 10 * (os.open(os.devnull, 0) > 2)][-1]; m.main([])"
    )
    done = run(f"'{sys.executable}' -c \"{script}\" {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (10, "" if "2>" in closed else "b\n")
    done = run(f"xc --help {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@needs_full
@pytest.mark.parametrize(("command", "code"), [("predict --nonsense", 2), ("predict --dataset nope text", 66)])
def test_an_error_that_cannot_be_printed_has_its_exit_code(command: str, code: int, tmp_path: Path) -> None:
    make_workspace(tmp_path)
    assert run(f"xc {command} 2> {FULL}", tmp_path).returncode == code


@needs_full
def test_progress_that_cannot_be_printed_does_not_end_the_work(tmp_path: Path) -> None:
    """A log on a full disk, or a terminal that is gone, is no reason to lose a training."""
    script = (
        "from xc_core.cli import main as m; m.cli.main = lambda **_: [m.report('a'), m.report('b'), 10][-1]; m.main([])"
    )
    assert run(f"'{sys.executable}' -c \"{script}\" 2> {FULL}", tmp_path).returncode == 10


@needs_full
def test_output_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """The exit code was 120, that of Python if it cannot write what is left in a buffer at its end."""
    make_workspace(tmp_path)
    for command in ("--help", "settings --dataset toy --recipe ngame"):
        done = run(f"xc {command} > {FULL}", tmp_path)
        assert done.returncode == 73
        assert "found a full disk" in done.stderr
        assert "Exception ignored" not in done.stderr


def test_a_character_that_the_output_cannot_encode_is_printed_as_an_escape(tmp_path: Path) -> None:
    script = "from xc_core.cli import main as m; m.cli.main = lambda **_: m.click.echo('für \u2603'); m.main([])"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "für \\u2603\n".encode("latin-1"), b"")
