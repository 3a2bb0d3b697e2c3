"""A dataset as Parquet: documents, labels, pairs, filters; and the reader of it.

Takes: the folder of a corpus artefact.    Gives: Corpus.
May import: errors, artifacts, data.labels, data.splits.  Never: torch.

Files: ``documents.parquet`` (uid, title, content, split; train and validation rows first, in file order, then test),
``labels.parquet`` (uid, title, content), ``pairs.parquet`` and ``filters.parquet`` (doc int64, label int32, by doc).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from xc_core import artifacts
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import SPLITS, TEST, TRAIN, VALIDATION, digests, halves
from xc_core.errors import ConfigError
from xc_core.shapes import I64

KIND: Final = "corpus"
DOCUMENTS: Final = pa.schema(
    [("uid", pa.string()), ("title", pa.string()), ("content", pa.string()), ("split", pa.string())]
)
LABELS: Final = pa.schema([("uid", pa.string()), ("title", pa.string()), ("content", pa.string())])
PAIRS: Final = pa.schema([("doc", pa.int64()), ("label", pa.int32())])


@dataclass(frozen=True)
class Corpus:
    """A corpus artefact, opened; columns are read when asked for."""

    folder: Path
    facts: dict[str, Any]
    digest: str

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open and verify the artefact at ``folder``.

        Raises MissingError, CorruptError.
        """
        manifest = artifacts.verify(folder, kind=KIND)
        return cls(folder, dict(manifest.facts), manifest.digest())

    @property
    def num_documents(self) -> int:
        """N, of all splits together."""
        return int(self.facts["documents"])

    @property
    def num_labels(self) -> int:
        """L."""
        return int(self.facts["labels"])

    @property
    def propensity(self) -> tuple[float, float]:
        """The constants (A, B) of the propensity model."""
        constants = self.facts["propensity"]
        return float(constants["A"]), float(constants["B"])

    @cached_property
    def _split_N(self) -> pl.Series:
        return pl.read_parquet(self.folder / "documents.parquet", columns=["split"])["split"]

    @cached_property
    def labels(self) -> LabelMatrix:
        """All documents x labels."""
        return self._matrix("pairs.parquet")

    @cached_property
    def filters(self) -> LabelMatrix:
        """All documents x labels that evaluation leaves out of predictions."""
        return self._matrix("filters.parquet")

    def _matrix(self, name: str) -> LabelMatrix:
        pairs = pl.read_parquet(self.folder / name)
        shape = (self.num_documents, self.num_labels)
        return LabelMatrix.from_pairs(pairs["doc"].to_numpy(), pairs["label"].to_numpy(), shape)

    def rows(self, split: str) -> I64:
        """Return the row numbers of ``split`` (train, validation, test)."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}", expected=f"one of {', '.join(SPLITS)}", do="mend the name")
        return np.flatnonzero((self._split_N == split).to_numpy()).astype(np.int64)

    def published_rows(self) -> I64:
        """Return the row numbers of the train file as published: train and validation."""
        return np.flatnonzero(self._split_N.is_in([TRAIN, VALIDATION]).to_numpy()).astype(np.int64)

    def validation_halves(self) -> tuple[I64, I64]:
        """Return the row numbers of the validation documents in two halves, by a hash of the uid."""
        rows = self.rows(VALIDATION)
        documents = pl.scan_parquet(self.folder / "documents.parquet")
        uids = documents.filter(pl.col("split") == VALIDATION).select("uid").collect()["uid"].to_list()
        half = halves(digests(uids))
        return rows[half == 0], rows[half == 1]

    def published_train(self) -> LabelMatrix:
        """Return the binary train matrix as published (train and validation rows): what propensities come from."""
        return self.labels.rows(self.published_rows())

    def shared(self, *columns: str) -> int:
        """Return how many test documents have the same ``columns`` as a train or validation document.

        Hashes of 64 bits are compared, so that the memory it takes does not grow with the texts.
        """
        own = pl.concat_str([pl.col(name).hash() for name in columns], separator=" ").hash()
        documents = pl.scan_parquet(self.folder / "documents.parquet").select("split", own=own)
        known, test = documents.filter(pl.col("split") != TEST), documents.filter(pl.col("split") == TEST)
        shared = test.join(known, on="own", how="semi").select(pl.len())
        return int(shared.collect(engine="streaming").item())

    def test_digest(self) -> str:
        """Return a digest of what models are judged on: the test documents with uid, text, labels and filtered labels.

        It does not change where train documents come, or labels that no test document has.
        """
        uids, digest = self.table("labels")["uid"].to_list(), hashlib.blake2b(digest_size=8)
        is_test_N, start = (self._split_N == TEST).to_numpy(), 0
        for block in self.texts("documents", ("uid", "title", "content")):
            for at in np.flatnonzero(is_test_N[start : start + len(block)]).tolist():
                own = [sorted(uids[i] for i in pairs.row(start + at)) for pairs in (self.labels, self.filters)]
                digest.update(json.dumps([block[at], *own]).encode())
            start += len(block)
        return digest.hexdigest()

    def texts(self, side: str, fields: tuple[str, ...] = ("title", "content")) -> Iterator[list[str]]:
        """Yield blocks of texts of ``side`` ("documents" or "labels"), the fields joined by a space."""
        for batch in pq.ParquetFile(self.folder / f"{side}.parquet").iter_batches(16_384, columns=list(fields)):
            columns = [batch[name].to_pylist() for name in fields]
            yield [" ".join(part for part in parts if part) for parts in zip(*columns, strict=True)]

    def own_texts(self, side: str, rows: I64, fields: tuple[str, ...] = ("title", "content")) -> list[str]:
        """Return the texts of ``rows`` of ``side``, in their order, as ``texts`` joins them."""
        found, order = [""] * len(rows), np.argsort(rows, kind="stable")
        ordered, start = rows[order], 0
        for block in self.texts(side, fields):
            inside = slice(*np.searchsorted(ordered, (start, start + len(block))))
            for place, row in zip(order[inside].tolist(), ordered[inside].tolist(), strict=True):
                found[place] = block[row - start]
            start += len(block)
        return found

    def table(self, side: str, rows: I64 | None = None) -> pl.DataFrame:
        """Return uid, title, content (and split) of ``rows`` of ``side``, all where None."""
        frame = pl.read_parquet(self.folder / f"{side}.parquet")
        return frame if rows is None else frame[rows.tolist()]
