"""The guard of times: new files must not give most known documents nearly the same time, which orders nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import polars as pl

from xc_core.chain.workspace import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.formats import open_source
from xc_core.data.formats.times import moment
from xc_core.data.ingest import IngestConfig
from xc_core.data.merge import times_of
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
        pairs = documents.select("time", "new").rows()
        changed = [pair for pair in pairs if pair[0] != pair[1] and moment(pair[0]) != moment(pair[1])]
        if len(changed) < max(_FEWEST, len(pairs) / 2):
            continue
        (old_range, old_shown), (new_range, new_shown) = (_middle(list(times)) for times in zip(*changed, strict=True))
        if new_range * _NARROWER < old_range:
            raise RefusedError(
                f"another time of {len(changed):,} of the {len(pairs):,} known {split} documents of {dataset}: half of "
                f"them now {new_shown}, before {old_shown}",
                expected="times that say when each document was made, because the split is by time; the dataset is "
                "unchanged",
                do="see whether the export writes its own date into each row; if the new times are right, pass "
                "--new-times to xc ingest or xc update",
            )


def check_new_times(workspace: Workspace, staging: Workspace, dataset: str, config: IngestConfig) -> None:
    """Call ``check_times`` with the corpora of a dataset that files in the workspace ``staging`` are to replace.

    Nothing is compared if the split was or becomes another one, or if the present files cannot be read.
    """
    if dataset not in workspace.params.datasets():
        return
    old = workspace.params.dataset(dataset).corpus
    if old.split != "time" or config.split != "time":
        return
    with suppress(MissingError, CorruptError, DataError):
        before = _times(workspace, dataset, old)
        check_times(before, _times(staging, dataset, config), dataset)


def _times(workspace: Workspace, dataset: str, config: IngestConfig) -> pl.DataFrame:
    corpus = workspace.open(Corpus, dataset)
    _, source = open_source(workspace.present_raw(dataset), config.layout, config.read_options())
    return times_of(corpus, source)


def _middle(times: list[str]) -> tuple[float, str]:
    """Return what the middle half of times spans, in seconds or as a number, and its bounds in words.

    Times that cannot be read, as test documents may have, are left out.
    """
    readable = [(found[0], text) for text in times if (found := moment(text))]
    ordered = sorted(readable) or [(0.0, "")]
    first, last = (ordered[int(share * (len(ordered) - 1))] for share in _MIDDLE)
    bounds = bare(first[1]) if first[0] == last[0] else f"from {bare(first[1])} to {bare(last[1])}"
    return last[0] - first[0], bounds
