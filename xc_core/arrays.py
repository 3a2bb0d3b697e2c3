"""Files of arrays (safetensors) as numpy arrays: a file that cannot be read is an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.numpy import load_file

from xc_core.errors import CorruptError
from xc_core.shapes import Array

_UNREADABLE: Final = (OSError, SafetensorError, AttributeError, TypeError, ValueError, OverflowError)
"""Errors of a file that is absent, damaged or something else; AttributeError for a type that numpy does not have."""


def read_arrays(path: Path, *names: str, content: str, do: str) -> dict[str, Array]:
    """Return the arrays of a file by name; raise CorruptError if it cannot be read or lacks one of ``names``.

    ``content`` is what the file should hold, ``do`` the advice.
    """
    try:
        arrays: dict[str, Array] = load_file(path)
    except _UNREADABLE as error:
        raise CorruptError(f"{path} that cannot be read: {error}", expected=content, do=do) from error
    if missing := [name for name in names if name not in arrays]:
        raise CorruptError(f"{path} without {missing[0]!r}", expected=content, do=do)
    return arrays
