"""Ingest a folder in a public layout into a corpus artefact: strictly, in a stream, completely or not at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from xc_core.artifacts import Build
from xc_core.data import corpus as schemas
from xc_core.data.checks import Allowed, check_sizes, checked_block
from xc_core.data.cut import BY, Cut, write_splits
from xc_core.data.filters import generated_pairs, given_pairs
from xc_core.data.formats import LAYOUTS, Block, ReadOptions, Source, arrow, open_source
from xc_core.data.formats.base import source_facts
from xc_core.data.held import hold_out
from xc_core.data.label_table import LabelsWriter
from xc_core.data.places import BlockPlace, place_of
from xc_core.data.propensity import PROPENSITY
from xc_core.data.splits import TEST, TRAIN, VALIDATION, Distinct, digests
from xc_core.errors import ConfigError, DataError, preview
from xc_core.params import later, one_of
from xc_core.progress import Meter
from xc_core.shapes import I32, I64, Bool
from xc_core.visible import counted

FILTERS: Final = ("given", "generate", "none")
FIELDS: Final = ("title", "content")


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """How a folder becomes a corpus."""

    layout: str = "auto"
    """Name of the layout, or "auto"."""
    validation_fraction: float = 0.1
    """Share of the train rows held out for validation, chosen by a hash or by time; not used if there is a validation
    file."""
    split: str = later("uid", was="uid")
    """What is held out as a whole: "uid": a document; "group": documents with the same value in the column group;
    "family": near-duplicates of text; "time": the last documents by the column time. `xc ingest` sets it by the data
    (--split auto)."""
    acceptance_fraction: float = later(0.0, was=0.0)
    """Share of the train rows that no stage learns from; the gate compares models on them. 0: the gate uses test
    documents."""
    filters: str = "given"
    """"given": from filter files, if there are any; "generate": self and reverse pairs, by uid; "none"."""
    propensity: str = "default"
    """Constants (A, B) of the propensity model: default, wikipedia or amazon."""
    allow: tuple[str, ...] = ()
    """Kinds of imperfect data that are accepted: empty-text, empty-labels, unseen-labels, repeated-labels, clean-text,
    shared-texts."""
    max_line_bytes: int = ReadOptions.max_line_bytes
    """Length limit of a line, in bytes; a line that reaches it is an error."""
    fields: tuple[str, ...] = FIELDS
    """Columns joined by a space to form the text of a document or label, in this order."""
    label_separator: str = ReadOptions.label_separator
    """Separates the labels in a text of labels, such as a CSV cell."""
    test_fraction: float = ReadOptions.test_fraction
    """Share of rows split off as test if a tabular folder has no test file."""

    def __post_init__(self) -> None:
        for name, valid, expected in (
            ("validation_fraction", 0 <= self.validation_fraction < 1, "0 <= share < 1"),
            ("acceptance_fraction", 0 <= self.acceptance_fraction <= 0.5, "0 <= share <= 0.5"),
            ("test_fraction", 0 < self.test_fraction < 1, "0 < share < 1"),
            ("max_line_bytes", self.max_line_bytes >= 1, "at least 1"),
        ):
            if not valid:
                raise ConfigError(f"{name} {getattr(self, name)}", expected=expected, do="fix the value")
        if not self.fields or not set(self.fields) <= set(FIELDS) or len(set(self.fields)) < len(self.fields):
            raise ConfigError(f"fields {self.fields}", expected=" and ".join(FIELDS), do="name one or both, once each")
        if not self.label_separator:
            raise ConfigError("an empty label_separator", expected="at least one character", do="fix the value")
        one_of(self, filters=FILTERS, split=BY)
        if self.layout != "auto":
            LAYOUTS[self.layout]
        PROPENSITY[self.propensity]
        Allowed.parse(self.allow)

    def read_options(self) -> ReadOptions:
        """Return the settings of the readers."""
        return ReadOptions(
            max_line_bytes=self.max_line_bytes,
            label_separator=self.label_separator,
            test_fraction=self.test_fraction,
            test_by="uid" if self.split == "family" else self.split,
        )


def ingest(folder: Path, build: Build, config: IngestConfig, *, part: bool = False) -> None:
    """Read ``folder`` into the files of a corpus under ``build.path`` and describe it in ``build.facts``.

    A ``part`` of a dataset, as an update is, need not have train and test documents, groups, or each label, and nothing
    is split off its train file.
    Raises DataError for the first problem, with file and line; MissingError if the folder or a file is missing.
    """
    options = config.read_options()
    if part:
        options = replace(options, test_fraction=0.0, part=True)  # rows of its train file stay train rows
    layout, source = open_source(folder, config.layout, options)
    files = tuple(source.splits)
    given, accepted = VALIDATION in files, config.acceptance_fraction
    cut = Cut(build.path, config.split, config.validation_fraction, given=given, accepted=accepted)
    with _CorpusWriter(build.path, config, cut, splits_off=bool(source.splits_off)) as writer:
        for block in source.labels():
            writer.add_labels(block)
        for split in files:
            for block in source.documents(split):
                writer.add_documents(block, split)
    writer.finish_cut()
    writer.check_uids()
    if not part:
        writer.check_whole()
        writer.hold_out()
    filters = _filter_files(source) if config.filters == "given" else {}
    pairs = generated_pairs(build.path) if config.filters == "generate" else _filter_pairs(filters, files, writer)
    _write_pairs(build.path / "filters.parquet", pairs)
    constants = PROPENSITY[config.propensity]
    content = {
        **writer.counts(),
        "propensity": {"A": constants[0], "B": constants[1]},
        "fields": list(config.fields),
    }
    build.json(schemas.CONTENT, content)
    build.facts |= {
        "layout": layout.name,
        "source": source_facts(source, folder),
        **content,
        "filters": {
            "source": config.filters,
            "pairs": len(pairs),
            "files": [path.name for path in filters.values()],
        },
        "split": {"by": config.split, **writer.cut.facts(), **writer.split_off()},
        "allow": list(config.allow),
        "accepted": writer.all_accepted(),
        "validation_fraction": config.validation_fraction,
    }


class _CorpusWriter:
    """Streams blocks into Parquet; keeps counts per label and a few numbers per block, never the rows.

    ``splits_off`` says that the test documents are split off the train file.
    """

    def __init__(self, folder: Path, config: IngestConfig, cut: Cut, *, splits_off: bool) -> None:
        self.folder, self.config, self.cut, self.splits_off = folder, config, cut, splits_off
        self.allowed = Allowed.parse(config.allow)
        self.documents = 0
        self.sizes, self.pairs, self.lines = (dict.fromkeys((TRAIN, VALIDATION, TEST), 0) for _ in range(3))
        """Documents and pairs of each split, and documents of each file."""
        self.accepted: Counter[str] = Counter()
        self._label_table = LabelsWriter(self.folder, self.allowed)
        self._frequency: I64 = np.zeros(0, np.int64)
        self._test_frequency: I64 = np.zeros(0, np.int64)
        self._label_uids, self._doc_uids = Distinct(self.folder / "label-uids"), Distinct(self.folder / "document-uids")
        self._doc_places: list[BlockPlace] = []
        options: dict[str, Any] = {"compression": "zstd"}
        self._doc_file = pq.ParquetWriter(self.folder / "documents.parquet", schemas.DOCUMENTS, **options)
        self._pair_file = pq.ParquetWriter(self.folder / "pairs.parquet", schemas.PAIRS, **options)
        self._meter = Meter("reading documents", 0, "documents")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._doc_file, self._pair_file):
            file.close()
        for writer in (self._label_table, self._meter):
            writer.__exit__(kind, error, trace)

    @property
    def labels(self) -> int:
        """Labels so far."""
        return self._label_table.size

    def add_labels(self, block: Block) -> None:
        """Write a block of labels."""
        self._label_table.add(block)
        self._label_uids.add(digests(block.uids))

    def add_documents(self, block: Block, split: str) -> None:
        """Write a block of documents of the file ``split`` (train, validation or test) and their pairs."""
        block = checked_block(block, self.allowed, self.accepted, num_labels=self.labels)
        digest_N = digests(block.uids)
        names = self.cut.splits(block, split, digest_N)
        self._doc_uids.add(digest_N)
        self._doc_places.append(BlockPlace.of(block, self.documents))
        columns = [arrow(column) for column in (block.uids, block.titles, block.contents)]
        columns.append(pl.Series(names.tolist(), dtype=pl.String).to_arrow().cast(pa.string()))
        self._doc_file.write_batch(pa.record_batch(columns, schema=schemas.DOCUMENTS))
        doc_ids = self.documents + np.repeat(np.arange(len(block)), block.label_counts)
        label_ids = block.label_ids.astype(np.int32)
        order = np.argsort(doc_ids * np.int64(self.labels) + label_ids, kind="stable")  # fast if most are in order
        self._pair_file.write_batch(_pairs(doc_ids[order], label_ids[order]))
        if split == TEST:
            self._test_frequency = _padded(self._test_frequency, self.labels)
            np.add.at(self._test_frequency, label_ids, 1)
        else:
            self._frequency = _padded(self._frequency, self.labels)
            np.add.at(self._frequency, label_ids, 1)
        for name in self.sizes:
            inside = names == name
            self.sizes[name] += int(inside.sum())
            self.pairs[name] += int(block.label_counts[inside].sum())
        self.lines[split] += len(block)
        self.documents += len(block)
        self._meter.update(len(block))

    def finish_cut(self) -> None:
        """Move documents to the split of their family, and count again."""
        split_N = self.cut.finish()
        if split_N is not None:
            self._recount(*write_splits(self.folder, split_N))

    def hold_out(self) -> None:
        """Move documents to the acceptance set, and count again."""
        if self.config.acceptance_fraction:
            self._recount(*hold_out(self.folder, self.config.acceptance_fraction))

    def _recount(self, sizes: dict[str, int], pairs: dict[str, int]) -> None:
        self.sizes |= sizes
        self.pairs |= pairs

    def check_uids(self) -> None:
        """Raise DataError for a repeated uid, which no single block shows."""
        self._check_uids("label", self._label_uids, self._label_table.places)
        self._check_uids("document", self._doc_uids, self._doc_places)

    def check_whole(self) -> None:
        """Check what only a whole dataset has: documents of both kinds, groups, and a train document of each label."""
        self.cut.check_groups()
        check_sizes(self.labels, self.sizes)
        unseen = np.flatnonzero(self._unseen_L & ~self._split_off_L)
        if len(unseen) and not self.allowed.unseen_labels:
            uids = (
                pl.scan_parquet(self.folder / "labels.parquet", glob=False)
                .select("uid")
                .slice(int(unseen[0]), 1)
                .collect()
            )
            raise DataError(
                f"{len(unseen):,} of {counted(self.labels, 'label')} without a train document, "
                f"the first is {preview(uids.item())}",
                expected="a train document for every label",
                do="pass --allow unseen-labels: they can then be found only by their text; or delete these labels "
                "(if documents name labels by their line number, renumber the others)",
                where=place_of(self._label_table.places, int(unseen[0])),
            )

    @property
    def _unseen_L(self) -> Bool:
        """True for labels without a train or validation document."""
        return np.asarray(_padded(self._frequency, self.labels) == 0)

    @property
    def _split_off_L(self) -> Bool:
        """True for labels that are unseen only because our own split put all of their documents into test."""
        return self._unseen_L & (_padded(self._test_frequency, self.labels) > 0) & self.splits_off

    def _check_uids(self, side: str, uids: Distinct, places: list[BlockPlace]) -> None:
        repeat = uids.first_repeat()
        if repeat is None:
            return
        earlier, later = (place_of(places, row) for row in repeat)
        column = pl.scan_parquet(self.folder / f"{side}s.parquet", glob=False).select("uid")
        uid = column.slice(repeat[1], 1).collect().item()
        leak = "; a document in both train and test would leak its labels" if side == "document" else ""
        raise DataError(
            f"the uid {preview(uid)} again, which is also the uid of {earlier}",
            expected=f"every {side} uid once" + (" in train and test together" if leak else ""),
            do=f"rename or drop one of the two{leak}",
            where=later,
        )

    def split_off(self) -> dict[str, int | bool]:
        """Return nothing if there is a test file; else which rows are the test set, and how many labels only it has."""
        if not self.splits_off:
            return {}
        count, which = int(self._split_off_L.sum()), "last" if self.cut.by == "time" else "some"
        return ({"labels_in_test_only": count} if count else {}) | {f"{which}_are_tests": True}

    def all_accepted(self) -> dict[str, dict[str, int]]:
        """Return how many documents, and how many labels, each kind of ``allow`` accepted; none of shared texts."""
        unseen = int((self._unseen_L & ~self._split_off_L).sum())
        return {"documents": dict(+self.accepted), "labels": self._label_table.all_accepted(unseen)}

    def counts(self) -> dict[str, Any]:
        """Return the counts of rows, labels and pairs."""
        return {
            "documents": self.documents,
            "labels": self.labels,
            "rows": dict(self.sizes),
            "pairs": dict(self.pairs),
            "unseen_labels": int(self._unseen_L.sum()),
        }


def _padded(counts: I64, size: int) -> I64:
    return counts if len(counts) == size else np.concatenate([counts, np.zeros(size - len(counts), np.int64)])


def _filter_files(source: Source) -> dict[str, Path]:
    """Return the filter files of a source by the file of documents that they are for."""
    return {split: path for split in source.splits if (path := source.filters(split)) is not None}


def _filter_pairs(filters: dict[str, Path], files: tuple[str, ...], writer: _CorpusWriter) -> I64:
    """Return the (document row, label) pairs of filter files; document rows count on from one file to the next."""
    first_row = {name: sum(writer.lines[earlier] for earlier in files[:index]) for index, name in enumerate(files)}
    parts = [
        given_pairs(
            path,
            first_row=first_row[split],
            rows=writer.lines[split],
            labels=writer.labels,
            options=writer.config.read_options(),
        )
        for split, path in filters.items()
    ]
    return np.concatenate([np.zeros((0, 2), np.int64), *parts])


def _write_pairs(path: Path, pairs: I64) -> None:
    table = pa.Table.from_batches([_pairs(pairs[:, 0], pairs[:, 1].astype(np.int32))])
    pq.write_table(table, path, compression="zstd")


def _pairs(doc_M: I64, label_M: I32) -> pa.RecordBatch:
    columns = [pl.Series(values).to_arrow() for values in (doc_M, label_M)]  # pa.array would import pandas
    return pa.record_batch(columns, schema=schemas.PAIRS)
