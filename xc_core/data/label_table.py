"""Writes ``labels.parquet`` of a corpus from blocks of labels, checked row by row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from xc_core.data import corpus as schemas
from xc_core.data.checks import Allowed, checked_block
from xc_core.data.formats import Block, arrow
from xc_core.data.places import BlockPlace

FILE: Final = "labels.parquet"


class LabelsWriter:
    """Streams blocks of labels into the corpus at ``folder``; uids are not compared."""

    def __init__(self, folder: Path, allowed: Allowed) -> None:
        self._allowed = allowed
        self._file = pq.ParquetWriter(folder / FILE, schemas.LABELS, compression="zstd")
        self.places: list[BlockPlace] = []
        """Where the rows come from."""
        self.size = 0
        """Labels so far."""
        self.accepted: Counter[str] = Counter()
        """Labels with a flaw of each allowed kind, but for those without a train document."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, block: Block) -> None:
        """Write a block; raise DataError for the first wrong row."""
        block = checked_block(block, self._allowed, self.accepted, num_labels=None)
        self.places.append(BlockPlace.of(block, self.size))
        self.size += len(block)
        columns = [arrow(column) for column in (block.uids, block.titles, block.contents)]
        self._file.write_batch(pa.record_batch(columns, schema=schemas.LABELS))

    def all_accepted(self, unseen: int) -> dict[str, int]:
        """Return how many labels each allowed kind accepted; ``unseen`` is the number without a train document."""
        return dict(+(self.accepted + Counter({"unseen-labels": unseen})))
