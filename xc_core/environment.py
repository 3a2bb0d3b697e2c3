"""Environment variables: numbers and names are checked here and refused in the same words.

A variable that is empty counts as one that is not set.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from xc_core.errors import ConfigError, preview

DEVICE: Final = "XC_DEVICE"
"""Environment variable with the device of this process and of those that it starts: auto, cpu, cuda or cuda:N."""
_CHECKPOINT: Final = "XC_CHECKPOINT_SECONDS"
_DEVICES: Final = re.compile(r"auto|cpu|cuda(:[0-9]{1,9})?")
_MAX_VALUE: Final = 10**9


def number(variable: str, default: float, least: float = 0.0) -> float:
    """Return the number in ``variable``; raise ConfigError if it is none from ``least`` to 1,000,000,000."""
    text = os.environ.get(variable) or str(default)
    try:
        value = float(text) if text.isascii() and text == text.strip() else float("nan")
    except ValueError:
        value = float("nan")
    if not least <= value <= _MAX_VALUE:
        raise _value_error(variable, text, f"a number from {least:g} to {_MAX_VALUE:,}")
    return value


def whole(variable: str, default: int, least: int = 0) -> int:
    """Return the whole number in ``variable``; raise ConfigError if it is none from ``least`` to 1,000,000,000."""
    text = os.environ.get(variable) or str(default)
    if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= _MAX_VALUE:
        raise _value_error(variable, text, f"a whole number from {least} to {_MAX_VALUE:,}")
    return int(text)


def _value_error(variable: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"{variable}={preview(text)}", expected=expected, do=f"fix {variable}, or unset it")


def python_path() -> list[Path]:
    """Return the places of PYTHONPATH, absolute, for a process with another current folder."""
    folders = os.environ.get("PYTHONPATH")
    return [Path(folder).absolute() for folder in folders.split(os.pathsep)] if folders else []


def checkpoint_seconds() -> float:
    """Return the seconds between two checkpoints: XC_CHECKPOINT_SECONDS, 60 by default; -1: one after every step.

    This is a setting of the machine, not of the recipe: no result depends on it. Raises ConfigError.
    """
    return number(_CHECKPOINT, 60.0, least=-1.0)


def device_name(text: str | None = None) -> str:
    """Return ``text``, or XC_DEVICE (auto if not set), if it can be the name of a device; raise ConfigError if not.

    Whether there is such a device is asked by ``xc_core.devices``, which imports torch.
    """
    name = text if text is not None else os.environ.get(DEVICE) or "auto"
    if not _DEVICES.fullmatch(name):
        expected = "auto, cpu, cuda or cuda:N, for instance cuda:0"
        raise ConfigError(f"device {preview(name)}", expected=expected, do=f"fix --device or {DEVICE}")
    return name
