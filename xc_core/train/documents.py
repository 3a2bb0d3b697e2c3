"""The documents that M1 trains on: those of a corpus, and label texts as documents if the recipe asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN
from xc_core.data.tokens import Joined, Tokenised, Tokens, TokenStore
from xc_core.shapes import I64
from xc_core.train.encoder_settings import EncoderSettings


@dataclass(frozen=True)
class EncoderData:
    """Training data of an encoder: the train documents, their labels, and the tokens of both."""

    documents: Tokens
    labels: Tokens
    rows_N: I64
    """Rows of ``documents`` to train on."""
    truth: LabelMatrix
    """Labels of ``rows_N`` (N x L)."""
    filters: LabelMatrix | None = None
    """Pairs that predictions leave out; neither positives nor negatives."""
    augmented: bool = False
    """True if the last L documents are the labels' texts."""

    @classmethod
    def of(cls, corpus: Corpus, tokens: Tokenised, settings: EncoderSettings) -> EncoderData:
        """Return the train documents of a corpus; with ``refit`` the validation documents too.

        With ``augment`` they are followed by label texts as documents.
        """
        rows = corpus.published_rows() if settings.refit else corpus.rows(TRAIN)
        make = cls.with_label_texts if settings.augment else cls
        return make(tokens.documents, tokens.labels, rows, corpus.labels.rows(rows), corpus.filters.rows(rows))

    @classmethod
    def with_label_texts(
        cls,
        documents: TokenStore,
        labels: TokenStore,
        rows_N: I64,
        truth: LabelMatrix,
        filters: LabelMatrix | None = None,
    ) -> EncoderData:
        """Return the documents, followed by the text of every label as a document of that label; no text is copied.

        Source: ASTRA (004), section 3.2, and Renee: label texts as training points.
        """
        texts = len(documents) + np.arange(len(labels), dtype=np.int64)
        joined = Joined(documents, labels, documents.pad_id)
        rows = np.concatenate([rows_N, texts])
        size = len(labels)
        if filters is not None:
            filters = filters.above(LabelMatrix.none(size, size))
        return cls(joined, labels, rows, truth.above(LabelMatrix.identity(size)), filters, augmented=True)
