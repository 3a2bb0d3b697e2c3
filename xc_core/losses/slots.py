"""Numbers pairs (document, label) in the order of their first appearance, in 24 to 48 bytes a pair.

A dict of tuples takes ten times the memory. The hash table has open addressing with linear probing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.shapes import I64, Bool

_FIBONACCI: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: a product with it spreads neighbouring keys (Knuth, volume 3, section 6.4)."""
_LEAST: Final = 1 << 10


class Slots:
    """The number of each pair, from 0 on. Document and label must be at least 0 and below 2^31."""

    def __init__(self) -> None:
        self.size = 0
        self._key_S: I64 = np.zeros(_LEAST // 2, np.int64)
        self._slot_H: I64 = np.full(_LEAST, -1, np.int64)

    def numbered(self, docs_P: I64, labels_P: I64) -> I64:
        """Return the slot of each pair; a pair that is new gets the next one."""
        key_P = (docs_P << 32) | labels_P
        slot_P = self._look_up(key_P)
        new_P = key_P[slot_P < 0]
        if len(new_P):
            self._add(new_P[np.sort(np.unique(new_P, return_index=True)[1])])
            slot_P = self._look_up(key_P)
        return slot_P

    def pairs(self) -> I64:
        """Return document and label of each slot (M x 2)."""
        key_M = self._key_S[: self.size]
        return np.stack([key_M >> 32, key_M & 0xFFFFFFFF], axis=1)

    def _look_up(self, key_P: I64) -> I64:
        """Return the slot of each key, -1 for a key that has none."""
        slot_P, position_P = np.full(len(key_P), -1, np.int64), self._first_positions(key_P)
        pending_P = np.arange(len(key_P))
        while len(pending_P):
            slot = self._slot_H[position_P[pending_P]]
            equal = (slot >= 0) & (self._key_S[slot] == key_P[pending_P])
            slot_P[pending_P[equal]] = slot[equal]
            pending_P = self._advance(position_P, pending_P, (slot >= 0) & ~equal)
        return slot_P

    def _add(self, key_P: I64) -> None:
        """Add distinct keys that are not there yet; the table stays at most half full."""
        first, self.size = self.size, self.size + len(key_P)
        if self.size > len(self._key_S):
            length = 1 << (2 * self.size - 1).bit_length()
            self._key_S = np.concatenate([self._key_S[:first], np.zeros(length // 2 - first, np.int64)])
            self._slot_H, first = np.full(length, -1, np.int64), 0
        self._key_S[self.size - len(key_P) : self.size] = key_P
        slot_P = np.arange(first, self.size)
        position_P, pending_P = self._first_positions(self._key_S[slot_P]), np.arange(len(slot_P))
        while len(pending_P):
            free = pending_P[self._slot_H[position_P[pending_P]] < 0]
            self._slot_H[position_P[free]] = slot_P[free]  # of several keys at one place, one is kept
            pending_P = self._advance(position_P, pending_P, self._slot_H[position_P[pending_P]] != slot_P[pending_P])

    def _first_positions(self, key_P: I64) -> I64:
        """Return where the search for each key begins."""
        bits = np.uint64(65 - len(self._slot_H).bit_length())
        return ((key_P.astype(np.uint64) * _FIBONACCI) >> bits).astype(np.int64)

    def _advance(self, position_P: I64, pending_P: I64, collides_P: Bool) -> I64:
        """Move the keys that collide to the next position of the table; return them."""
        moved = pending_P[collides_P]
        position_P[moved] = (position_P[moved] + 1) & (len(self._slot_H) - 1)
        return moved
