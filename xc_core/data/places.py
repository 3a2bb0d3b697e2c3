"""Where a row of the corpus comes from: file and line, for messages."""

from __future__ import annotations

from dataclasses import dataclass

from xc_core.data.formats import Block


@dataclass(frozen=True)
class Place:
    """File and line of a block; nothing else of a block is kept."""

    first_row: int
    file: str
    first_line: int
    unit: str

    @classmethod
    def of(cls, block: Block, first_row: int) -> Place:
        """Return the place of a block; it is approximate if the block leaves out rows."""
        unit = block.unit if block.offsets is None else f"{block.unit} after"
        return cls(first_row, block.file, block.first_line, unit)


def place_of(places: list[Place], row: int) -> str:
    """Return "file, line n" of a row of the corpus."""
    place = max((place for place in places if place.first_row <= row), key=lambda place: place.first_row)
    return f"{place.file}, {place.unit} {place.first_line + row - place.first_row}"
