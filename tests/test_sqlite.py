"""Which processes have locked a file, as a message about a locked database names them."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.artefacts import started
from xc_core.sqlite import lockers

SHARER = """
    import fcntl, sys, time

    stream = open(sys.argv[1])
    fcntl.lockf(stream, fcntl.LOCK_SH)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="Linux alone lists locks")
def test_the_other_processes_that_have_locked_a_file_are_named(tmp_path: Path) -> None:
    file, other = tmp_path / "a.db", tmp_path / "b.db"
    for path in (file, other):
        path.touch()
    assert lockers(file) == lockers(tmp_path / "absent") == lockers(None) == ""
    with file.open() as stream, started(SHARER, file) as one, started(SHARER, file) as two:
        fcntl.lockf(stream, fcntl.LOCK_SH)  # this process does not wait for itself
        first, second = sorted((one.pid, two.pid))
        assert lockers(file) == f"process {first} and {second}"
        assert lockers(other) == "", "a lock of another file"
