"""The times of train and test documents: which train documents are the last, and whether test documents are later."""

from __future__ import annotations

from typing import Any

from xc_core.data.formats import Block
from xc_core.data.formats.times import Times
from xc_core.data.splits import TEST, TRAIN
from xc_core.errors import DataError
from xc_core.shapes import Array, Bool


class Timeline:
    """Collects the times of documents; it is an error that one cannot be read only if they decide (``decides``)."""

    def __init__(self, *, decides: bool) -> None:
        self.decides = decides
        """True if the last train documents are held out."""
        self._learnt, self._tests = Times(), Times()
        self._documents, self._timed, self._readable = 0, False, True

    def add(self, block: Block, split: str, digest_N: Array) -> None:
        """Add a block of the file ``split``; raise DataError for a train document without a time, if times decide."""
        self._documents += len(block) * (split != TEST)
        self._timed |= any(block.times or ())
        times = self._tests if split == TEST else self._learnt
        if self.decides and split == TRAIN:
            times.add(block, digest_N)
        elif block.times:
            try:
                times.add(block, digest_N)
            except DataError:
                self._readable = False

    def last(self, fraction: float, accepted: float) -> Bool:
        """Mark the ``fraction`` of the train documents that are the last (N), as ``is_last``."""
        return self._learnt.last(round(fraction * len(self._learnt)), accepted)

    def facts(self) -> dict[str, Any]:
        """Return whether a document has a time, as ``timed``.

        If all train and validation documents have one, and no time is wrong, ``later_tests`` is the share of test
        documents that are later than nine tenths of these.
        """
        known = self._readable and len(self._learnt) == self._documents and len(self._tests)
        return {"timed": self._timed} | ({"later_tests": self._tests.later(self._learnt)} if known else {})
