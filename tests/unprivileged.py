"""Runs ``xc`` as a user whom the permissions of files bind: root is let through otherwise."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from xc_core.cli.main import main

_VERSION = 0x20080522
_EVERYWHERE = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of <linux/capability.h>: root writes and reads any file."""


def bound() -> None:
    """Let permissions bind this process."""
    if os.geteuid() == 0:
        libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(_VERSION, 0)
        data = (ctypes.c_uint32 * 6)()
        assert libc.capget(header, data) == 0
        data[0] &= ~_EVERYWHERE
        assert libc.capset(header, data) == 0


def xc() -> None:
    """Run ``xc`` with the arguments of this process."""
    bound()
    main()


def read_only(folder: Path) -> None:
    """Take the permission to write from a folder and all that is in it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)


def writable(folder: Path) -> None:
    """Give the owner all permissions again, so that the folder can be deleted."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        if path.is_dir():
            writable(path)
