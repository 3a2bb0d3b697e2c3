"""What a server accepts at most. Each limit bounds memory or time, and is an option of ``xc serve``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from xc_core.params import at_least, at_most

_MAX_VALUE: Final = 1 << 31
"""Largest value of a limit that has no smaller one."""


def _limit(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server. Raises ConfigError for a value that is out of range."""

    body_bytes: int = _limit(2 << 20, "Bytes of a request's body.")
    texts: int = _limit(256, "Texts of a request.")
    text_chars: int = _limit(100_000, "Characters of a text.")
    k: int = _limit(100, "Labels per text.")
    filter_labels: int = _limit(1000, "Labels in a filter.")
    seconds: float = _limit(10.0, "Seconds until a request is answered.")
    requests: int = _limit(256, "Requests at once.")
    queue: int = _limit(1024, "Texts that wait for the model.")
    max_batch: int = _limit(32, "Texts that share a pass through the model.")
    max_wait_ms: float = _limit(2.0, "Milliseconds that a text waits for others to share its pass.")

    def __post_init__(self) -> None:
        for setting in fields(self):
            at_least(
                self, **{setting.name: 0 if setting.name == "max_wait_ms" else 0.01 if setting.name == "seconds" else 1}
            )
        at_most(
            self, **{setting.name: _MAX_VALUE for setting in fields(self)} | {"seconds": 86_400, "max_wait_ms": 60_000}
        )
