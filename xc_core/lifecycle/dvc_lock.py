"""The file dvc.lock, which names the content of every artefact that DVC keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from xc_core.artifacts import write_file
from xc_core.chain.workspace import Workspace
from xc_core.errors import BusyError, CorruptError
from xc_core.locks import locked
from xc_core.progress import report

FILE: Final = "dvc.lock"
PATIENCE: Final = 60.0
"""Seconds to wait until a running command of dvc has ended."""
_ATTEMPTS: Final = 5
_HARDLINK: Final = re.compile(r"^\s*hardlink_lock\s*=\s*[\"']?(true|yes|on|1)\b", re.MULTILINE | re.IGNORECASE)
"""DVC's setting for disks without file locks."""


def forget(workspace: Workspace, dataset: str, recipe: str | None = None) -> int:
    """Remove the stages of a dataset, or of one of its recipes, from dvc.lock; return how many there were.

    Otherwise ``dvc gc`` would keep what they name, and ``dvc pull`` bring it back. Raises CorruptError if the file
    cannot be read, BusyError if dvc is running and does not end; then nothing is changed.
    """
    path = workspace.root / FILE
    if not path.is_file():
        return 0
    with _dvc_lock(workspace.root):
        removed: set[str] = set()
        for _ in range(_ATTEMPTS):  # again if a program wrote the file without the lock
            before = path.read_bytes()
            names, after = _without_stages(before, dataset, recipe)
            if path.read_bytes() != before:
                continue
            if names:
                write_file(path, after)
                removed.update(names)
            if path.read_bytes() == after:
                return len(removed)
    raise _changing_error()


@contextmanager
def restored_if_cut(root: Path) -> Iterator[None]:
    """Run a command of dvc inside. If it raises because dvc was stopped while it wrote dvc.lock, put the file back.

    dvc empties the file first, and refuses it if it is cut: no run of any dataset could be recorded. What another
    command of dvc wrote while this one waited for it is lost.
    """
    path = root / FILE
    before = _read_bytes(path)
    try:
        yield
    except BaseException:
        if _is_truncated(_read_bytes(path)) and not _is_truncated(before):
            with suppress(BusyError), _dvc_lock(root):  # another command of dvc may be writing it
                if _is_truncated(_read_bytes(path)):
                    _restore(path, before)
        raise


def _read_bytes(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _is_truncated(content: bytes | None) -> bool:
    if content is None:
        return False
    try:
        return not content.endswith(b"\n") or not read(YAML(typ="safe"), content)
    except CorruptError:
        return True


def _restore(path: Path, before: bytes | None) -> None:
    if before is None:
        path.unlink()
    else:
        write_file(path, before)
    report(
        f"dvc was stopped while it wrote {FILE}: the file is as it was when dvc was called. If another run recorded "
        "stages since then, run Dagster's job retrain for it again: it records what is up to date"
    )


def _dvc_lock(root: Path) -> AbstractContextManager[None]:
    """Hold the lock that every command of dvc holds while it reads and writes dvc.lock.

    It is a file lock, unless DVC is set to lock with hard links; then nothing is held.
    """
    if not (root / ".dvc").is_dir() or any(map(_locks_with_links, _settings_of_dvc(root))):
        return nullcontext()
    return locked(root / ".dvc" / "tmp" / "lock", "a command of dvc", patience=PATIENCE)


def _settings_of_dvc(root: Path) -> list[Path]:
    """Return the files with DVC's settings: of the project, the user and the machine."""
    user = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    folders = (
        os.environ.get("DVC_GLOBAL_CONFIG_DIR") or f"{user}/dvc",
        os.environ.get("DVC_SYSTEM_CONFIG_DIR") or "/etc/xdg/dvc",
    )
    return [root / ".dvc" / "config", root / ".dvc" / "config.local", *(Path(name) / "config" for name in folders)]


def _locks_with_links(file: Path) -> bool:
    try:
        return _HARDLINK.search(file.read_text("utf-8", errors="replace")) is not None
    except OSError:
        return False


def _without_stages(content: bytes, dataset: str, recipe: str | None) -> tuple[list[str], bytes]:
    """Return the names of the stages of a dataset, or of one of its recipes, and the content without them."""
    yaml = YAML()
    lock = read(yaml, content)
    stages = lock.get("stages") or {}
    names = [name for name in stages if _is_of(str(name), dataset, recipe)]
    if not names:
        return [], content
    for name in names:
        del stages[name]
    text = StringIO()
    yaml.dump(lock, text)
    return [str(name) for name in names], text.getvalue().encode()


def read(yaml: YAML, content: bytes) -> dict[str, Any]:
    """Return the content of dvc.lock; an empty file has no stages. Raises CorruptError."""
    wrong = CorruptError(
        f"an unreadable {FILE}",
        expected="YAML written by dvc",
        do=f"git checkout {FILE}; if git does not have the file, delete it: the next run records again",
    )
    try:
        lock = yaml.load(content.decode("utf-8"))
    except (YAMLError, ValueError) as error:
        raise wrong from error
    if lock is None:
        return {}
    if not isinstance(lock, dict) or not isinstance(lock.get("stages") or {}, dict):
        raise wrong
    return lock


def _changing_error() -> BusyError:
    return BusyError(
        f"{FILE} changed by another program, {_ATTEMPTS} times during this command",
        expected="no other program that writes it",
        do="wait until it has ended, then run the same command again",
    )


def _is_of(stage: str, dataset: str, recipe: str | None) -> bool:
    """Return True for an address such as corpus@DATASET or encoder@DATASET_RECIPE: names of datasets have no ``_``."""
    _, _, partition = stage.partition("@")
    name, _, of_recipe = partition.partition("_")
    return name == dataset and recipe in (None, of_recipe)
