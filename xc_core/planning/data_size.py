"""The size of a data set, as far as the cost of a recipe depends on it: of a corpus, or given by a user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.data.tokens import Tokenised, TokenStore
from xc_core.params import at_least
from xc_core.sampling import Documents
from xc_core.seeds import generator
from xc_core.train.activations import drawn_pool
from xc_core.train.encoder_settings import EncoderSettings

_TOKEN_CHARS: Final = 5.0
"""Characters of a token of a text whose characters are not counted, a space included."""


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """Counts and means; tokens are those of the recipe's tokenizer, without special tokens."""

    train: int
    validation: int
    test: int
    labels: int
    document_tokens: float
    label_tokens: float
    pairs: float
    """Labels per document."""
    document_chars: float = 0.0
    """Mean characters of a document, of which its tokens may be the beginning; 0: as many as its tokens have."""
    label_chars: float = 0.0
    document_read: float = 0.0
    """Mean tokens of a document that the recipe's encoder reads: cut at its longest text, special tokens included; 0
    if only ``document_tokens`` is known."""
    label_read: float = 0.0
    """The same of a label."""
    pool: int = 0
    """Label texts that a step of M1 reads; 0 if not known, or if it reads none."""

    def __post_init__(self) -> None:
        for side in ("document", "label"):
            chars = getattr(self, f"{side}_chars") or _TOKEN_CHARS * getattr(self, f"{side}_tokens")
            object.__setattr__(self, f"{side}_chars", chars)  # the class is frozen
        at_least(self, train=1, validation=0, test=0, labels=1, document_tokens=1, label_tokens=1, pairs=1)

    @classmethod
    def of_sizes(
        cls, documents: int, labels: int, tokens: float, label_tokens: float, pairs: float, test: int | None = None
    ) -> DataSize:
        """Return a data set of which ``test`` (a tenth by default) are test documents.

        A tenth of the others are validation documents.
        """
        test = documents // 10 if test is None else test
        validation = (documents - test) // 10
        return cls(
            train=documents - test - validation,
            validation=validation,
            test=test,
            labels=labels,
            document_tokens=tokens,
            label_tokens=label_tokens,
            pairs=min(pairs, labels),
        )

    @classmethod
    def of(cls, corpus: Corpus, tokens: Tokenised, settings: EncoderSettings) -> DataSize:
        """Return the size of a corpus whose encoder is trained with ``settings``."""
        longest = settings.encoder.max_length
        train, validation, test = (len(corpus.rows(split)) for split in (TRAIN, VALIDATION, TEST))
        return cls(
            train=train,
            validation=validation,
            test=test,
            labels=corpus.num_labels,
            document_tokens=_mean(tokens.documents),
            label_tokens=_mean(tokens.labels),
            pairs=max(len(corpus.labels.indices) / max(corpus.num_documents, 1), 1.0),
            document_chars=corpus.mean_chars("documents"),
            label_chars=corpus.mean_chars("labels"),
            document_read=_mean_read(tokens.documents, longest),
            label_read=_mean_read(tokens.labels, longest),
            pool=_pool(corpus, settings),
        )

    @property
    def published(self) -> int:
        """Train and validation documents."""
        return self.train + self.validation

    @property
    def documents(self) -> int:
        """Documents of all splits."""
        return self.published + self.test

    def folds(self, recipe: Any) -> list[int]:
        """Return the number of documents of each training of M4, the final one last (``data.folds``)."""
        settings = recipe.classifier
        if not settings.refit or recipe.encoder.sees_validation:
            return [self.published if recipe.encoder.sees_validation else self.train]
        half = self.validation // 2
        held_out = [] if not half else [self.published - half] * (1 if half >= settings.enough else 2)
        return [*held_out, self.published]


def _mean(store: TokenStore) -> float:
    return max(float(np.diff(store.offsets).mean()), 1.0) if len(store) else 1.0


def _mean_read(store: TokenStore, longest: int) -> float:
    return float(store.lengths(np.arange(len(store)), longest).mean()) if len(store) else 1.0


def uniform_pool(settings: EncoderSettings, batch: int, pairs: int, labels: int) -> int:
    """Return the labels of the pool of a batch whose documents have ``pairs`` labels each, drawn uniformly."""
    drawn, docs = generator(0, "plan-pool").integers(0, labels, batch * pairs), np.repeat(np.arange(batch), pairs)
    documents = Documents(LabelMatrix.from_pairs(docs, drawn, (batch, labels)))
    return len(drawn_pool(settings.negatives, documents, settings.seed))


def _pool(corpus: Corpus, settings: EncoderSettings) -> int:
    """Return the labels of the pool of a random batch of M1 of train documents; 0 if it reads no label texts."""
    rows, batch = corpus.rows(TRAIN), getattr(settings.order, "batch_size", 1)
    reads = settings.epochs and settings.scorer.reads_texts
    drawn = generator(settings.seed, "plan-pool").permutation(rows)[:batch] if reads else rows[:0]
    documents = Documents(corpus.labels.rows(drawn), corpus.filters.rows(drawn))
    return len(drawn_pool(settings.negatives, documents, settings.seed)) if len(drawn) else 0
