"""Files whose lines belong together: texts, one per line, and a matrix with a row of labels for each line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NoReturn

import numpy as np

from xc_core.data.formats.base import Block, ReadOptions, Source, find, need, text_uid
from xc_core.data.formats.lines import lines
from xc_core.errors import DataError
from xc_core.shapes import F64, I64
from xc_core.visible import counted

_STEM = {"train": "trn", "test": "tst"}
Rows = Iterator[tuple[I64, I64, F64]]
"""Blocks of rows of a label matrix: (flat label ids, number of ids per row, relevance)."""


class Aligned(Source, ABC):
    """Source over a text file and a label matrix per split, and a file of label texts.

    A subclass names the files: ``{}`` stands for ``trn`` and ``tst``.
    """

    has_uids = False
    text_file: ClassVar[str]
    matrix_file: ClassVar[str]
    label_file: ClassVar[str]
    filter_file: ClassVar[str] = ""
    """Another name of the file of filter pairs beside ``filter_labels_train.txt`` and ``filter_labels_test.txt``."""
    row_place: ClassVar[tuple[str, int]]
    """Unit of the rows of a matrix in messages, and the number of the first."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._texts = {split: need(folder, self.text_file.format(stem)) for split, stem in _STEM.items()}
        self._targets = {split: need(folder, self.matrix_file.format(stem)) for split, stem in _STEM.items()}
        self._labels = need(folder, self.label_file)
        filters = [path for split in _STEM if (path := self.filters(split))]
        self.files = [*self._texts.values(), *self._targets.values(), self._labels, *filters]

    @abstractmethod
    def stated(self, matrix: Path) -> tuple[int, str, str]:
        """Return the number of labels that a matrix states, what it counts ("columns"), and where it stands."""

    @abstractmethod
    def rows(self, matrix: Path, texts: Path) -> Rows:
        """Yield the rows of a matrix, block by block; ``texts`` is the file of their texts."""

    def labels(self) -> Iterator[Block]:
        """Yield the label texts; compare their number with what the matrices state."""
        total = 0
        for block in _text_rows(self._labels, "", self.options):
            total += len(block)
            yield block
        for path in self._targets.values():
            count, unit, where = self.stated(path)
            if count != total:
                raise DataError(
                    f"{count} {unit}",
                    expected=f"{total}, the number of lines of {self._labels.name}",
                    do="download or write both files again; a line break inside a text shifts all lines after it",
                    where=where,
                )

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the lines of the texts with the rows of the matrix."""
        texts, matrix = self._texts[split], self._targets[split]
        blocks = _text_rows(texts, f"{split}-", self.options)
        yield from _zip_rows(blocks, self.rows(matrix, texts), texts.name, (matrix.name, *self.row_place))

    def filters(self, split: str) -> Path | None:
        """Return the file of filter pairs under one of its names; None if there is none."""
        alternative = [self.filter_file.format(_STEM[split])] if self.filter_file else []
        return find(self.folder, f"filter_labels_{split}.txt", *alternative)


def _text_rows(path: Path, prefix: str, options: ReadOptions) -> Iterator[Block]:
    """Yield a text file as blocks; the uid of a row is ``prefix`` and its 0-based row number.

    A document of a part of a dataset gets its uid from its text; only documents have a prefix.
    """
    for number, rows in lines(path, options):
        by_text = options.part and prefix
        uids = [text_uid(row, "") if by_text else f"{prefix}{number - 1 + i}" for i, row in enumerate(rows)]
        yield Block(path.name, number, uids, rows, [""] * len(rows))


def _zip_rows(
    texts: Iterator[Block],
    targets: Rows,
    text_file: str,
    target_place: tuple[str, str, int],
) -> Iterator[Block]:
    """Join blocks of texts with blocks of targets of other sizes, row by row.

    ``target_place`` is the file of the targets, the unit of its rows, and the number of the first row. Raises DataError
    if one side ends before the other.
    """
    ids, counts, values = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64)
    rows_done = 0
    target_file, unit, first = target_place
    for block in texts:
        while len(counts) < len(block):
            target_rows = next(targets, None)
            if target_rows is None:
                rows = rows_done + len(counts)
                _uneven(
                    f"more than {counted(rows, 'text')}",
                    f"{counted(rows, 'row')} in {target_file}",
                    f"{text_file}, line {rows + 1}",
                )
            ids, counts = np.concatenate([ids, target_rows[0]]), np.concatenate([counts, target_rows[1]])
            values = np.concatenate([values, target_rows[2]])
        cut = int(counts[: len(block)].sum())
        block.label_ids, block.label_counts, block.relevance = ids[:cut], counts[: len(block)], values[:cut]
        block.label_place = target_file, unit, first + rows_done
        ids, counts, values = ids[cut:], counts[len(block) :], values[cut:]
        rows_done += len(block)
        yield block
    remaining = len(counts) + sum(len(target_rows[1]) for target_rows in targets)
    if remaining:
        all_rows = f"{counted(rows_done + remaining, 'row')} in {target_file}"
        _uneven(counted(rows_done, "text"), all_rows, f"{text_file}, after line {rows_done}")


def _uneven(texts: str, rows: str, where: str) -> NoReturn:
    raise DataError(
        f"{texts} and {rows}",
        expected="as many texts as rows",
        do="look for a text with an inner line break, or download both files again",
        where=where,
    )
