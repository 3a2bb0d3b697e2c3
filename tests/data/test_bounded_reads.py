"""Reads of a few rows, and look-ups of many pairs, in a bounded address space."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bounded import bounded, scratch
from xc_core.data.corpus import DOCUMENTS, Corpus
from xc_core.data.labels import LabelMatrix


def three_million_documents() -> Callable[[], None]:
    """Write 3 M documents in groups of 16,384; the whole table takes over 600 MB."""
    folder = scratch()
    block = pa.table([pa.array([f"{i} " * 10 for i in range(16_384)])] * 4, schema=DOCUMENTS)
    with pq.ParquetWriter(folder / "documents.parquet", DOCUMENTS, compression="zstd") as writer:
        for _ in range(184):
            writer.write_table(block)
    facts = {"documents": 184 * 16_384, "labels": 1, "fields": ["title"]}
    (folder / "corpus.json").write_text(json.dumps(facts), "utf-8")
    corpus, rows = Corpus.unsealed(folder), np.arange(10) * 300_000

    def read() -> None:
        first = corpus.table("documents", rows)
        assert first["title"].to_list() == corpus.texts_of("documents", rows)
        assert first["uid"].to_list() == corpus.uids(rows) == [f"{row % 16_384} " * 10 for row in rows]

    return read


def test_ten_of_three_million_documents_are_read_without_the_others() -> None:
    bounded(three_million_documents, megabytes=200)


def shortlists_of_three_million() -> Callable[[], None]:
    """Five candidates of each of 3 M documents with one label each."""
    size = 3_000_000
    known = LabelMatrix(np.arange(size + 1), (np.arange(size) % 1_000_000).astype(np.int32), 1_000_000)
    ids = np.tile(np.arange(5, dtype=np.int32), (size, 1))

    def look_up() -> None:
        assert int(known.contains(np.arange(size)[:, None], ids).sum()) == 15

    return look_up


def test_the_positives_of_three_million_shortlists_are_found_in_blocks() -> None:
    """All at once, 15 M pairs would need 500 MB."""
    bounded(shortlists_of_three_million, megabytes=160)
