"""Texts as a person sees them: characters that mislead or disturb a reader, addresses, and numbers with their nouns."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

_C0: Final = r"\x00-\x08\x0a-\x1f\x7f"
"""Control characters of ASCII other than tab."""
_C1: Final = r"\x80-\x9f"
_COMMANDS: Final = r"\x85\x90\x9b\x9d-\x9f"
"""Those of C1 that break a line or start a terminal's command: U+009B is ESC [. The others are common in texts that
were read as Latin-1 and not as cp1252 (U+0092 for an apostrophe); they do no harm, and a terminal gets all escaped."""
_DIRECTIONS: Final = "\u202a-\u202e\u2066-\u2069"
"""Embeddings, overrides and isolates: they reorder the text that follows ("Trojan Source", Boucher 2021)."""
_BLANK: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters without ink that are not spaces to Python (Unicode's Default_Ignorable_Code_Point, and braille blank)."""

CONTROL: Final = re.compile(f"[{_C0}{_COMMANDS}\u2028\u2029{_DIRECTIONS}]")
"""What a text of a dataset may not have: control characters, all line breaks of Unicode, changes of direction."""
INK: Final = re.compile(rf"[^\s{_C0}{_C1}{_BLANK}]")
"""A character that can be seen."""
_UNSAFE: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTIONS}\u200e\u200f\u061c\ud800-\udfff]")


def escaped(json: str) -> str:
    r"""Return JSON of one line with control characters and changes of direction as \\uXXXX; the content is the same."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json)


def printable(text: str) -> str:
    """Return ``text`` for a terminal: line breaks and tabs stay, other control characters are shown as escapes.

    >>> printable("red \\x1b[31m, \\u202egnp.exe")
    'red \\\\x1b[31m, \\\\u202egnp.exe'
    """
    return _UNSAFE.sub(lambda match: repr(match[0])[1:-1], text)


def http_address(host: str, port: int) -> str:
    """Return the address of a server as a browser takes it; an IPv6 host gets brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def percent(probability: float) -> str:
    """Return a probability in percent, rounded down: a label of 50% reaches a bound of 0.5, and only 1 is 100%.

    Both are compared in single precision, as bounds are.

    >>> [percent(probability) for probability in (0.0, 0.004, 0.29, 0.496, 0.9996, 1.0)]
    ['0%', '<1%', '29%', '49%', '99%', '100%']
    """
    nearest = round(100 * probability)
    whole = nearest - (_single(nearest / 100) > _single(probability))
    return f"{whole}%" if whole or not probability else "<1%"


def _single(number: float) -> float:
    """Return the number in single precision that is nearest to ``number``."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def cut(text: str, limit: int) -> str:
    """Return ``text``, with an ellipsis in place of what exceeds ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Return the first ``limit`` names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, which takes an s unless the number is 1."""
    shown = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{shown} {noun}" + ("" if number == 1 else "s")
