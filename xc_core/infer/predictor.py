"""Texts in, labels out: what a service calls.

Takes: a released bundle's parts.                  Gives: Prediction.
May import: data, encoders, infer.score, shapes.   Never: writes; reads the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import Encoder, encode_rows
from xc_core.errors import UsageError
from xc_core.infer.score import Scorer
from xc_core.shapes import F32, PAD_ID, Shortlist


@dataclass(frozen=True)
class Prediction:
    """One label of one text."""

    label: int
    uid: str
    title: str
    score: float


@dataclass(frozen=True)
class Predictor:
    """Tokenizer, encoder and scorer with the labels' names; safe to share between threads."""

    tokenizer: TextTokenizer
    encoder: Encoder
    scorer: Scorer
    uids: list[str]
    titles: list[str]

    def embed(self, texts: list[str]) -> F32:
        """Return unit vectors, one a text."""
        store = TokenStore.of_texts(texts, self.tokenizer)
        with torch.inference_mode(), self.encoder.autocast():
            vectors = encode_rows(self.encoder, store, np.arange(len(texts), dtype=np.int64))
        return vectors.float().cpu().numpy()

    def shortlist(self, texts: list[str], k: int) -> Shortlist:
        """Return the ``k`` best labels of each text.

        Raises UsageError for k below 1 or a text that is no string.
        """
        if k < 1:
            raise UsageError(f"k {k}", expected="at least 1", do="raise it")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise UsageError(
                    f"a {type(text).__name__} as text {number}",
                    expected="strings",
                    do="send a list of strings",
                )
        if not texts:
            return Shortlist(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
        return self.scorer.shortlist(self.embed(texts), k)

    def predict(self, texts: list[str], k: int = 5) -> list[list[Prediction]]:
        """Return the ``k`` best labels of each text by name, best first."""
        short = self.shortlist(texts, k)
        return [
            [
                Prediction(int(label), self.uids[label], self.titles[label], float(score))
                for label, score in zip(ids.tolist(), scores.tolist(), strict=True)
                if label != PAD_ID
            ]
            for ids, scores in zip(short.ids_NK, short.scores_NK, strict=True)
        ]
