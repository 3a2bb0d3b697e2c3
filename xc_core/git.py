"""The commit that a run's code comes from."""

from __future__ import annotations

import subprocess
from functools import cache


@cache
def git_commit(root: str) -> str:
    """Return the commit of the project's code, with "-dirty" if files differ from it; "none" outside git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "none"
