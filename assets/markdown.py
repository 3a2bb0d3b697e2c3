"""Texts of the data and of people as Markdown shows them: as they are, without links, pictures or HTML."""

from __future__ import annotations

import re
from typing import Final

_MARKS: Final = re.compile(r"[\\`*_{}\[\]()<>#+!|~:@&-]|(?<=www)\.", re.IGNORECASE)
"""Characters that Markdown gives a meaning inside a line, and those that make a link of a bare address."""


def escaped(text: str) -> str:
    """Return ``text`` on one line as Markdown that shows it as it is; control characters become U+FFFD.

    Marks become character references, because MLflow shows the backslash of an escape such as ``\\@``.
    """
    shown = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", shown)
