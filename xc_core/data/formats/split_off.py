"""Rows that are split off the train table as the test set: some by a hash, or the last ones by time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from xc_core.data.formats.base import Block, ReadOptions
from xc_core.data.formats.times import Times
from xc_core.data.splits import digests
from xc_core.shapes import Array, Bool


class SplitOff:
    """Says of each row of a train table whether it is a test row; ``rows`` are all of them, read for a split by time.

    By a hash only the uid, or the group, decides about a row, so that it stays where it is when rows are added. If the
    share of test rows is 0, no times are needed.
    """

    def __init__(self, options: ReadOptions, rows: Iterable[Block]) -> None:
        self._options, self._by_time = options, options.test_by == "time" and options.test_fraction > 0
        if self._by_time:
            times = Times()
            for block in rows:
                times.add(block, digests(block.uids))
            self._first = times.first(round(options.test_fraction * len(times)))

    def are_in(self, block: Block) -> Bool:
        """Mark the rows that are test rows (N)."""
        if self._by_time:
            digest_N = digests(block.uids)
            moment_N, key_N = Times().add(block, digest_N), digest_N["high"]
            moment, key = self._first
            return np.asarray((moment_N > moment) | ((moment_N == moment) & (key_N >= key)))
        groups = block.groups if block.groups and self._options.test_by == "group" else [""] * len(block)
        names = [f"group/{group}" if group else uid for group, uid in zip(groups, block.uids, strict=True)]
        return np.asarray(_keys(names) / 2.0**64 < self._options.test_fraction)


def _keys(names: Iterable[str]) -> Array:
    """Return the hash of each name (N, uint64)."""
    digests = (hashlib.blake2b(f"test/{name}".encode(), digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.uint64)


def rows_of(block: Block, kept_N: Bool) -> Block:
    """Return some rows of a table that holds the rows of two splits."""
    offsets = np.flatnonzero(kept_N)
    rows = offsets.tolist()
    return replace(
        block,
        uids=[block.uids[i] for i in rows],
        titles=[block.titles[i] for i in rows],
        contents=[block.contents[i] for i in rows],
        label_ids=block.label_ids[np.repeat(kept_N, block.label_counts)],
        label_counts=block.label_counts[kept_N],
        offsets=offsets,
        groups=[block.groups[i] for i in rows] if block.groups else None,
        times=[block.times[i] for i in rows] if block.times else None,
    )
