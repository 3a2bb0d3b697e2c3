"""The guard of times: new files must not give most known documents nearly the same time, which orders nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from xc_core.artifacts import read_made
from xc_core.chain.workspace import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.formats import open_source
from xc_core.data.formats.times import moment
from xc_core.data.ingest import IngestConfig
from xc_core.data.merge import times_of
from xc_core.data.splits import TEST
from xc_core.errors import CorruptError, DataError, MissingError, RefusedError, bare

_FEWEST: Final = 10
"""Known documents of a split with another time, at least: fewer may be corrections."""
_NARROWER: Final = 10
"""The middle half of the new times spans less than this part of what the middle half of the old ones did."""
_MIDDLE: Final = (0.25, 0.75)


def check_times(before: pl.DataFrame, after: pl.DataFrame, dataset: str) -> None:
    """Raise RefusedError if most known documents of a split have other times, which are much closer to one another.

    An export that writes its own date, or the present time, into each row does that. Both tables have the columns uid
    and time, empty if there is none; ``before`` has the split too.
    """
    new = after.select("uid", new="time").filter(pl.col("new") != "")
    known = before.filter(pl.col("time") != "").join(new, on="uid", maintain_order="left")
    for (split,), documents in known.group_by("split", maintain_order=True):
        edited = documents.filter(pl.col("time") != pl.col("new")).select("time", "new").rows()
        pairs = [((moment(old), old), (moment(new), new)) for old, new in edited]
        changed = [(old, new) for old, new in pairs if old[0] != new[0]]
        if len(changed) < max(_FEWEST, len(documents) / 2):
            continue
        old_middle, new_middle = (_Middle.of(times) for times in zip(*changed, strict=True))
        if old_middle and new_middle and new_middle.is_narrow_beside(old_middle):
            raise RefusedError(
                f"another time of {len(changed):,} of the {len(documents):,} known {split} documents of {dataset}: "
                f"half of them now {new_middle.bounds}, before {old_middle.bounds}",
                expected="times that say when each document was made, because the split is by time; the dataset is "
                "unchanged",
                do="see whether the export writes its own date into each row; if the new times are right, run the "
                "command by hand with --new-times",
            )


def check_new_times(workspace: Workspace, staging: Workspace, dataset: str, config: IngestConfig) -> None:
    """Call ``check_times`` with the corpora of a dataset that files in the workspace ``staging`` are to replace.

    Nothing is compared if no time decides or decided, or if the present files cannot be read.
    """
    if dataset not in workspace.params.datasets():
        return
    old, split = workspace.params.dataset(dataset).corpus, _split_facts(staging, dataset)
    tests_decided = bool(split.get("last_are_tests"))
    held_out = config.validation_fraction > 0 and not split["given"]
    if old.split != "time" or config.split != "time" or not (tests_decided or held_out):
        return
    with suppress(MissingError, CorruptError, DataError):
        before = _times(workspace, dataset, old)
        learnt = before if tests_decided else before.filter(pl.col("split") != TEST)
        check_times(learnt, _times(staging, dataset, config), dataset)


def _split_facts(workspace: Workspace, dataset: str) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = read_made(workspace.folder("corpus", dataset)).facts["split"]
    return facts


def _times(workspace: Workspace, dataset: str, config: IngestConfig) -> pl.DataFrame:
    corpus = workspace.open(Corpus, dataset)
    _, source = open_source(workspace.present_raw(dataset), config.layout, config.read_options())
    return times_of(corpus, source)


@dataclass(frozen=True)
class _Middle:
    """The middle half of times."""

    span: float
    """Seconds between its ends, or what numbers differ by."""
    largest: float
    """The larger end, without its sign."""
    is_number: bool
    bounds: str
    """Its ends in words."""

    @classmethod
    def of(cls, times: Iterable[tuple[tuple[float, bool] | None, str]]) -> _Middle | None:
        """Return the middle half of times, each with its text; None if none can be read, as test documents may have."""
        ordered = sorted((found[0], text, found[1]) for found, text in times if found)
        if not ordered:
            return None
        first, last = (ordered[int(share * (len(ordered) - 1))] for share in _MIDDLE)
        bounds = bare(first[1]) if first[0] == last[0] else f"from {bare(first[1])} to {bare(last[1])}"
        return cls(last[0] - first[0], max(abs(first[0]), abs(last[0])), first[2], bounds)

    def is_narrow_beside(self, old: _Middle) -> bool:
        """Return True if it spans much less than ``old``, and not only because the unit is another one.

        Numbers in place of dates, or the reverse, have to be equal: nobody knows their unit. Of numbers the part of
        their size that they span has to be smaller too: it is the same in milliseconds and in seconds.
        """
        if self.is_number != old.is_number:
            return self.span == 0 < old.span
        is_narrow = self.span * _NARROWER < old.span
        if self.is_number:
            return is_narrow and self.span * old.largest * _NARROWER < old.span * self.largest
        return is_narrow
