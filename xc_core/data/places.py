"""Where a row of the corpus comes from: file and line, for messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xc_core.data.formats import Block


@dataclass(frozen=True)
class BlockPlace:
    """File and lines of a block, without its texts and labels."""

    first_row: int
    file: str
    first_line: int
    unit: str
    line_bits: bytes | None = None
    """If the block skips lines: a bit per line from ``first_line``, 1 for a line that it has; otherwise None."""

    @classmethod
    def of(cls, block: Block, first_row: int) -> BlockPlace:
        """Return the place of a block whose first row has the number ``first_row``."""
        line_bits = None
        if block.offsets is not None and len(block):
            lines = np.zeros(int(block.offsets[-1]) + 1, bool)
            lines[block.offsets] = True
            line_bits = np.packbits(lines).tobytes()
        return cls(first_row, block.file, block.first_line, block.unit, line_bits)

    def where(self, row: int) -> str:
        """Return "file, line n" of a row of the corpus that is in the block."""
        line = row - self.first_row
        if self.line_bits is not None:
            line = int(np.flatnonzero(np.unpackbits(np.frombuffer(self.line_bits, np.uint8)))[line])
        return f"{self.file}, {self.unit} {self.first_line + line}"


def place_of(places: list[BlockPlace], row: int) -> str:
    """Return "file, line n" of a row of the corpus."""
    return max((place for place in places if place.first_row <= row), key=lambda place: place.first_row).where(row)
