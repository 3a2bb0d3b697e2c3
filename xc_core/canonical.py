"""JSON for files, with the same bytes for the same content, and for the lines that commands print."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def canonical(content: object) -> str:
    """Return ``content`` as JSON text with sorted keys; numbers that are not finite become null."""
    return json.dumps(finite(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def line(content: object, *, ascii_only: bool = True) -> str:
    """Return ``content`` as one line of JSON in the order of its keys; numbers that are not finite become null."""
    return json.dumps(finite(content), ensure_ascii=ascii_only, allow_nan=False)


def finite(content: Any) -> Any:
    """Return ``content`` with None for every number that is not finite; JSON has no notation for them."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
