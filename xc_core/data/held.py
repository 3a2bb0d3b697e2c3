"""Holds out train documents for the acceptance set, by a hash of the uid or of the family's name.

No stage learns from them: they are neither train nor validation documents.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from xc_core.data.cut import FAMILIES, write_splits
from xc_core.data.splits import ACCEPTANCE, TEST, TRAIN, VALIDATION, digests, is_acceptance
from xc_core.shapes import Array, Bool


def hold_out(folder: Path, fraction: float) -> tuple[dict[str, int], dict[str, int]]:
    """Move about ``fraction`` of the train documents of the corpus at ``folder`` into the split "acceptance".

    The hash decides, so a document that comes again in a later ingest is held out again. A family moves as a whole, or
    stays if a label would otherwise have no train or validation document. Returns the number of documents and of pairs
    of train, validation and acceptance.
    """
    documents = pl.read_parquet(folder / "documents.parquet", columns=["uid", "split"], glob=False)
    pairs = pl.read_parquet(folder / "pairs.parquet", glob=False)
    split_N, names = documents["split"].to_numpy().astype(object), _family_names(folder, documents["uid"])
    held_N = is_acceptance(digests(names.to_list()), fraction) & ~_of_same_families(names, split_N != TRAIN)
    held_N &= ~_of_same_families(names, _needed(split_N, held_N, pairs))
    split_N[held_N] = ACCEPTANCE
    return write_splits(folder, split_N, (TRAIN, VALIDATION, ACCEPTANCE))


def _family_names(folder: Path, uids: pl.Series) -> pl.Series:
    """Return the name of each document's family, the uid for a document without siblings."""
    if not (folder / FAMILIES).is_file():
        return uids
    table, names = pl.read_parquet(folder / FAMILIES, glob=False), uids.to_numpy().astype(object)
    names[table["doc"].to_numpy()] = table["family"].to_numpy()
    return pl.Series(names, dtype=pl.String)


def _of_same_families(names: pl.Series, chosen_N: Bool) -> Bool:
    """Mark every document of a family that has a chosen one."""
    return names.is_in(names.filter(pl.Series(chosen_N)).unique().to_list()).to_numpy()


def _needed(split_N: Array, held_N: Bool, pairs: pl.DataFrame) -> Bool:
    """Mark held documents with a label that no other train or validation document has (N)."""
    docs, labels = pairs["doc"].to_numpy(), pairs["label"].to_numpy()
    kept_N = (split_N != TEST) & ~held_N
    remaining_L = np.bincount(labels[kept_N[docs]], minlength=int(labels.max(initial=0)) + 1)
    needed_N = np.zeros(len(split_N), bool)
    needed_N[docs[held_N[docs] & (remaining_L[labels] == 0)]] = True
    return needed_N
