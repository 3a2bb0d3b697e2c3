"""Which train documents are held out for validation, by a hash of the uid, so that it never changes.

Also a check for duplicate uids among any number of rows.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.seeds import derive
from xc_core.shapes import I64, Array, Bool

TRAIN, VALIDATION, TEST = "train", "validation", "test"
ACCEPTANCE: Final = "acceptance"
"""Documents of the train file that no stage learns from: the gate compares models on them."""
SPLITS: Final = (TRAIN, VALIDATION, TEST, ACCEPTANCE)
LEARN_FROM: Final = (TRAIN, "published")
"""What a final model can learn from: train documents, or all of the published train file, validation included."""
_LARGEST: Final = 2**64 - 1
_EMPTY: Final = hashlib.blake2b(digest_size=16)
_BUCKETS: Final = 64
_BUFFERED: Final = 1 << 16
"""Digests that are kept in memory before they are written to the files of the buckets."""
_RECORD: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])


def digests(uids: Sequence[str]) -> Array:
    """Return 128-bit BLAKE2 digests of ``uids`` as records (high, low, row) with row 0."""
    hashes = []
    for uid in uids:
        hashed = _EMPTY.copy()  # faster than a new one
        hashed.update(uid.encode())
        hashes.append(hashed.digest())
    records = np.zeros(len(uids), _RECORD)
    records["high"], records["low"] = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2).T
    return records


def is_validation(digest_N: Array, fraction: float) -> Bool:
    """Return True for the ``fraction`` of uids with the lowest digests; a uid gets the same result in every ingest."""
    return np.asarray(digest_N["high"] < _threshold(fraction))


def is_acceptance(digest_N: Array, fraction: float) -> Bool:
    """Return True for the ``fraction`` of uids with the highest digests, as ``is_validation`` for the lowest."""
    return np.asarray(digest_N["high"] > np.uint64(_LARGEST) - _threshold(fraction))


def _threshold(fraction: float) -> np.uint64:
    """Return the number that the ``fraction`` of 64-bit numbers are below."""
    return np.uint64(min(int(fraction * 2.0**64), _LARGEST))


def halves(digest_N: Array) -> Array:
    """Return 0 or 1 for each uid, equally likely and independent of its split; the same in every ingest."""
    return (digest_N["low"] & np.uint64(1)).astype(np.int64)


def drawn(uids: list[str], count: int) -> I64:
    """Return the positions of ``count`` uids at most, drawn by a hash of the uid (ascending).

    The hash is independent of those that cut validation documents and their halves. A uid that is drawn is also drawn
    from fewer uids.
    """
    key_N = np.array([derive(0, f"drawn/{uid}") for uid in uids], np.int64)
    return np.sort(np.argsort(key_N, kind="stable")[:count])


class Distinct:
    """Finds a repeated uid among any number of rows in bounded memory.

    Many digests are spread over 64 files in ``folder``, which is created then and deleted by ``first_repeat``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = 0
        self._buffer: list[Array] = []
        """Records of the last rows, which are in no file."""

    def add(self, digest_N: Array) -> None:
        """Add the digests of the next rows."""
        records = digest_N.copy()
        records["row"] = self._rows + np.arange(len(records))
        self._rows += len(records)
        self._buffer.append(records)
        if sum(map(len, self._buffer)) > _BUFFERED:
            self._write_buckets()

    def _take_buffer(self) -> Array:
        """Return the records in memory, and forget them."""
        records = np.concatenate([np.zeros(0, _RECORD), *self._buffer])
        self._buffer.clear()
        return records

    def _write_buckets(self) -> None:
        """Append the records in memory to the files."""
        self._folder.mkdir(exist_ok=True)
        records = self._take_buffer()
        bucket_N = (records["low"] % _BUCKETS).astype(np.uint8)
        order = np.argsort(bucket_N, kind="stable")  # fast for a number of one byte
        for bucket in np.split(records[order], np.flatnonzero(np.diff(bucket_N[order])) + 1) if len(records) else ():
            with (self._folder / str(bucket["low"][0] % _BUCKETS)).open("ab") as stream:
                stream.write(bucket.tobytes())

    def first_repeat(self) -> tuple[int, int] | None:
        """Return (earlier row, later row) of the first repeated uid, or None; delete the files."""
        if not self._folder.is_dir():
            return _first_repeat(self._take_buffer())
        self._write_buckets()
        repeats = (_first_repeat(np.fromfile(file, _RECORD)) for file in self._folder.iterdir())
        first = min((pair for pair in repeats if pair), key=lambda pair: pair[1], default=None)
        shutil.rmtree(self._folder)
        return first


def _first_repeat(records: Array) -> tuple[int, int] | None:
    """Return (earlier row, later row) of the first digest among ``records`` that is repeated, or None."""
    low_N = np.sort(records["low"])
    if (low_N[1:] != low_N[:-1]).all():
        return None
    records = records[np.lexsort((records["row"], records["low"], records["high"]))]
    same = (records["high"][1:] == records["high"][:-1]) & (records["low"][1:] == records["low"][:-1])
    later = np.flatnonzero(same) + 1
    if not len(later):
        return None
    first = later[np.argmin(records["row"][later])]
    return int(records["row"][first - 1]), int(records["row"][first])
