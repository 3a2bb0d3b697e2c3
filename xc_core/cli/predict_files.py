"""``xc predict --input FILE --output FILE``: streams texts from a file, shows progress, resumes after a stop.

Finished blocks are artefacts in a folder beside the output. When all are there, they become the output, and the folder
is deleted. With ``--part I/N`` a process answers every N-th block only and leaves the rest to the other parts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from xc_core import artifacts
from xc_core.causes import resolved
from xc_core.data.formats.tables import ENDINGS, has_ending
from xc_core.data.formats.texts import blocks_of
from xc_core.data.label_file import not_a_file
from xc_core.errors import CorruptError, MissingError, UsageError
from xc_core.infer.predictor import Prediction
from xc_core.locks import locked
from xc_core.progress import Meter, report

_OUTPUT_ENDINGS: Final = (".parquet", ".jsonl")
_BLOCK: Final = "block.parquet"
_LABEL: Final = pa.struct(
    [("uid", pa.string()), ("title", pa.string()), ("score", pa.float32()), ("probability", pa.float32())]
)
SCHEMA: Final = pa.schema([("row", pa.int64()), ("labels", pa.list_(_LABEL))])
"""Columns of a Parquet output: number of the row in the input, and its labels, best first."""
Predict = Callable[[list[str]], list[list[Prediction]]]


@dataclass(frozen=True)
class Share:
    """The blocks of one of ``parts`` processes: those whose number is ``number`` modulo ``parts``."""

    number: int = 0
    parts: int = 1

    @classmethod
    def of(cls, text: str) -> Share:
        """Read ``I/N``, for instance 2/4, the second of four parts; raise UsageError for other texts."""
        found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        number, parts = (int(found[1]), int(found[2])) if found else (1, 0)
        if number > parts:
            raise UsageError(f"part {text!r}", expected="I/N with I from 1 to N", do="write for instance --part 2/4")
        return cls(number - 1, parts)

    def __contains__(self, block: int) -> bool:
        return block % self.parts == self.number

    def __str__(self) -> str:
        return f"part {self.number + 1} of {self.parts}"


WHOLE: Final = Share()


@dataclass(frozen=True)
class Job:
    """Which file is answered by which model, and how."""

    source: Path
    target: Path
    column: str
    """Name of the column or field with the text."""
    question: str = ""
    """Names model, k, dial and least probability; a block of another question, or of other texts, is not used."""

    def __post_init__(self) -> None:
        if self.target.exists() and not self.target.is_file():  # it would be replaced, even /dev/null
            raise UsageError(not_a_file(self.target), expected="a file", do="name a file with --output")
        for path, endings in ((self.source, ENDINGS), (self.target, _OUTPUT_ENDINGS)):
            if not has_ending(path, endings):
                raise UsageError(f"{path.name}", expected=f"a name that ends in {' or '.join(endings)}", do="rename it")
        if not self.source.is_file():
            raise MissingError(not_a_file(self.source), expected="a file of texts", do="fix the name")
        if self.target.exists() and self.target.samefile(self.source):
            raise UsageError(
                f"{self.target} as input and output", expected="two files", do="name another file with --output"
            )
        resolved(self.target)  # raises the error of a link to itself: now, not when all rows are answered

    @property
    def folder(self) -> Path:
        """Where finished blocks are kept."""
        return self.target.with_name(f".{self.target.name}.blocks")

    def run(self, predict: Predict) -> int:
        """Answer all rows, write the output, and return the number of rows; blocks of an earlier run are kept.

        Raises DataError for a file that cannot be read, StorageError if the output cannot be written, BusyError if
        another process, or one of its parts, answers into the same output.
        """
        with self._lock(shared=False):
            try:
                rows, blocks = self._answer_blocks(predict, WHOLE)
                _join(blocks, self.target)
            except BaseException:
                if not any(self.folder.glob("[0-9]*")):  # nothing that the next run could use
                    artifacts.remove(self.folder)
                raise
            artifacts.remove(self.folder)
        return rows

    def answer(self, predict: Predict, share: Share) -> int:
        """Answer the blocks of ``share`` that are not answered yet; return the rows of the share.

        Parts share the lock. Raises BusyError if a process without a part answers into the same output.
        """
        with self._lock(shared=True):
            return self._answer_blocks(predict, share)[0]

    def _lock(self, *, shared: bool) -> AbstractContextManager[None]:
        return locked(self.folder / "lock", f"answers to {self.target.name}", shared=shared, needed=False)

    def _answer_blocks(self, predict: Predict, share: Share) -> tuple[int, list[Path]]:
        first_row, rows, blocks = 0, 0, []
        for number, texts in enumerate(self._progress(share)):
            if number in share:
                block, fingerprint = self._block_folder(number), f"{self.question}, {_fingerprint(first_row, texts)}"
                blocks.append(block)
                if not _is_done(block, fingerprint):
                    _write(block, fingerprint, first_row, predict(texts))
                rows += len(texts)
            first_row += len(texts)
        return rows, blocks

    def _block_folder(self, number: int) -> Path:
        return self.folder / f"{number:08}"

    def _progress(self, share: Share) -> Iterator[list[str]]:
        """Yield blocks of texts, and show how much of the file is done: in rows if the file says how many it has.

        A column of Parquet is read long before its texts are answered, so bytes would show nothing.
        """
        if self._block_folder(share.number).is_dir():
            report(f"{self.folder.name} holds blocks of an earlier run; those of the same question are used")
        rows = _rows(self.source)
        total, unit = (self.source.stat().st_size, "bytes") if rows is None else (rows, "rows")
        with self.source.open("rb") as stream, Meter(f"answering {self.source.name}", total, unit) as meter:
            done = 0
            for texts in blocks_of(stream, self.source, self.column):
                yield texts
                position = min(stream.tell(), total) if rows is None else done + len(texts)
                meter.update(max(position - done, 0))
                done = max(position, done)


def _rows(source: Path) -> int | None:
    """Return the number of rows of a Parquet file; None for another file, or one that cannot be read."""
    if source.suffix != ".parquet":
        return None
    try:
        return int(pq.read_metadata(source).num_rows)
    except (pa.ArrowException, OSError):  # the reader says what is wrong
        return None


def _fingerprint(first_row: int, texts: list[str]) -> str:
    """Return a hash of a block's texts and position: two different files may have the same size and time."""
    return hashlib.sha256(json.dumps([first_row, texts]).encode()).hexdigest()


def _is_done(block: Path, fingerprint: str) -> bool:
    """Return True if ``block`` is whole and answers the same question."""
    if artifacts.read_made(block).fingerprint != fingerprint:
        return False
    try:
        artifacts.verify(block, kind="answers")
    except (MissingError, CorruptError):
        return False
    return True


def _write(block: Path, fingerprint: str, first_row: int, answers: list[list[Prediction]]) -> None:
    rows = [
        {"row": row, "labels": [{field.name: getattr(label, field.name) for field in _LABEL} for label in labels]}
        for row, labels in enumerate(answers, first_row)
    ]
    with artifacts.building(block, kind="answers") as build:
        build.origin = artifacts.Made(fingerprint=fingerprint)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), build.path / _BLOCK)


def _join(blocks: list[Path], target: Path) -> None:
    """Write the blocks one after the other into a file beside ``target``, then rename it; a link stays one.

    Raises MissingError if somebody deleted a block meanwhile.
    """
    if missing := next((block for block in blocks if not (block / _BLOCK).is_file()), None):
        raise MissingError(
            f"no {missing}, which was deleted while other rows were answered",
            expected="the answers of all rows",
            do="run the same command again; it answers only the rows whose answers are lost",
        )
    with artifacts.replacing(target.resolve()) as work:
        if target.suffix == ".parquet":
            with pq.ParquetWriter(work, SCHEMA) as writer:
                for block in blocks:
                    writer.write_table(pq.read_table(block / _BLOCK))
            return
        with work.open("w", encoding="utf-8") as stream:
            for block in blocks:
                for row in pq.read_table(block / _BLOCK).to_pylist():
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
