"""Which labels trained rows belong to: the uid and a hash of the text of every label, stored beside the rows."""

from __future__ import annotations

import hashlib
from typing import Final

import polars as pl

from xc_core.data.corpus import Corpus
from xc_core.errors import MovedError

_RENAMED: Final = 0.2
"""Share of labels whose text may have been edited since their rows were trained."""


def row_labels(corpus: Corpus) -> pl.DataFrame:
    """Return the uid of every label and a hash of its text (columns uid and text), in the order of the labels."""
    hashes = [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in corpus.label_texts()]
    return corpus.table("labels").select("uid").with_columns(text=pl.Series(hashes, dtype=pl.String))


def old_places(names: pl.DataFrame, then: pl.DataFrame, *, do: str) -> pl.Series:
    """Return the position that each of the labels ``names`` had among those of ``then``, null for a new label.

    Raises MovedError, with the advice ``do``, if many labels have another text than then: the uids have moved. In
    layouts without uids, line numbers replace them, and an inserted line gives all lines below it another one.
    """
    then = then.with_row_index("old")
    matched = names.join(then, on="uid", how="left", maintain_order="left", suffix="_then")
    old_labels = matched.filter(matched["old"].is_not_null())
    changed = int((old_labels["text"] != old_labels["text_then"]).sum())
    if changed > _RENAMED * len(old_labels):
        raise MovedError(
            f"{changed:,} of {len(old_labels):,} labels with another text than the one their row was trained for",
            expected=f"at most {_RENAMED:.0%}: uids, or line numbers in place of them, that name the same labels",
            do=do,
        )
    return matched["old"]
