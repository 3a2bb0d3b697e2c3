"""The splits of documents that an update adds to a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from xc_core.data.cut import GROUP, group_family
from xc_core.data.families import NearDuplicates
from xc_core.data.formats.times import is_last, moments
from xc_core.data.splits import TEST, TRAIN, VALIDATION, digests, is_validation
from xc_core.errors import DataError, preview
from xc_core.progress import report
from xc_core.visible import counted


@dataclass(frozen=True)
class NewDocuments:
    """Decides the split of new documents of a train file, as an ingest does.

    No document that is there moves, except by time: validation documents that are not among the last any more are train
    documents then.
    """

    by: str
    """What is held out as a whole: uid, group or family; or the last documents by time."""
    fraction: float
    """Share of new train documents, or families, for validation."""
    accepted: float
    """Share of the documents, by hash, that are for the acceptance set: by time none of them is validated."""
    folder: Path
    """A folder that does not exist yet, for the search of near-duplicates."""

    def placed(self, old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
        """Return ``new`` with its splits and families: of a known family or group, otherwise by a hash of its name."""
        test = pl.col("split") == TEST
        learnt_from, tests = new.filter(~test), new.filter(test)
        names, known_splits, family = self._families(old.filter(~test), learnt_from)
        held_N = is_validation(digests(names), 0.0 if self.by == "time" else self.fraction)
        splits = [
            known_splits.get(key) or (VALIDATION if held else TRAIN) for key, held in zip(names, held_N, strict=True)
        ]
        split = pl.when(pl.col("split") == TRAIN).then(pl.Series(splits, dtype=pl.String)).otherwise(pl.col("split"))
        return pl.concat([learnt_from.with_columns(split=split, family=pl.Series(family, dtype=pl.String)), tests])

    def by_time(self, documents: pl.DataFrame, new: pl.Series) -> pl.DataFrame:
        """Return ``documents`` with the last ones in validation if the split is by time.

        They are the last of those in validation and of the ``new`` ones: a train document stays where it is, because a
        model that is refreshed has learnt from it. If none of those in validation has a time, all stay. Raises
        DataError if one of them has no time, or a number where others have a date.
        """
        if self.by != "time" or not self.fraction:
            return documents
        split = pl.col("split")
        known = documents.filter(split == VALIDATION, ~pl.col("uid").is_in(new.to_list()))
        if len(known) and (known["time"] == "").all():
            report(
                f"update: no time of the {counted(len(known), 'validation document')}, so they stay, and no new one is "
                "held out; to hold out the last ones, give them times in an update"
            )
            return documents
        _check_times(known)
        is_new = pl.col("uid").is_in(new.to_list()) & (split == TRAIN)
        movable = documents.with_row_index().filter((split == VALIDATION) | is_new)
        count = round(self.fraction * documents.select((split != TEST).sum()).item())
        uids = movable["uid"].to_list()
        last_N = is_last(moments(uids, movable["time"].to_list()), digests(uids), count, self.accepted)
        names = documents["split"].to_numpy().astype(object)
        names[movable["index"].to_numpy()] = np.where(last_N, VALIDATION, TRAIN)
        return documents.with_columns(split=pl.Series(names.tolist(), dtype=pl.String))

    def _families(self, old: pl.DataFrame, new: pl.DataFrame) -> tuple[list[str], dict[str, str], list[str]]:
        """Return three things that place new documents.

        They are the name that decides the split of each, the split of each name that is in use, and their families.
        """
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


def _check_times(known: pl.DataFrame) -> None:
    """Raise DataError if validation documents of the dataset, not of the update, have no time."""
    timeless = known.filter(pl.col("time") == "")
    if len(timeless):
        raise DataError(
            f"no time of {counted(len(timeless), 'validation document')} of the dataset (the first: "
            f"{preview(timeless['uid'][0])})",
            expected="a time of each, because the split is by time",
            do="give them times in this update, or return to another split: "
            "xc ingest data/NAME/raw --dataset NAME --split uid",
        )
