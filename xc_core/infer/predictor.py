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
        """Return the ``k`` best labels of each text (at most L columns); rows end in holes where fewer were found.

        Raises UsageError for k that is no whole number above 0, or a text that is no string.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UsageError(f"k {k!r}", expected="a whole number, at least 1", do="mend k")
        _check(texts)
        k = min(k, self.scorer.searchers.by_row.size)
        if not texts:
            return Shortlist(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
        return self.scorer.shortlist(self.embed(texts), k, texts)

    def predict(self, texts: list[str], k: int = 5) -> list[list[Prediction]]:
        """Return the ``k`` best labels of each text by name, best first; fewer where there are not as many.

        At most those are ranked that the searches find, ``fusion.candidates`` of each.
        """
        short = self.shortlist(texts, k)
        return [
            [
                Prediction(int(label), self.uids[label], self.titles[label], float(score))
                for label, score in zip(ids.tolist(), scores.tolist(), strict=True)
                if label != PAD_ID
            ]
            for ids, scores in zip(short.ids_NK, short.scores_NK, strict=True)
        ]


def _check(texts: object) -> None:
    """Raise UsageError where ``texts`` is no list of strings that UTF-8 can hold."""
    if not isinstance(texts, list):
        raise UsageError(f"a {type(texts).__name__} of texts", expected="a list of strings", do="put them into a list")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                f"a {type(text).__name__} as text {number}", expected="strings", do="send a list of strings"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"half a character (U+{ord(text[error.start]):X}) at place {error.start} of text {number}",
                expected="whole characters, as UTF-8 can hold them",
                do="decode the text anew where it comes from",
            ) from error
