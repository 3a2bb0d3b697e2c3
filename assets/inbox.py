"""data/<dataset>/inbox: a whole new drop of a dataset, taken in once it has come to rest.

Takes: a workspace, a dataset.        Gives: the inbox's state; the command that takes it in.
May import: xc_core (light rooms).    Never: takes half-copied files; deletes what was dropped.
"""

import hashlib
import json
from pathlib import Path
from typing import Final

from xc_core.errors import MovedError
from xc_core.stages.workspace import Workspace

INBOX_TAG: Final = "xc/inbox"
"""Run tag: the state of the inbox that the corpus shall take in."""
QUIET_SECONDS: Final = 20.0
"""A file counts as arrived when nothing about it changed for this long."""


def inbox(workspace: Workspace, dataset: str) -> Path:
    """Return the inbox of a dataset."""
    return workspace.raw(dataset).with_name("inbox")


def state(folder: Path, now: float) -> str | None:
    """Return a hash over names, sizes and times of an inbox's files; None where it is empty or still being filled."""
    files = (
        sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")) if folder.is_dir() else []
    )
    facts = [(p.relative_to(folder).as_posix(), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    if not facts or any(now - changed / 1e9 < QUIET_SECONDS for _, _, changed in facts):
        return None
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def ingest_arguments(workspace: Workspace, dataset: str) -> list[str]:
    """Return the arguments of ``xc`` that take the inbox in under the settings the dataset has."""
    arguments = ["ingest", str(inbox(workspace, dataset)), "--dataset", dataset, "--replace"]
    settings = (workspace.params()["datasets"].get(dataset) or {}).get("corpus") or {}
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            arguments += [f"--{name.replace('_', '-')}", str(one)]
    return arguments


def check(workspace: Workspace, dataset: str, wanted: str, now: float) -> None:
    """Raise MovedError where the inbox is no longer in the state a run was requested for."""
    found = state(inbox(workspace, dataset), now)
    if found != wanted:
        raise MovedError(
            f"an inbox of {dataset} in another state than when this run was requested",
            expected="files left alone until they are taken in",
            do="nothing: the sensor asks for a new run once the files have come to rest",
        )


def put_away(workspace: Workspace, dataset: str, taken: str) -> Path:
    """Move what was taken in out of the inbox, to .xc/inbox/<dataset>/<state>; return that folder."""
    target = workspace.state / "inbox" / dataset / taken
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = inbox(workspace, dataset)
    folder.rename(target)
    folder.mkdir()
    return target
