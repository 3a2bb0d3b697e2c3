"""The folder data/<dataset>/inbox: a new copy of a whole dataset, ingested once its files no longer change."""

import errno
import hashlib
import json
import math
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from xc_core.artifacts import install
from xc_core.chain.dataset import UpdateConfig
from xc_core.chain.names import INBOX
from xc_core.chain.workspace import Workspace
from xc_core.errors import MovedError, StorageError
from xc_core.leftovers import drop
from xc_core.locks import locked

INBOX_TAG: Final = "xc/inbox"
"""Run tag: the state of the inbox that the run ingests."""
QUIET_SECONDS: Final = 20.0
"""A file counts as complete if it has not changed for this long."""
_ARCHIVING_SECONDS: Final = 600.0
"""How long to wait for another process that archives files of the same dataset."""
_LEFTOVER: Final = re.compile(r"\.[0-9a-f]{16}")
"""Name of an archive that was set aside while a newer one of the same state took its place."""


def inbox(workspace: Workspace, dataset: str) -> Path:
    """Return the inbox of a dataset."""
    return workspace.raw(dataset).with_name(INBOX)


def state(folder: Path, now: float) -> str | None:
    """Return a hash over names, sizes and times of an inbox's files; None if it is empty or still being filled.

    Hidden files, and files in hidden folders, do not count. A time far in the future was set by a wrong clock
    and says nothing, so such a file counts as complete.
    """
    try:
        paths = folder.rglob("*") if folder.is_dir() else ()
        files = sorted(p for p in paths if p.is_file() and not _hidden(p.relative_to(folder)))
        entries = [(p.relative_to(folder).as_posix(), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    except (FileNotFoundError, NotADirectoryError):  # a file was taken out or renamed meanwhile
        return None
    if not entries or any(abs(now - changed / 1e9) < QUIET_SECONDS for _, _, changed in entries):
        return None
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


def _hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts)


def ingest_arguments(workspace: Workspace, dataset: str) -> list[str]:
    """Return the arguments of ``xc`` that ingest the inbox with the settings of the dataset."""
    arguments = ["ingest", str(inbox(workspace, dataset)), "--dataset", dataset, "--replace"]
    settings = (workspace.params.read()["datasets"].get(dataset) or {}).get("corpus") or {}
    settings = {name: value for name, value in settings.items() if (name, value) != ("validation_fraction", 0)}
    for name, value in settings.items():
        for item in value if isinstance(value, list) else [value]:
            arguments += [f"--{name.replace('_', '-')}", str(item)]
    return arguments


def archives(workspace: Workspace, dataset: str) -> int:
    """Return how many archives of a dataset are kept: its setting, or the default for a dataset that is new."""
    exists = dataset in workspace.params.datasets()
    return workspace.params.dataset(dataset).update.keep if exists else UpdateConfig.keep


def waits(workspace: Workspace, dataset: str, requested: str) -> bool:
    """Return True if the inbox is in the state for which a run was requested, False if that was ingested already.

    A run that was killed after its ingest finds the files archived; the same files may come again later. Raises
    MovedError for an inbox in another state.
    """
    _settle(workspace, dataset, requested)
    if (present := state(inbox(workspace, dataset), math.inf)) == requested:
        return True
    if _archive_folder(workspace, dataset, requested).is_dir():
        return False
    if present is None:
        raise _gone_error(inbox(workspace, dataset), dataset)
    raise _changed_error(f"an inbox of {dataset} that changed after this run was requested")


def was_ingested(workspace: Workspace, dataset: str, requested: str) -> bool:
    """Return True if the files of this state were ingested and have left the inbox, whose sensor no longer sees them.

    They are archived or, if the process was killed, set aside.
    """
    folders = (_archive_folder(workspace, dataset, requested), _aside_folder(workspace, dataset, requested))
    return any(folder.is_dir() for folder in folders) and state(inbox(workspace, dataset), math.inf) != requested


def archive(workspace: Workspace, dataset: str, ingested: str, keep: int = UpdateConfig.keep) -> Path:
    """Move the ingested files to .xc/inbox/<dataset>/<state> and return that folder; the inbox is empty again.

    Hidden files, which may still be arriving, stay in the inbox. The ``keep`` last archives stay, of which this is one:
    a run that is started again finds it. Raises MovedError, and moves nothing, if files came or changed since the
    ingest began, StorageError if the inbox is a mount point, BusyError if another process archives files of the dataset
    and does not end, MissingError if the project was moved or deleted.
    """
    lock = workspace.lock(f"inbox@{dataset}")
    with locked(lock, f"the archiving of the inbox of {dataset}", patience=_ARCHIVING_SECONDS):
        return _archive(workspace, dataset, ingested, keep)


def _archive(workspace: Workspace, dataset: str, ingested: str, keep: int) -> Path:
    target, folder = _archive_folder(workspace, dataset, ingested), _resolved_inbox(workspace, dataset)
    target.parent.mkdir(parents=True, exist_ok=True)
    previous = target.with_name(f".{target.name}")
    if target.is_dir():
        drop(previous)  # a process that was killed here may have left one
        target.rename(previous)
    try:
        folder.rename(_aside_folder(workspace, dataset, ingested))
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        raise StorageError(
            f"an inbox that is a mount point, {folder}: its files were ingested, but cannot be moved out in one step",
            expected="a folder, or a link to a folder below the mount point",
            do=f"empty it, mount the disk elsewhere, and make {inbox(workspace, dataset)} a link to a folder there",
        ) from error
    _settle(workspace, dataset, ingested)
    if not target.is_dir():
        if previous.is_dir():
            previous.rename(target)
        raise _changed_error(f"an inbox of {dataset} that changed while its files were ingested")
    os.utime(target)
    _prune(target, keep)
    return target


def _prune(newest: Path, keep: int) -> None:
    """Keep the newest ``keep`` archives of a dataset; delete the others, and those that killed processes set aside.

    ``newest`` counts as the newest, whatever the clock says. The lock of ``archive`` is held, so no other process needs
    an archive that is set aside.
    """
    by_age = sorted(newest.parent.glob("[!.]*"), key=lambda path: (path == newest, path.stat().st_mtime_ns))
    leftovers = [path for path in newest.parent.iterdir() if _LEFTOVER.fullmatch(path.name)]
    for path in by_age[: max(len(by_age) - keep, 0)] + leftovers:
        drop(path)


def _settle(workspace: Workspace, dataset: str, ingested: str) -> None:
    """Archive an inbox that was set aside if it is in the state that was ingested; otherwise put it back."""
    folder, aside = _resolved_inbox(workspace, dataset), _aside_folder(workspace, dataset, ingested)
    if not aside.is_dir():
        return
    complete = state(aside, math.inf) == ingested
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        _copy_permissions(folder, aside.stat())
    for name in [path.relative_to(aside) for path in aside.rglob("*") if path.is_file()]:
        if _hidden(name) or not complete:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).rename(folder / name)
    if complete:
        install(aside, _archive_folder(workspace, dataset, ingested))  # .xc may be on another disk
    else:
        drop(aside)


def _copy_permissions(folder: Path, old: os.stat_result) -> None:
    """Give a new inbox the owner, group and mode of the one before, if permitted: others may drop files there."""
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        with suppress(PermissionError):
            os.chown(folder, owner, group)
    with suppress(PermissionError):  # after the owner, whose change takes bits away
        folder.chmod(stat.S_IMODE(old.st_mode))


def _resolved_inbox(workspace: Workspace, dataset: str) -> Path:
    """Return the inbox itself, if it is a link to a folder elsewhere: that one is emptied, and the link stays."""
    return inbox(workspace, dataset).resolve()


def _aside_folder(workspace: Workspace, dataset: str, ingested: str) -> Path:
    folder = _resolved_inbox(workspace, dataset)
    return folder.with_name(f".{folder.name}.{ingested}")


def _archive_folder(workspace: Workspace, dataset: str, ingested: str) -> Path:
    return workspace.state / "inbox" / dataset / ingested


def _gone_error(folder: Path, dataset: str) -> MovedError:
    return MovedError(
        f"an empty inbox of {dataset} and no archive of the files that this run was requested for: later files "
        "replaced them and their archive was deleted, or they were removed",
        expected=f"the files in {folder}, or in their archive",
        do=f"nothing if the present files of {dataset} are right; otherwise put the files into {folder} again "
        f"(datasets.{dataset}.update.keep in params.yaml is the number of archives)",
    )


def _changed_error(found: str) -> MovedError:
    return MovedError(
        found,
        expected="files unchanged until they are ingested",
        do="nothing: the sensor requests a new run once the files no longer change",
    )
