"""A dataset as tables by uid: merge an update into it, remove rows from it, write it as xc-json.

All tables are in memory. Documents keep their split; a new train document goes where its family or group is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from xc_core import artifacts
from xc_core.data.corpus import Corpus
from xc_core.data.cut import FAMILIES, GROUP, group_family
from xc_core.data.families import NearDuplicates
from xc_core.data.formats import Source, text_uid
from xc_core.data.formats.xc_json import STEM
from xc_core.data.splits import ACCEPTANCE, TEST, TRAIN, VALIDATION, digests, is_validation
from xc_core.errors import DataError, preview

_OPTIONAL: Final = {"group": "group", "family": "near_duplicate_of"}
"""Columns that are left out of a line if they are empty, and their fields."""

_JOINED: Final = pl.col("title") + " " + pl.col("content")
_TEXT: Final = _JOINED.str.normalize("NFC").str.replace_all(r"\s+", " ").str.strip_chars().alias("text")
"""The text of a document; white space and Unicode form do not count."""


@dataclass(frozen=True)
class Tables:
    """A dataset: documents (uid, title, content, split, group, family), labels (uid, title, content), pairs (two uids).

    ``family`` is the name of a document's family of near-duplicates, empty if it is its own uid.
    """

    documents: pl.DataFrame
    labels: pl.DataFrame
    pairs: pl.DataFrame
    filters: pl.DataFrame
    """Pairs that are removed from predictions; columns as ``pairs``."""

    @classmethod
    def of(cls, corpus: Corpus, source: Source | None = None) -> Tables:
        """Read the tables of a corpus, and from its ``source`` the groups that it lacks: those of test, or all."""
        texts = [pl.col(name).fill_null("") for name in ("title", "content")]
        labels = corpus.table("labels").with_columns(texts)
        documents = corpus.table("documents").with_columns(texts)
        documents = documents.with_columns(_families(corpus, documents["uid"], source))
        pairs = [_by_uid(corpus.folder / f"{name}.parquet", documents, labels) for name in ("pairs", "filters")]
        return cls(documents, labels, *pairs)

    def merged(self, update: Tables, cut: NewDocuments) -> Tables:
        """Return the tables with the rows of ``update`` in place of those of the same uid, new ones at the end.

        A document of the update has the labels of the update. It keeps its family of near-duplicates and, if the update
        names no group, its group. A label that the update only names (its text is its uid) keeps its text.
        """
        new = cut.placed(
            self.documents, update.documents.join(self.documents, on="uid", how="anti", maintain_order="left")
        )
        group = pl.col("group").replace("", None)  # update leaves what is null
        texts = update.documents.select("uid", "title", "content", group)
        named = (pl.col("title") == pl.col("uid")) & (pl.col("content") == "")
        labels = update.labels.join(self.labels, on="uid", how="anti", maintain_order="left")
        others = self.pairs.join(update.documents, left_on="doc", right_on="uid", how="anti", maintain_order="left")
        return Tables(
            pl.concat([self.documents.update(texts, on="uid"), new]),
            pl.concat([self.labels.update(update.labels.filter(~named), on="uid"), labels]),
            pl.concat([others, update.pairs]),
            pl.concat([self.filters, update.filters]).unique(maintain_order=True),
        )

    def same(self, other: Tables) -> bool:
        """Return True if the tables have the same rows; pairs and filters may be in another order."""

        def ordered(tables: Tables) -> list[pl.DataFrame]:
            pairs = (rows.sort("doc", "label") for rows in (tables.pairs, tables.filters))
            return [tables.documents, tables.labels, *pairs]

        return all(one.equals(two) for one, two in zip(ordered(self), ordered(other), strict=True))

    def divided(self) -> set[str]:
        """Return the groups that have documents in test and in another split."""
        groups = self.documents.filter(pl.col("group") != "").group_by("group")
        return set(groups.agg((pl.col("split") == TEST).n_unique()).filter(pl.col("split") > 1)["group"])

    def known_by_text(self, there: Tables) -> tuple[Tables, int]:
        """Return the tables with the uid and the text of the document of ``there`` that has the same text, and how many
        documents have one.

        This concerns documents that got their uid from their text (``text_uid``); white space and Unicode form do not
        count. Raises DataError if several documents have the text, or if a row with its uid changes that document too.
        """
        texts = self.documents.select("title", "content").iter_rows()
        derived = pl.Series([text_uid(*text) for text in texts], dtype=pl.String)
        own = self.documents.filter(pl.col("uid") == derived).select(_TEXT, new="uid")
        if len(twice := own.filter(pl.col("text").is_duplicated())):
            raise _unclear(
                "rows without a uid with the same text, but for white space and Unicode form: "
                f"{preview(twice['text'][0])}"
            )
        found = own.join(there.documents.select(_TEXT, old="uid"), on="text", maintain_order="left")
        for one, several in (("new", "old"), ("old", "new")):
            twice = found.filter(pl.col(one).is_duplicated())
            if len(twice):
                raise _unclear(
                    f"{'a row' if one == 'new' else 'rows'} without a uid with the text of "
                    f"{' and '.join(twice.filter(pl.col(one) == twice[one][0])[several].to_list()[:2])}"
                )
        if len(
            again := found.filter(pl.col("new") != pl.col("old")).join(
                self.documents, left_on="old", right_on="uid", how="semi"
            )
        ):
            raise _unclear(f"a row without a uid with the text of {again['old'][0]}, and another row with this uid")
        uids = dict(found.select("new", "old").iter_rows())
        renamed = pl.col("doc").replace(uids)
        kept = there.documents.select("uid", "title", "content").filter(pl.col("uid").is_in(list(uids.values())))
        tables = Tables(
            self.documents.with_columns(pl.col("uid").replace(uids)).update(kept, on="uid"),
            self.labels,
            self.pairs.with_columns(renamed),
            self.filters.with_columns(renamed),
        )
        return tables, len(found)

    def without(self, documents: list[str], labels: list[str]) -> Tables:
        """Return the tables without these uids and their pairs."""

        def kept(pairs: pl.DataFrame) -> pl.DataFrame:
            return pairs.filter(~pl.col("doc").is_in(documents), ~pl.col("label").is_in(labels))

        left = self.documents.filter(~pl.col("uid").is_in(documents))
        first = left.filter(pl.col("family").is_in(documents)).group_by("family", maintain_order=True).first()
        names = dict(first.select("family", "uid").iter_rows())  # a family must not keep the uid that is gone
        return replace(
            self,
            documents=left.with_columns(pl.col("family").replace(names)),
            labels=self.labels.filter(~pl.col("uid").is_in(labels)),
            pairs=kept(self.pairs),
            filters=kept(self.filters),
        )

    def texts(self, documents: list[str]) -> set[str]:
        """Return the texts of some documents: title, content, and both in either order; none is empty."""
        rows = self.documents.filter(pl.col("uid").is_in(documents)).select("title", "content").rows()
        return {text for row in rows for text in (*row, " ".join(row), " ".join(row[::-1])) if text.strip()}

    def copies(self, documents: list[str]) -> list[str]:
        """Return the uids of other documents with the text of one of ``documents``.

        White space and Unicode form do not count. A document without text has no copies.
        """
        found = self.documents.select("uid", _TEXT).filter(pl.col("text") != "")
        named = pl.col("uid").is_in(documents)
        return found.filter(~named).join(found.filter(named), on="text", how="semi")["uid"].to_list()

    def unlabelled(self) -> list[str]:
        """Return the uids of documents without labels."""
        return self.documents.join(self.pairs, left_on="uid", right_on="doc", how="anti")["uid"].to_list()

    def write(self, folder: Path, by: str) -> int:
        """Write xc-json with filter files, for a split ``by``; return the length of the longest line in bytes.

        For a split by family one family is named even if none has siblings, so that families are not searched again:
        corrected texts may be near-duplicates, and their documents keep their splits.
        """
        folder.mkdir(parents=True)
        ids = self.labels.select(label="uid", id=pl.int_range(pl.len()))
        targets = self.pairs.join(ids, on="label").group_by("doc").agg(pl.col("id").sort().alias("target_ind"))
        rows = self.documents.join(targets, left_on="uid", right_on="doc", how="left", maintain_order="left")
        rows = rows.with_columns(family=_named(rows, by))
        longest = _write(folder / "lbl.json", self.labels)
        in_train = pl.col("split").replace(ACCEPTANCE, TRAIN)  # the next ingest holds the same documents out again
        for split in (TRAIN, VALIDATION, TEST):
            own = rows.filter(in_train == split)
            if len(own) or split != VALIDATION:
                longest = max(longest, _write(folder / f"{STEM[split]}.json", own.drop("split")))
            self._write_filters(folder / f"filter_labels_{split}.txt", own, ids)
        return longest

    def _write_filters(self, path: Path, own: pl.DataFrame, ids: pl.DataFrame) -> None:
        places = own.select(doc="uid", row=pl.int_range(pl.len()))
        found = self.filters.join(places, on="doc").join(ids, on="label").sort("row", "id")
        if len(found):
            lines = found.select(pl.concat_str([pl.col("row"), pl.col("id")], separator=" "))
            path.write_text("".join(f"{line}\n" for line in lines.to_series()), "utf-8")


@dataclass(frozen=True)
class NewDocuments:
    """Decides the split of new documents of a train file, as an ingest does, but moves no document that is there."""

    by: str
    """What is held out as a whole: uid, group or family."""
    fraction: float
    """Share of new train documents, or families, for validation."""
    folder: Path
    """A folder that does not exist yet, for the search of near-duplicates."""

    def placed(self, old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
        """Return ``new`` with its splits and families: of a known family or group, otherwise by a hash of its name."""
        test = pl.col("split") == TEST
        own, others = new.filter(~test), new.filter(test)
        name, known, family = self._families(old.filter(~test), own)
        held_N = is_validation(digests(name), self.fraction)
        found = [known.get(one) or (VALIDATION if held else TRAIN) for one, held in zip(name, held_N, strict=True)]
        split = pl.when(pl.col("split") == TRAIN).then(pl.Series(found, dtype=pl.String)).otherwise(pl.col("split"))
        return pl.concat([own.with_columns(split=split, family=pl.Series(family, dtype=pl.String)), others])

    def _families(self, old: pl.DataFrame, new: pl.DataFrame) -> tuple[list[str], dict[str, str], list[str]]:
        """Return what decides about each new document, the split of those that are there, and its family's name."""
        none = [""] * len(new)
        if self.by == "group":
            names = [group_family(group) if group else uid for uid, group in new.select("uid", "group").iter_rows()]
            groups = old.filter(pl.col("group") != "").select(GROUP + pl.col("group"), "split").iter_rows()
            return names, dict(groups), none
        if self.by != "family" or not len(new):
            return new["uid"].to_list(), {}, none
        near = NearDuplicates(self.folder)
        rows = pl.concat([old, new])
        near.add(rows.select(pl.concat_str(["title", "content"], separator=" ")).to_series().to_list())
        first = rows[near.families()[len(old) :]]
        family = first.select(pl.col("family").replace("", None).fill_null(pl.col("uid"))).to_series()
        return first["uid"].to_list(), dict(old.select("uid", "split").iter_rows()), family.to_list()


def _families(corpus: Corpus, uids: pl.Series, source: Source | None) -> pl.DataFrame:
    """Return ``group`` and ``family`` of each document, empty if it has none."""
    names = np.full(len(uids), "", dtype=object)
    if (corpus.folder / FAMILIES).is_file():
        found = pl.read_parquet(corpus.folder / FAMILIES, glob=False)
        names[found["doc"].to_numpy()] = found["family"].to_list()
    name, none = pl.Series(names.tolist(), dtype=pl.String), pl.lit("")
    split = artifacts.read_made(corpus.folder).facts.get("split", {})
    by_group = split.get("by") == "group"
    groups = _groups(source, by_group) if source and (by_group or split.get("grouped")) else {}
    group = pl.Series([groups.get(uid, "") for uid in uids], dtype=pl.String)
    if by_group:
        return pl.select(group=pl.when(group == "").then(name.str.strip_prefix(GROUP)).otherwise(group), family=none)
    return pl.select(group=group, family=pl.when(name == uids).then(none).otherwise(name))


def _groups(source: Source, of_test: bool) -> dict[str, str]:
    """Return the group of each test document that has one, or of each train and validation document."""
    blocks = (block for split in source.splits if (split == TEST) == of_test for block in source.documents(split))
    pairs = (zip(block.uids, block.groups, strict=True) for block in blocks if block.groups)
    return {uid: group for block in pairs for uid, group in block if group}


def _named(documents: pl.DataFrame, by: str) -> pl.Series:
    """Return the names of families to write: none for one that is its own uid, unless no other would be named."""
    names = documents.select(pl.when(pl.col("family") != pl.col("uid")).then("family").otherwise(pl.lit("")))
    if by == "family" and (names.to_series() == "").all():
        learnt = pl.col("split") != TEST
        names = documents.select(pl.when(learnt & learnt.cum_sum().eq(1)).then("uid").otherwise(pl.lit("")))
    return names.to_series()


def _unclear(found: str) -> DataError:
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
