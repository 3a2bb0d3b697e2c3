"""When documents were made, and which are the last: a split by time holds these out.

A time is a number, or a date or time in ISO 8601. Equal times are ordered by a hash of the uid, so that the order of
the rows does not matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from xc_core.data.formats.base import Block, in_json
from xc_core.data.splits import digests, is_acceptance
from xc_core.errors import DataError, preview
from xc_core.shapes import F64, Array, Bool

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_FORMS: Final = "a number, or a date or time in ISO 8601 such as 2026-11-30 or 2026-11-30T08:15:00Z"
_LATE: Final = 0.9
"""A document is later than others if it is later than this share of them."""


class Times:
    """Collects the times of documents, block by block."""

    def __init__(self) -> None:
        self._kinds: dict[bool, str] = {}
        self._moments: list[F64] = [np.zeros(0)]
        self._digests: list[Array] = [digests([])]

    def __len__(self) -> int:
        return sum(map(len, self._moments))

    def add(self, block: Block, digest_N: Array) -> F64:
        """Add the documents of a block, with the digests of their uids; return their times as numbers (N).

        Raises DataError for a document without a time, one in another form, and for numbers beside dates.
        """
        if block.times is None:
            raise DataError(
                "no time of the documents, but the split is by time",
                expected="a column time (tables) or a field time (xc-json)",
                do="add it, or choose another split (xc ingest --split uid)",
                where=block.file,
            )
        moment_N = _checked(block.times, block.where, self._kinds)
        self._moments.append(moment_N)
        self._digests.append(digest_N)
        return moment_N

    def last(self, count: int, accepted: float = 0.0) -> Bool:
        """Mark the last documents, as ``is_last``, in the order in which they were added (N)."""
        return is_last(np.concatenate(self._moments), np.concatenate(self._digests), count, accepted)

    def first(self, count: int) -> tuple[float, int]:
        """Return the time and the digest (``high``) of the first of the last ``count`` documents; (inf, 0) for none."""
        moment_N, key_N = np.concatenate(self._moments), np.concatenate(self._digests)["high"]
        rows = np.lexsort((key_N, moment_N))[max(0, len(self) - count) :]
        return (float(moment_N[rows[0]]), int(key_N[rows[0]])) if len(rows) else (np.inf, 0)

    def later(self, others: Times) -> float:
        """Return the share of the documents that are later than nine tenths of the ``others``; 0 without documents."""
        if not len(self) or not len(others) or self._kinds.keys() != others._kinds.keys():
            return 0.0
        bound = np.quantile(np.concatenate(others._moments), _LATE, method="lower")
        return float((np.concatenate(self._moments) > bound).mean())


def is_last(moment_N: F64, digest_N: Array, count: int, accepted: float = 0.0) -> Bool:
    """Mark the ``count`` documents with the highest times, of equal times those with the highest digests (N).

    None of the share ``accepted`` of documents with the highest digests is marked: they are for the acceptance set.
    """
    order = np.lexsort((digest_N["high"], moment_N))
    order = order[~is_acceptance(digest_N[order], accepted)]
    last_N = np.zeros(len(moment_N), bool)
    last_N[order[max(0, len(order) - count) :]] = True
    return last_N


def written(value: object) -> str:
    """Return a time of a file as text; nothing is ""."""
    return value if isinstance(value, str) else "" if value is None else in_json(value)


def moments(uids: Sequence[str], times: Sequence[str]) -> F64:
    """Return the times of documents as numbers (N).

    Raises DataError for a document without a time, one in another form, and for numbers beside dates.
    """
    return _checked(times, lambda row: f"document {preview(uids[row])}", {})


def _checked(times: Sequence[str], where: Callable[[int], str], kinds: dict[bool, str]) -> F64:
    """Return times as numbers (N); ``kinds`` says where the first number is (True), and the first date (False)."""
    moment_N = np.zeros(len(times))
    for row, text in enumerate(times):
        found_moment = moment(text)
        if found_moment is None:
            found = f"the time {preview(text)}" if text else "no time"
            do = "write it in one of these forms; another split (xc ingest --split uid) needs no times"
            raise DataError(found, expected=f"{_FORMS}, in every row", do=do, where=where(row))
        moment_N[row], is_number = found_moment
        kinds.setdefault(is_number, where(row))
    if len(kinds) > 1:
        raise DataError(
            f"times that are dates, and times that are numbers (the first: {kinds[True]})",
            expected="one kind, so that they can be ordered",
            do="write all times as dates or all as numbers",
            where=kinds[False],
        )
    return moment_N


def moment(text: str) -> tuple[float, bool] | None:
    """Return a time as a number, of a date the seconds since 1970 (UTC), and True unless it is a date.

    None for a text in another form.
    """
    if _NUMBER.fullmatch(text):
        return (number, True) if math.isfinite(number := float(text)) else None
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), False
    except ValueError:
        return None
