"""A dataset as tables by uid: merge an update into it, remove rows from it, write it as xc-json.

All tables are in memory. Documents keep their split; a new train document goes where its family or group is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from xc_core import artifacts
from xc_core.data.corpus import Corpus
from xc_core.data.cut import FAMILIES, GROUP
from xc_core.data.formats import Source, text_uid
from xc_core.data.formats.xc_json import STEM
from xc_core.data.new_documents import NewDocuments
from xc_core.data.splits import ACCEPTANCE, TEST, TRAIN, VALIDATION
from xc_core.errors import DataError, preview

_OPTIONAL: Final = {"group": "group", "time": "time", "family": "near_duplicate_of"}
"""Columns that are left out of a line if they are empty, and their fields."""

_JOINED: Final = pl.col("title") + " " + pl.col("content")
_TEXT: Final = _JOINED.str.normalize("NFC").str.replace_all(r"\s+", " ").str.strip_chars().alias("text")
"""The text of a document; white space and Unicode form do not count."""


@dataclass(frozen=True)
class Tables:
    """A dataset: documents (uid, title, content, split, group, family, time), labels (uid, title, content) and pairs.

    Pairs are two uids. ``family`` is the name of a document's family of near-duplicates, empty if it is its own uid.
    """

    documents: pl.DataFrame
    labels: pl.DataFrame
    pairs: pl.DataFrame
    filters: pl.DataFrame
    """Pairs that are removed from predictions; columns as ``pairs``."""

    @classmethod
    def of(cls, corpus: Corpus, source: Source | None = None, *, test_groups: bool = True) -> Tables:
        """Read the tables of a corpus, and from its ``source`` what it lacks: times, and groups.

        If the corpus is split by group, it has those of train and validation documents, so only those of test documents
        are read, unless ``test_groups`` is False.
        """
        texts = [pl.col(name).fill_null("") for name in ("title", "content")]
        labels = corpus.table("labels").with_columns(texts)
        documents = corpus.table("documents").with_columns(texts)
        uids = documents["uid"]
        documents = documents.with_columns(*_families(corpus, uids, source, test_groups), _times(corpus, uids, source))
        pairs = [_by_uid(corpus.folder / f"{name}.parquet", documents, labels) for name in ("pairs", "filters")]
        return cls(documents, labels, *pairs)

    def merged(self, update: Tables, cut: NewDocuments) -> Tables:
        """Return the tables with the rows of ``update`` in place of those of the same uid, new ones at the end.

        A document of the update has the labels of the update. It keeps its family of near-duplicates and, if the update
        names none, its group and its time. A label that the update only names (its text is its uid) keeps its text.
        """
        new_documents = cut.placed(
            self.documents, update.documents.join(self.documents, on="uid", how="anti", maintain_order="left")
        )
        given = pl.col("group", "time").replace("", None)  # update leaves what is null
        texts = update.documents.select("uid", "title", "content", given)
        named = (pl.col("title") == pl.col("uid")) & (pl.col("content") == "")
        labels = update.labels.join(self.labels, on="uid", how="anti", maintain_order="left")
        other_pairs = self.pairs.join(
            update.documents, left_on="doc", right_on="uid", how="anti", maintain_order="left"
        )
        return Tables(
            cut.by_time(pl.concat([self.documents.update(texts, on="uid"), new_documents]), new_documents["uid"]),
            pl.concat([self.labels.update(update.labels.filter(~named), on="uid"), labels]),
            pl.concat([other_pairs, update.pairs]),
            pl.concat([self.filters, update.filters]).unique(maintain_order=True),
        )

    def same(self, other: Tables) -> bool:
        """Return True if the tables have the same rows; pairs and filters may be in another order."""

        def ordered(tables: Tables) -> list[pl.DataFrame]:
            pairs = (rows.sort("doc", "label") for rows in (tables.pairs, tables.filters))
            return [tables.documents, tables.labels, *pairs]

        return all(a.equals(b) for a, b in zip(ordered(self), ordered(other), strict=True))

    def divided(self) -> set[str]:
        """Return the groups that have documents in test and in another split."""
        groups = self.documents.filter(pl.col("group") != "").group_by("group")
        return set(groups.agg((pl.col("split") == TEST).n_unique()).filter(pl.col("split") > 1)["group"])

    def known_by_text(self, existing: Tables) -> tuple[Tables, int]:
        """Give documents whose uid was derived from their text the uid and text of the equal ``existing`` document.

        Returns the tables, and how many documents have an equal one. White space and Unicode form do not count. Raises
        DataError if several documents have the text, or if a row with its uid changes that document too.
        """
        texts = self.documents.select("title", "content").iter_rows()
        text_uids = pl.Series([text_uid(*text) for text in texts], dtype=pl.String)
        with_derived_uid = self.documents.filter(pl.col("uid") == text_uids).select(_TEXT, new="uid")
        if len(repeated := with_derived_uid.filter(pl.col("text").is_duplicated())):
            raise _ambiguous(
                "rows without a uid with the same text, but for white space and Unicode form: "
                f"{preview(repeated['text'][0])}"
            )
        matches = with_derived_uid.join(existing.documents.select(_TEXT, old="uid"), on="text", maintain_order="left")
        for column, other in (("new", "old"), ("old", "new")):
            repeated = matches.filter(pl.col(column).is_duplicated())
            if len(repeated):
                raise _ambiguous(
                    f"{'a row' if column == 'new' else 'rows'} without a uid with the text of "
                    f"{' and '.join(repeated.filter(pl.col(column) == repeated[column][0])[other].to_list()[:2])}"
                )
        if len(
            clashes := matches.filter(pl.col("new") != pl.col("old")).join(
                self.documents, left_on="old", right_on="uid", how="semi"
            )
        ):
            raise _ambiguous(f"a row without a uid with the text of {clashes['old'][0]}, and another row with this uid")
        uids = dict(matches.select("new", "old").iter_rows())
        renamed = pl.col("doc").replace(uids)
        matched = pl.col("uid").is_in(list(uids.values()))
        existing_texts = existing.documents.select("uid", "title", "content").filter(matched)
        tables = Tables(
            self.documents.with_columns(pl.col("uid").replace(uids)).update(existing_texts, on="uid"),
            self.labels,
            self.pairs.with_columns(renamed),
            self.filters.with_columns(renamed),
        )
        return tables, len(matches)

    def numbered_as(self, existing: Tables) -> Tables:
        """Give labels that are known by their line the uids of the ``existing`` labels at these lines.

        They differ from the line numbers once a label was forgotten. A new label gets the next number that is no uid.
        """
        uids = existing.labels["uid"].to_list()
        used = set(uids)
        unused = (str(number) for number in count(len(uids)) if str(number) not in used)
        named = dict(zip(self.labels["uid"], [*uids, *islice(unused, len(self.labels))], strict=False))
        label = pl.col("label").replace(named)
        return Tables(
            self.documents,
            self.labels.with_columns(pl.col("uid").replace(named)),
            self.pairs.with_columns(label),
            self.filters.with_columns(label),
        )

    def without(self, documents: list[str], labels: list[str]) -> Tables:
        """Return the tables without these uids and their pairs."""

        def without_uids(pairs: pl.DataFrame) -> pl.DataFrame:
            return pairs.filter(~pl.col("doc").is_in(documents), ~pl.col("label").is_in(labels))

        remaining = self.documents.filter(~pl.col("uid").is_in(documents))
        first = remaining.filter(pl.col("family").is_in(documents)).group_by("family", maintain_order=True).first()
        names = dict(first.select("family", "uid").iter_rows())  # a family must not keep the uid that is gone
        return replace(
            self,
            documents=remaining.with_columns(pl.col("family").replace(names)),
            labels=self.labels.filter(~pl.col("uid").is_in(labels)),
            pairs=without_uids(self.pairs),
            filters=without_uids(self.filters),
        )

    def texts(self, documents: list[str]) -> set[str]:
        """Return the texts of some documents: title, content, and both in either order; none is empty."""
        rows = self.documents.filter(pl.col("uid").is_in(documents)).select("title", "content").rows()
        return {text for row in rows for text in (*row, " ".join(row), " ".join(row[::-1])) if text.strip()}

    def copies(self, documents: list[str]) -> list[str]:
        """Return the uids of other documents with the text of one of ``documents``.

        White space and Unicode form do not count. A document without text has no copies.
        """
        texts = self.documents.select("uid", _TEXT).filter(pl.col("text") != "")
        is_named = pl.col("uid").is_in(documents)
        return texts.filter(~is_named).join(texts.filter(is_named), on="text", how="semi")["uid"].to_list()

    def unlabelled(self) -> list[str]:
        """Return the uids of documents without labels."""
        return self.documents.join(self.pairs, left_on="uid", right_on="doc", how="anti")["uid"].to_list()

    def write(self, folder: Path, by: str) -> int:
        """Write xc-json with filter files, for a split ``by``; return the length of the longest line in bytes.

        For a split by family one family is named even if none has siblings, so that families are not searched again:
        corrected texts may be near-duplicates, and their documents keep their splits. For a split by time the file of
        validation documents is written even if it is empty: without it an ingest would hold out train documents.
        """
        folder.mkdir(parents=True)
        ids = self.labels.select(label="uid", id=pl.int_range(pl.len()))
        targets = self.pairs.join(ids, on="label").group_by("doc").agg(pl.col("id").sort().alias("target_ind"))
        rows = self.documents.join(targets, left_on="uid", right_on="doc", how="left", maintain_order="left")
        rows = rows.with_columns(family=_family_column(rows, by))
        longest = _write(folder / "lbl.json", self.labels)
        in_train = pl.col("split").replace(ACCEPTANCE, TRAIN)  # the next ingest holds the same documents out again
        for split in (TRAIN, VALIDATION, TEST):
            split_rows = rows.filter(in_train == split)
            if len(split_rows) or split != VALIDATION or by == "time":
                longest = max(longest, _write(folder / f"{STEM[split]}.json", split_rows.drop("split")))
            self._write_filters(folder / f"filter_labels_{split}.txt", split_rows, ids)
        return longest

    def _write_filters(self, path: Path, documents: pl.DataFrame, ids: pl.DataFrame) -> None:
        rows = documents.select(doc="uid", row=pl.int_range(pl.len()))
        pairs = self.filters.join(rows, on="doc").join(ids, on="label").sort("row", "id")
        if len(pairs):
            lines = pairs.select(pl.concat_str([pl.col("row"), pl.col("id")], separator=" "))
            path.write_text("".join(f"{line}\n" for line in lines.to_series()), "utf-8")


def _families(corpus: Corpus, uids: pl.Series, source: Source | None, test_groups: bool) -> pl.DataFrame:
    """Return ``group`` and ``family`` of each document, empty if it has none."""
    names = np.full(len(uids), "", dtype=object)
    if (corpus.folder / FAMILIES).is_file():
        families = pl.read_parquet(corpus.folder / FAMILIES, glob=False)
        names[families["doc"].to_numpy()] = families["family"].to_list()
    family, none = pl.Series(names.tolist(), dtype=pl.String), pl.lit("")
    split = artifacts.read_made(corpus.folder).facts.get("split", {})
    by_group = split.get("by") == "group"
    is_read = test_groups if by_group else split.get("grouped")
    groups = _groups(source, by_group) if source and is_read else {}
    group = pl.Series([groups.get(uid, "") for uid in uids], dtype=pl.String)
    if by_group:
        return pl.select(group=pl.when(group == "").then(family.str.strip_prefix(GROUP)).otherwise(group), family=none)
    return pl.select(group=group, family=pl.when(family == uids).then(none).otherwise(family))


def times_of(corpus: Corpus, source: Source | None) -> pl.DataFrame:
    """Return uid, split and time of the documents, as its ``source`` has them; an empty time if there is none."""
    documents = corpus.table("documents").select("uid", "split")
    return documents.with_columns(_times(corpus, documents["uid"], source))


def _times(corpus: Corpus, uids: pl.Series, source: Source | None) -> pl.Series:
    """Return the column ``time`` of the documents, empty if it has none."""
    times: dict[str, str] = {}
    # a corpus of 0.3.0 does not say whether its files have times
    if source and artifacts.read_made(corpus.folder).facts.get("split", {}).get("timed", True):
        for block in (block for split in source.splits for block in source.documents(split)):
            times |= zip(block.uids, block.times, strict=True) if block.times else ()
    return pl.Series("time", [times.get(uid, "") for uid in uids], dtype=pl.String)


def _groups(source: Source, of_test: bool) -> dict[str, str]:
    """Return the group of each test document that has one, or of each train and validation document."""
    blocks = (block for split in source.splits if (split == TEST) == of_test for block in source.documents(split))
    pairs = (zip(block.uids, block.groups, strict=True) for block in blocks if block.groups)
    return {uid: group for block in pairs for uid, group in block if group}


def _family_column(documents: pl.DataFrame, by: str) -> pl.Series:
    """Return the names of families to write: none for one that is its own uid, unless no other would be named."""
    names = documents.select(pl.when(pl.col("family") != pl.col("uid")).then("family").otherwise(pl.lit("")))
    if by == "family" and (names.to_series() == "").all():
        learnt = pl.col("split") != TEST
        names = documents.select(pl.when(learnt & learnt.cum_sum().eq(1)).then("uid").otherwise(pl.lit("")))
    return names.to_series()


def _ambiguous(found: str) -> DataError:
    return DataError(
        found,
        expected="texts that one document has, because rows without a uid are known by their text",
        do="add the column uid to the tables",
    )


def _by_uid(path: Path, documents: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame:
    pairs = pl.read_parquet(path, glob=False)
    doc, label = documents["uid"].gather(pairs["doc"]), labels["uid"].gather(pairs["label"])
    return pl.DataFrame({"doc": doc, "label": label})


def _write(path: Path, rows: pl.DataFrame) -> int:
    longest = 0
    with path.open("w", encoding="utf-8") as stream:
        for row in rows.iter_rows(named=True):
            if "target_ind" in row:
                row |= {"target_ind": row["target_ind"] or []}
            row = {_OPTIONAL.get(key, key): value for key, value in row.items() if value or key not in _OPTIONAL}
            line = json.dumps(row, ensure_ascii=False)
            longest = max(longest, len(line.encode()))
            stream.write(line + "\n")
    return longest
