"""Copies an artefact by hard links: the files of an artefact never change, so two folders can share them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from xc_core import artifacts, manifests
from xc_core.errors import CorruptError, MissingError, StorageError
from xc_core.leftovers import claimed, drop
from xc_core.leftovers import work as temporary


def link(source: Path, folder: Path) -> bool:
    """Put a copy of the artefact ``source`` at ``folder``; return False if ``source`` is damaged or disappears.

    Files are linked, or copied if the folders are on different disks. Another process may replace ``source`` meanwhile;
    then the copy is made again from what replaced it. Raises StorageError if the disk is full or not writable.
    """
    work = temporary(folder)

    def copy() -> None:
        for path in work.iterdir():
            drop(path)
        shutil.copytree(source, work, copy_function=link_file, dirs_exist_ok=True)

    try:
        with artifacts.writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            work.mkdir()
        with claimed(work):
            with artifacts.writing(folder):
                artifacts.steady(source, copy)
            artifacts.check_sizes(work, manifests.read_manifest(work))
            artifacts.install(work, folder)
    except (CorruptError, MissingError):
        return False
    except StorageError:
        if source.exists():
            raise
        return False
    finally:
        drop(work)
    return True


def link_files(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Link some files of the artefact ``source``, named by their paths in it, into the folder of a new one."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_file(str(source / name), str(folder / name))


def link_file(source: str, target: str) -> None:
    """Link a file, or copy it to another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
