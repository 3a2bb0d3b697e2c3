"""The artefact of the stage corpus: a dataset as Parquet.

Files: ``documents.parquet`` (uid, title, content, split; train and validation rows first, in file order, then test),
``labels.parquet`` (uid, title, content), ``pairs.parquet`` and ``filters.parquet`` (doc int64, label int32, sorted),
``corpus.json`` (counts, propensity constants, the columns that form a text). If validation is cut by group or family,
``families.parquet`` (doc int64, family): the documents that have siblings or a group, and the name of their family.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from xc_core import artifacts
from xc_core.data.cut import FAMILIES
from xc_core.data.cut import SCHEMA as FAMILY_SCHEMA
from xc_core.data.labels import LabelMatrix
from xc_core.data.propensity import inverse_propensity
from xc_core.data.splits import SPLITS, TEST, TRAIN, VALIDATION, digests, drawn, halves
from xc_core.errors import ConfigError
from xc_core.shapes import F64, I64, as_slice

CONTENT: Final = "corpus.json"
DOCUMENTS: Final = pa.schema(
    [("uid", pa.string()), ("title", pa.string()), ("content", pa.string()), ("split", pa.string())]
)
LABELS: Final = pa.schema([("uid", pa.string()), ("title", pa.string()), ("content", pa.string())])
PAIRS: Final = pa.schema([("doc", pa.int64()), ("label", pa.int32())])
_ROWS_AT_ONCE: Final = 16_384


@dataclass(frozen=True)
class Corpus:
    """An opened corpus: N documents, L labels. Columns are read when needed."""

    kind: ClassVar[str] = "corpus"
    folder: Path
    facts: dict[str, Any]
    """The content of ``corpus.json``."""
    digest: str
    """Digest of all files; equal digests mean equal content."""

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        digest = artifacts.verify(folder, kind=cls.kind).digest()
        return replace(cls.unsealed(folder), digest=digest)

    @classmethod
    def unsealed(cls, folder: Path) -> Corpus:
        """Return the corpus whose files are complete at ``folder`` but not yet an artefact; nothing is verified."""
        return cls(folder, dict(json.loads((folder / CONTENT).read_text("utf-8"))), "")

    def wrong_schemas(self) -> list[str]:
        """Return the names of tables whose columns or types differ from those that the pipeline reads."""
        expected = {"documents": DOCUMENTS, "labels": LABELS, "pairs": PAIRS, "filters": PAIRS}
        if (self.folder / FAMILIES).is_file():
            expected["families"] = FAMILY_SCHEMA
        actual = {name: pq.read_schema(self.folder / f"{name}.parquet") for name in expected}
        return [name for name, schema in expected.items() if not actual[name].equals(schema)]

    def allows(self, kind: str) -> bool:
        """Return True if the dataset was ingested with ``--allow KIND``."""
        return kind in artifacts.read_made(self.folder).facts.get("allow", ())

    @property
    def labels_in_test_only(self) -> int:
        """Labels without a train document only because our own split put all of their documents into test."""
        return int(artifacts.read_made(self.folder).facts.get("split", {}).get("labels_in_test_only", 0))

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that form a text."""
        return tuple(self.facts["fields"])

    @property
    def num_documents(self) -> int:
        """N, the number of documents of all splits."""
        return int(self.facts["documents"])

    @property
    def num_labels(self) -> int:
        """L, the number of labels."""
        return int(self.facts["labels"])

    @property
    def propensity(self) -> tuple[float, float]:
        """The constants (A, B) of the propensity model."""
        constants = self.facts["propensity"]
        return float(constants["A"]), float(constants["B"])

    @cached_property
    def _split_N(self) -> pl.Series:
        return pl.read_parquet(self.folder / "documents.parquet", columns=["split"], glob=False)["split"]

    @cached_property
    def labels(self) -> LabelMatrix:
        """The labels of all documents (N x L)."""
        return self._matrix("pairs.parquet")

    @cached_property
    def filters(self) -> LabelMatrix:
        """The pairs that are removed from predictions (N x L)."""
        return self._matrix("filters.parquet")

    def _matrix(self, name: str) -> LabelMatrix:
        pairs = pl.read_parquet(self.folder / name, glob=False)
        shape = (self.num_documents, self.num_labels)
        return LabelMatrix.from_pairs(pairs["doc"].to_numpy(), pairs["label"].to_numpy(), shape)

    def rows(self, split: str) -> I64:
        """Return the row numbers of a split, ascending; raise ConfigError for a name that is not in SPLITS."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}", expected=f"one of {', '.join(SPLITS)}", do="fix the name")
        return np.flatnonzero((self._split_N == split).to_numpy()).astype(np.int64)

    def published_rows(self) -> I64:
        """Return the row numbers of the published train file: train and validation."""
        return np.flatnonzero(self._split_N.is_in([TRAIN, VALIDATION]).to_numpy()).astype(np.int64)

    def uids(self, rows: I64) -> list[str]:
        """Return the uids of the documents ``rows``, in the order of ``rows``."""
        return self._read_rows("documents", ("uid",), rows)["uid"].to_list()

    def drawn(self, rows: I64, limit: int) -> I64:
        """Return ``limit`` of ``rows`` at most, drawn by a hash of the uid, in the order of ``rows``."""
        return rows[drawn(self.uids(rows), limit)]

    def validation_halves(self) -> tuple[I64, I64]:
        """Return the row numbers of the validation documents in two halves, split by a hash of the uid.

        Documents of a family are in one half: the hash of its name decides.
        """
        rows = self.rows(VALIDATION)
        half = halves(digests(self.family_names(rows)))
        return rows[half == 0], rows[half == 1]

    def family_names(self, rows: I64) -> list[str]:
        """Return the name of the family of each of ``rows``; the uid for a document without siblings."""
        documents = self._read_rows("documents", ("uid",), rows).with_columns(doc=pl.Series(rows, dtype=pl.Int64))
        if not (self.folder / FAMILIES).is_file():
            return documents["uid"].to_list()
        families = pl.scan_parquet(self.folder / FAMILIES, glob=False).filter(
            pl.col("doc").is_in(documents["doc"].implode())
        )
        documents = documents.join(families.collect(), on="doc", how="left", maintain_order="left")
        return documents.select(pl.col("family").fill_null(pl.col("uid")))["family"].to_list()

    def families(self, rows: I64) -> I64:
        """Return the number of the family of each of ``rows``, counted from 0 in the order in which they appear."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(name, len(numbers)) for name in self.family_names(rows)], np.int64)

    def published_train(self) -> LabelMatrix:
        """Return the published binary train matrix (train and validation rows)."""
        return self.labels.rows(self.published_rows())

    def weights(self) -> F64:
        """Return the inverse propensity of each label (L), from its frequency in the published train matrix."""
        train = self.published_train()
        return inverse_propensity(train.frequency_L(), len(train), self.propensity)

    def shared(self, *columns: str, split: str = TEST, known: tuple[str, ...] = (TRAIN, VALIDATION)) -> int:
        """Return how many documents of ``split`` have the same ``columns`` as a document of the splits ``known``.

        The Unicode form of texts does not count, that of uids does. Documents whose columns are all empty do not count.
        64-bit hashes are compared, so memory does not grow with the length of the texts.
        """
        normalised = [pl.col(name) if name == "uid" else pl.col(name).str.normalize("NFC") for name in columns]
        key = pl.concat_str([column.hash() for column in normalised], separator=" ").hash()
        filled = pl.scan_parquet(self.folder / "documents.parquet", glob=False).filter(
            pl.any_horizontal(pl.col(columns) != "")
        )
        documents = filled.select("split", key=key)
        known_documents = documents.filter(pl.col("split").is_in(known))
        shared = documents.filter(pl.col("split") == split).join(known_documents, on="key", how="semi").select(pl.len())
        return int(shared.collect(engine="streaming").item())

    def test_digest(self) -> str:
        """Return a digest of the test documents: uid, text, labels and filtered labels.

        It does not change with new train documents, or with new labels that no test document has.
        """
        uids = pl.read_parquet(self.folder / "labels.parquet", columns=["uid"], glob=False)["uid"]
        fields, rows, digest = ("uid", "title", "content"), self.rows(TEST), hashlib.blake2b(digest_size=8)
        for places, batch in self._batches("documents", fields, rows):
            names = [_label_uids(pairs.rows(rows[places]), uids) for pairs in (self.labels, self.filters)]
            for text, positives, filtered in zip(_join_fields(batch, fields), *names, strict=True):
                digest.update(json.dumps([text, positives, filtered]).encode())
        return digest.hexdigest()

    def texts(self, side: str, *, rows: I64 | None = None) -> Iterator[list[str]]:
        """Yield blocks of texts of ``side`` ("documents" or "labels"): non-empty fields joined by a space.

        With ``rows``, which must ascend, only their texts are yielded; a block without any is left out.
        """
        file, start = pq.ParquetFile(self.folder / f"{side}.parquet"), 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(self.fields)):
            if rows is None:
                yield _join_fields(batch, self.fields)
            elif len(batch_rows := rows[slice(*np.searchsorted(rows, (start, start + len(batch))))]):
                yield _join_fields(_take_rows(batch, batch_rows - start), self.fields)
            start += len(batch)

    def sides(self) -> dict[str, tuple[int, Iterator[list[str]]]]:
        """Return the number of texts of each side, and blocks of them."""
        return {
            "documents": (self.num_documents, self.texts("documents")),
            "labels": (self.num_labels, self.texts("labels")),
        }

    def label_texts(self, first: int = 0) -> list[str]:
        """Return the texts of all labels, or of those from the number ``first`` on."""
        return self.texts_of("labels", np.arange(first, self.num_labels))

    def texts_of(self, side: str, rows: I64) -> list[str]:
        """Return the texts of ``rows`` of ``side``, in the order of ``rows``; only their parts of the file are read.

        Raises IndexError for a row that there is not.
        """
        texts = [""] * len(rows)
        for places, batch in self._batches(side, self.fields, rows):
            for place, text in zip(places.tolist(), _join_fields(batch, self.fields), strict=True):
                texts[place] = text
        return texts

    def mean_chars(self, side: str) -> float:
        """Return the mean number of characters of the texts of ``side``; 0 if there are none."""
        chars = pl.sum_horizontal(pl.col(name).str.len_chars() for name in self.fields)
        texts = pl.scan_parquet(self.folder / f"{side}.parquet", glob=False).select(chars.mean())
        return float(texts.collect(engine="streaming").item() or 0.0)

    def each_text(self, side: str, rows: I64) -> Iterator[str]:
        """Yield the texts of ``rows`` of ``side``, which must ascend; a block of the file is in memory at a time.

        Raises IndexError for a row that there is not, ValueError if the rows do not ascend.
        """
        if (np.diff(rows) < 0).any():
            raise ValueError("rows that do not ascend, in which order the file is read")
        for _, batch in self._batches(side, self.fields, rows):
            yield from _join_fields(batch, self.fields)

    def table(self, side: str, rows: I64 | None = None) -> pl.DataFrame:
        """Return uid, title, content (and split) of ``rows`` of ``side``; of all rows if None.

        Raises IndexError for a row that there is not.
        """
        if rows is None:
            return pl.read_parquet(self.folder / f"{side}.parquet", glob=False)
        return self._read_rows(side, (DOCUMENTS if side == "documents" else LABELS).names, rows)

    def _read_rows(self, side: str, fields: Sequence[str], rows: I64) -> pl.DataFrame:
        """Return some columns of ``rows`` of ``side``, in the order of ``rows``."""
        frame = pl.DataFrame(schema=dict.fromkeys(fields, pl.String))
        batches = list(self._batches(side, fields, rows))
        if batches:
            places = np.concatenate([places for places, _ in batches])
            frame = pl.DataFrame(pa.Table.from_batches([batch for _, batch in batches]))[np.argsort(places)]
        return frame

    def _batches(self, side: str, fields: Sequence[str], rows: I64) -> Iterator[tuple[I64, pa.RecordBatch]]:
        """Yield ``rows`` of ``side`` in the order of the file, each batch with the places of its rows in ``rows``."""
        file, order = pq.ParquetFile(self.folder / f"{side}.parquet"), np.argsort(rows, kind="stable")
        ordered, start = rows[order], 0
        if len(rows) and not 0 <= ordered[0] <= ordered[-1] < file.metadata.num_rows:
            raise IndexError(f"rows {ordered[0]} to {ordered[-1]} of {file.metadata.num_rows} {side}")
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            if np.searchsorted(ordered, start) < np.searchsorted(ordered, stop):
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=list(fields)):
                    inside = slice(*np.searchsorted(ordered, (start, start + len(batch))))
                    yield order[inside], _take_rows(batch, ordered[inside] - start)
                    start += len(batch)
            start = stop


def _take_rows(batch: pa.RecordBatch, rows: I64) -> pa.RecordBatch:
    """Return the ``rows`` of a batch."""
    index = as_slice(rows)
    if isinstance(index, slice):
        return batch.slice(index.start, len(rows))
    return batch.take(pl.Series(index).to_arrow())  # pa.array would import pandas


def _join_fields(batch: pa.RecordBatch, fields: Sequence[str]) -> list[str]:
    """Return the non-empty fields of each row, joined by a space."""
    columns = [batch[name].to_pylist() for name in fields]
    if len(columns) == 2:  # the same, three times as fast
        return [f"{a} {b}" if a and b else a or b or "" for a, b in zip(*columns, strict=True)]
    return [" ".join(value for value in values if value) for values in zip(*columns, strict=True)]


def _label_uids(pairs: LabelMatrix, uids_L: pl.Series) -> list[list[str]]:
    """Return the sorted uids of the labels of each document."""
    names, ends = uids_L.gather(pairs.indices).to_list(), pairs.indptr.tolist()
    return [sorted(names[start:end]) for start, end in pairwise(ends)]
