"""Which documents a training learnt from: a digest of each uid, and whether it was a train or a validation document.

Rows that are kept when the data change are checked against this record, so that nothing is measured, or fitted, on
documents that they have seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.folds import Fold
from xc_core.data.splits import ACCEPTANCE, TEST, VALIDATION, digests
from xc_core.errors import MissingError, MovedError
from xc_core.shapes import I64, Array
from xc_core.visible import counted

_FILE: Final = "documents.npy"
_TRAIN: Final = 0
_RECORD: Final = np.dtype([("digest", "<u8"), ("part", "u1")])
_TOLERATED: Final = 0.01
"""Share of the acceptance documents, and of those a fold holds out, that may have been learnt from (a guess)."""
_DO: Final = "train again, without a refresh: xc train"


@dataclass(frozen=True)
class Learnt:
    """The M train and validation documents of a training."""

    record_M: Array
    """Digests of the uids, ascending, each with its part: 0 for train, 1 and 2 for the halves of validation."""

    @classmethod
    def of(cls, corpus: Corpus) -> Learnt:
        """Return the record of a training on this corpus."""
        rows, part_N = corpus.published_rows(), np.full(corpus.num_documents, _TRAIN, np.uint8)
        for half, half_rows in enumerate(corpus.validation_halves()):
            part_N[half_rows] = 1 + half
        record_M = np.empty(len(rows), _RECORD)
        record_M["digest"], record_M["part"] = digests(corpus.uids(rows))["high"], part_N[rows]
        return cls(record_M[np.argsort(record_M["digest"], kind="stable")])

    def with_train_of(self, older: Learnt) -> Learnt:
        """Return the record with the train documents of an older one: a kept encoder has learnt from them."""
        trained_M = older.record_M[older.record_M["part"] == _TRAIN]
        record_M = self.record_M.copy()
        record_M["part"][np.isin(record_M["digest"], trained_M["digest"])] = _TRAIN
        removed_M = trained_M[~np.isin(trained_M["digest"], record_M["digest"])]
        record_M = np.concatenate([record_M, removed_M])
        return Learnt(record_M[np.argsort(record_M["digest"], kind="stable")])

    @classmethod
    def open(cls, folder: Path) -> Learnt:
        """Open the record that ``save`` wrote; raise MissingError if there is none."""
        try:
            return cls(np.load(folder / _FILE, allow_pickle=False))
        except FileNotFoundError as error:
            raise MissingError(
                f"no record of what the rows in {folder.name} learnt from", expected="rows that xc trained", do=_DO
            ) from error

    def save(self, folder: Path) -> None:
        """Write the record into an existing folder."""
        np.save(folder / _FILE, self.record_M)

    def seen(self, fold: Fold, corpus: Corpus, rows: I64) -> I64:
        """Return those of ``rows`` of a corpus that the training of a fold learnt from."""
        left_out = [] if fold.half is None else [1 + fold.half]
        parts = np.setdiff1d([0, 1, 2], left_out) if fold.refit else [_TRAIN]
        learnt_M = self.record_M["digest"][np.isin(self.record_M["part"], parts)]
        return rows[np.isin(digests(corpus.uids(rows))["high"], learnt_M)]

    def check(self, corpus: Corpus, folds: list[Fold]) -> int:
        """Raise MovedError if the folds learnt from a test document of this corpus, or from held-out documents.

        A hundredth of the acceptance documents, and of the validation documents that each fold holds out, or one, is
        tolerated; returns how many of the latter there are.
        """
        tests = corpus.uids(self.seen(folds[-1], corpus, corpus.rows(TEST)))
        if tests:
            raise MovedError(
                f"{counted(len(tests), 'test document')} that the kept rows learnt from (the first: {tests[0]})",
                expected="test documents that were in neither train nor validation then; figures would be too good",
                do=f"{_DO}; or give new files in which these documents keep their place",
            )
        accepted = corpus.rows(ACCEPTANCE)
        seen_accepted = self.seen(folds[-1], corpus, accepted)
        if _too_many(seen_accepted, accepted):
            raise MovedError(
                f"{len(seen_accepted):,} acceptance documents of {len(accepted):,} that the kept rows learnt from "
                f"(the first: {corpus.uids(seen_accepted[:1])[0]})",
                expected=f"at most {_TOLERATED:.0%}, so that the gate compares models on new documents",
                do=_DO,
            )
        held_out = [fold.unseen(corpus) for fold in folds]
        seen_by_fold = [self.seen(fold, corpus, rows) for fold, rows in zip(folds, held_out, strict=True)]
        seen = np.concatenate(seen_by_fold)
        if any(map(_too_many, seen_by_fold, held_out)):
            raise MovedError(
                f"{len(seen):,} held-out documents of {len(corpus.rows(VALIDATION)):,} that the kept rows learnt from "
                f"(the first: {corpus.uids(seen[:1])[0]})",
                expected=f"at most {_TOLERATED:.0%} of those of a fold, so that the fusion is fitted on new documents",
                do=_DO,
            )
        return len(seen)


def _too_many(seen: I64, rows: I64) -> bool:
    return len(seen) > max(1.0, _TOLERATED * len(rows))
