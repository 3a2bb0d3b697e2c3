"""The acceptance set of a dataset: documents on which the gate compares models. It is drawn once and then kept.

Files: ``documents.parquet`` (uid, text, labels, filtered: lists of label uids), ``labels.parquet`` (uid, frequency in
the published train file, weight: inverse propensity), ``acceptance.json`` (dataset, version, source, corpus).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import polars as pl

from xc_core import artifacts
from xc_core.data.checks import Allowed
from xc_core.data.corpus import Corpus
from xc_core.data.document_file import read_documents
from xc_core.data.formats import ReadOptions
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import ACCEPTANCE, TEST
from xc_core.shapes import F64, I64

LIMIT: Final = 2_000
"""Most documents of a set that is drawn from a corpus."""
HELD: Final = "held out"
TESTED: Final = "test documents"
GIVEN: Final = "given"
"""Where a set comes from: documents that ingest held out, test documents (which the leaderboard reads too), a file."""
_KIND: Final = "acceptance"
_CONTENT: Final = "acceptance.json"
_DOCUMENTS: Final = {
    "uid": pl.String(), "text": pl.String(), "labels": pl.List(pl.String()), "filtered": pl.List(pl.String())
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AcceptanceFacts:
    """What an acceptance set is."""

    dataset: str
    version: int
    """1 for the first set of a dataset; one more each time it is replaced."""
    source: str
    """``HELD``, ``TESTED`` or ``GIVEN``."""
    corpus: str
    """Digest of the corpus that label frequencies come from."""


@dataclass(frozen=True)
class AcceptanceSet:
    """An opened acceptance set of N documents and L labels."""

    kind: ClassVar[str] = _KIND
    folder: Path
    facts: AcceptanceFacts
    digest: str

    @classmethod
    def open(cls, folder: Path) -> AcceptanceSet:
        """Open and verify the set at ``folder``; raise MissingError, CorruptError."""
        digest = artifacts.verify(folder, kind=cls.kind).digest()
        return cls(folder, AcceptanceFacts(**json.loads((folder / _CONTENT).read_text("utf-8"))), digest)

    @cached_property
    def documents(self) -> pl.DataFrame:
        """Uid, text, labels and filtered labels of each document."""
        return pl.read_parquet(self.folder / "documents.parquet", glob=False)

    @cached_property
    def labels(self) -> pl.DataFrame:
        """Uid, frequency and weight of each label."""
        return pl.read_parquet(self.folder / "labels.parquet", glob=False)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def texts(self) -> list[str]:
        """The text of each document."""
        return self.documents["text"].to_list()

    @property
    def frequency_L(self) -> I64:
        """Published train documents of each label, when the set was drawn."""
        return self.labels["frequency"].to_numpy().astype(np.int64)

    @property
    def weights_L(self) -> F64:
        """Inverse propensity of each label, when the set was drawn."""
        return self.labels["weight"].to_numpy().astype(np.float64)

    @property
    def truth(self) -> LabelMatrix:
        """The labels of the documents (N x L)."""
        return self._matrix("labels")

    @property
    def filters(self) -> LabelMatrix:
        """The pairs that are removed from predictions (N x L)."""
        return self._matrix("filtered")

    def ids(self) -> dict[str, int]:
        """Return the number of each label by its uid."""
        return {uid: number for number, uid in enumerate(self.labels["uid"])}

    def _matrix(self, column: str) -> LabelMatrix:
        ids = self.ids()
        rows = [[ids[uid] for uid in row] for row in self.documents[column].to_list()]
        docs = np.repeat(np.arange(len(rows)), [len(row) for row in rows]).astype(np.int64)
        flat = np.array([label for row in rows for label in row], np.int32)
        return LabelMatrix.from_pairs(docs, flat, (len(rows), len(ids)))

    def today(self, corpus: Corpus, folder: Path) -> AcceptanceSet:
        """Write what a model of ``corpus`` can be judged on to ``folder``, and open it.

        Documents that the corpus trains on are left out (same text in any Unicode form or, unless the set was given,
        same uid), and labels that it no longer has.
        """
        rows, composed = corpus.published_rows(), [_composed(text) for text in self.texts]
        learnt_texts = set(composed).intersection(map(_composed, corpus.each_text("documents", rows)))
        learnt = pl.Series([text in learnt_texts for text in composed], dtype=pl.Boolean)
        if self.facts.source != GIVEN:
            learnt |= self.documents["uid"].is_in(corpus.uids(rows))
        label_uids = corpus.table("labels")["uid"].to_list()
        return self._write(folder, self.facts, self.documents.filter(~learnt), label_uids)

    def without(self, documents: list[str], labels: list[str], texts: Iterable[str] = ()) -> AcceptanceSet:
        """Delete documents and labels by uid, as a new version in the same folder; open and return it.

        Documents with one of ``texts`` go too: those of a given file have other uids than in the corpus. White space
        and Unicode form do not count. The set stays as it is if it has none of these.
        """
        remaining, label_uids = self._remaining(documents, labels, texts)
        if (len(remaining), len(label_uids)) == (len(self), len(self.labels)):
            return self  # a new version would forget which champions were the best on this one
        return self._write(self.folder, replace(self.facts, version=self.facts.version + 1), remaining, label_uids)

    def leaving(self, documents: list[str], labels: list[str], texts: Iterable[str] = ()) -> int:
        """Return how many documents ``without`` would delete."""
        return len(self) - len(_labelled(*self._remaining(documents, labels, texts)))

    def _remaining(
        self, documents: list[str], labels: list[str], texts: Iterable[str]
    ) -> tuple[pl.DataFrame, list[str]]:
        """Return the documents and the uids of the labels that are neither named nor have one of ``texts``."""
        label_uids = self.labels.filter(~pl.col("uid").is_in(labels))["uid"].to_list()
        deleted_texts = set(map(_plain, texts))
        has_deleted_text = pl.Series([_plain(text) in deleted_texts for text in self.texts], dtype=pl.Boolean)
        return self.documents.filter(~(pl.col("uid").is_in(documents) | has_deleted_text)), label_uids

    def _write(
        self, folder: Path, facts: AcceptanceFacts, documents: pl.DataFrame, label_uids: list[str]
    ) -> AcceptanceSet:
        """Write ``documents`` with the labels ``label_uids`` only, without documents that have none; open the set."""
        documents = _labelled(documents, label_uids)
        write_set(folder, facts, documents, self.labels.filter(pl.col("uid").is_in(label_uids)))
        return AcceptanceSet.open(folder)


def _labelled(documents: pl.DataFrame, label_uids: list[str]) -> pl.DataFrame:
    """Return the documents with the labels ``label_uids`` only, without documents that have none."""
    known_labels = pl.col("labels", "filtered").list.eval(pl.element().filter(pl.element().is_in(label_uids)))
    return documents.with_columns(known_labels).filter(pl.col("labels").list.len() > 0)


def draw(corpus: Corpus, dataset: str, folder: Path) -> AcceptanceSet:
    """Draw the set of a dataset into ``folder``: documents that were held out, or test documents if there are none.

    Documents without labels are not drawn: nothing can be judged on them.
    """
    held_out, tested = (rows[corpus.labels.counts_N[rows] > 0] for rows in map(corpus.rows, (ACCEPTANCE, TEST)))
    source = HELD if len(held_out) else TESTED
    rows = corpus.drawn(held_out if source == HELD else tested, LIMIT)
    uids = np.array(corpus.table("labels")["uid"].to_list(), dtype=object)
    columns = [[uids[matrix.row(row)].tolist() for row in rows.tolist()] for matrix in (corpus.labels, corpus.filters)]
    content = [corpus.uids(rows), corpus.texts_of("documents", rows), *columns]
    documents = pl.DataFrame(dict(zip(_DOCUMENTS, content, strict=True)), schema=_DOCUMENTS)
    facts = AcceptanceFacts(dataset=dataset, version=_next(folder), source=source, corpus=corpus.digest)
    write_set(folder, facts, documents, _labels(corpus))
    return AcceptanceSet.open(folder)


def take(
    file: Path,
    corpus: Corpus,
    dataset: str,
    folder: Path,
    *,
    options: ReadOptions | None = None,
    allowed: Allowed | None = None,
) -> AcceptanceSet:
    """Make the set of a dataset from a file with text and labels (a list of label uids), see ``document_file``.

    Raises MissingError, UsageError, and DataError for the first wrong row; then the set that is there stays.
    """
    labels = _labels(corpus)
    ids = {uid: number for number, uid in enumerate(labels["uid"])}
    documents = read_documents(file, options or ReadOptions(), allowed or Allowed(), ids, corpus.fields)
    documents = documents.with_columns(filtered=pl.lit([], pl.List(pl.String))).select(*_DOCUMENTS)
    facts = AcceptanceFacts(dataset=dataset, version=_next(folder), source=GIVEN, corpus=corpus.digest)
    write_set(folder, facts, documents, labels)
    return AcceptanceSet.open(folder)


def write_set(folder: Path, facts: AcceptanceFacts, documents: pl.DataFrame, labels: pl.DataFrame) -> None:
    """Write a set; what was in ``folder`` is replaced."""
    with artifacts.building(folder, kind=_KIND) as build:
        documents.write_parquet(build.path / "documents.parquet")
        labels.write_parquet(build.path / "labels.parquet")
        build.json(_CONTENT, asdict(facts))
        build.facts |= {**asdict(facts), "documents": len(documents)}


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _plain(text: str) -> str:
    return " ".join(_composed(text).split())


def _labels(corpus: Corpus) -> pl.DataFrame:
    frequency_L = corpus.published_train().frequency_L()
    return pl.DataFrame({"uid": corpus.table("labels")["uid"], "frequency": frequency_L, "weight": corpus.weights()})


def _next(folder: Path) -> int:
    """Return the version of a new set in ``folder``."""
    return int(artifacts.read_made(folder).facts.get("version", 0)) + 1
