"""Which documents a classifier is trained on, and which it leaves out for fitting the fusion (cross-fitting).

With ``refit`` the final training uses train and validation documents. Two trainings before it each leave out one half
of the validation documents, so that the fusion is fitted on documents that the scores have not seen. A document always
belongs to the same half, so rows that are kept when documents are added have never seen the half they leave out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.splits import ACCEPTANCE, TRAIN, VALIDATION
from xc_core.shapes import I64, Bool

FINAL: Final = "final"
_FEW: Final = 20
"""Documents of a rare published label up to which a lower count in a training reveals held-out documents."""
_ODD: Final = 0.01
"""Share of the labels that may have fewer documents than the dataset's rare labels: documents were forgotten, or labels
added (a guess)."""
_NEAR: Final = 2
"""Documents that a label has lost if it is rarer than all others, of too few labels for such a share (a guess)."""


@dataclass(frozen=True)
class Fold:
    """One training of the classifier and of the scores fitted with it."""

    name: str
    """``FINAL`` for the training of the served model, otherwise the name of a held-out training."""
    refit: bool
    """True if it is also trained on validation documents."""
    half: int | None = None
    """The half of the validation documents that it leaves out; None for the final training."""

    @property
    def final(self) -> bool:
        """True for the training of the served model."""
        return self.name == FINAL

    def documents(self, corpus: Corpus) -> I64:
        """Return the document rows of the training, ascending."""
        if not self.refit:
            return corpus.rows(TRAIN)
        published = corpus.published_rows()
        return published if self.half is None else np.setdiff1d(published, corpus.validation_halves()[self.half])

    def unseen(self, corpus: Corpus) -> I64:
        """Return the validation rows that the training leaves out, ascending."""
        if self.half is not None:
            return corpus.validation_halves()[self.half]
        return np.zeros(0, np.int64) if self.refit else corpus.rows(VALIDATION)

    def counts(self, corpus: Corpus) -> I64:
        """Return the number of documents of each label (L), at least that of a rare published label.

        A lower count would reveal that held-out documents have the label. Labels that no published document has keep 0;
        so do those that no document of this training has, if they do not stand out among these (``_plain_zero``).
        """
        published_L, rare, trained_L = self._frequencies(corpus)
        return np.where(self._plain_zero(corpus, published_L, trained_L), 0, np.maximum(trained_L, rare))

    def revealing_labels(self, corpus: Corpus) -> Bool:
        """Mark labels that have fewer documents in this training than a rare published label, if these are few (L).

        Almost only held-out documents explain such a count. Scores reveal it too, for instance by an untrained row. For
        new documents there is no such label, so a fusion must not learn from it. If even a rare published label has
        more than 20 documents, the difference is small and no label is marked
        (docs/lab-notes/2026-11-22-held-out-labels.md). A label without documents that does not stand out is not marked
        either: the labels of test documents that training has not seen are like it.
        """
        published_L, rare, trained_L = self._frequencies(corpus)
        return (trained_L < rare) & ~self._plain_zero(corpus, published_L, trained_L) & (rare <= _FEW)

    @staticmethod
    def _plain_zero(corpus: Corpus, published_L: I64, trained_L: I64) -> Bool:
        """Mark labels without documents whose count of 0 tells nothing of held-out documents (L).

        These are the labels that no published document has. If they are at least half as many as those that only
        validation documents have, the latter are marked too: a fusion would otherwise learn that a count of 0 is always
        wrong (docs/lab-notes/2026-11-29-labels-without-documents-in-the-fusion.md). Half is a guess.
        """
        published_zero_L: Bool = published_L == 0
        held_out_only_L = (corpus.labels.rows(corpus.rows(TRAIN)).frequency_L() == 0) & ~published_zero_L
        if 2 * published_zero_L.sum() < held_out_only_L.sum():
            return published_zero_L
        return np.asarray(trained_L == 0)

    def _frequencies(self, corpus: Corpus) -> tuple[I64, int, I64]:
        """Return each label's published documents (L), the count of a rare published label, and those trained on (L).

        The acceptance documents count as published: they were taken out of the train file as validation documents are.
        """
        published_L = corpus.published_train().frequency_L()
        accepted_L = corpus.labels.rows(corpus.rows(ACCEPTANCE)).frequency_L()
        trained_L = corpus.labels.rows(self.documents(corpus)).frequency_L()
        return published_L, _rare(published_L + accepted_L), trained_L


def _rare(published_L: I64) -> int:
    """Return the lowest of the counts above 0 when the lowest hundredth of them is left out.

    Of fewer than 100 labels that is none, or one that is little rarer than the next, as if a document was forgotten.
    """
    ascending = np.sort(published_L[published_L > 0])
    if not len(ascending):
        return 1
    odd = int(_ODD * len(ascending))
    if not odd and len(ascending) > 1:
        odd = int(ascending[1] - ascending[0] <= _NEAR)
    return int(ascending[odd])


def folds(corpus: Corpus, *, refit: bool, enough: int, seen: bool = False) -> list[Fold]:
    """Return the trainings, the final one last.

    Without ``refit``, or without validation documents, there is only the final one, on train documents. If the first
    half has at least ``enough`` documents, there is no second held-out training. ``seen`` means that the encoder was
    trained on validation documents: nothing can be held out, so the only training uses them too.
    """
    if seen and len(corpus.rows(VALIDATION)):
        return [Fold(FINAL, refit=True)]
    if not refit or not len(corpus.rows(VALIDATION)):
        return [Fold(FINAL, refit=False)]
    count = 1 if len(corpus.validation_halves()[0]) >= enough else 2
    return [*(Fold(f"half-{half}", refit=True, half=half) for half in range(count)), Fold(FINAL, refit=True)]


def unseen(trainings: list[Fold], corpus: Corpus, limit: int) -> list[tuple[Fold, I64]]:
    """Return folds with validation rows that they leave out (ascending), ``limit`` rows at most of all folds together.

    Which rows are chosen depends on their uids alone, not on the order of the file or on the fold. A fold without such
    rows is missing from the result.
    """
    left_out = [(fold, rows) for fold in trainings if len(rows := fold.unseen(corpus))]
    if not left_out:
        return []
    rows = np.concatenate([rows for _, rows in left_out])
    chosen = corpus.drawn(rows, limit)
    chosen_by_fold = [(fold, np.intersect1d(rows, chosen)) for fold, rows in left_out]
    return [(fold, rows) for fold, rows in chosen_by_fold if len(rows)]
