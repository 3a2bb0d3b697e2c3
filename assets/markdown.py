"""Texts of the data and of people as Markdown shows them: as they are, without links, pictures or HTML."""

from __future__ import annotations

import re
import string
from typing import Final

_PUNCTUATION: Final = re.compile(f"[{re.escape(string.punctuation)}]")
"""Markdown gives each of these a meaning somewhere, and lets each be escaped by a backslash."""


def escaped(text: str) -> str:
    """Return ``text`` on one line as Markdown that shows it as it is; control characters become U+FFFD."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return _PUNCTUATION.sub(r"\\\g<0>", shown)
