"""Predicts the labels of texts; this is what a service calls."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch

from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import Encoder, encode_rows
from xc_core.errors import UsageError
from xc_core.fusion.dial import checked
from xc_core.infer.ranker import Ranker
from xc_core.scores import Query
from xc_core.shapes import F32, PAD_ID, Shortlist

_WARM: Final = 5
"""Texts predicted before the clock starts."""
_AT_ONCE: Final = 1024
"""Texts of a pass, at most: the candidates and their features of all texts at once would fill the memory."""


@dataclass(frozen=True)
class Prediction:
    """A predicted label of a text."""

    label: int
    uid: str
    title: str
    score: float
    probability: float | None
    """Probability that the label is right (``Dial.probability``); None if the model has no dial."""


P = TypeVar("P", bound=Prediction)


def asked_labels(k: int, min_probability: float) -> int:
    """Return how many labels to ask for: with a ``min_probability`` one more than ``k``, for ``first`` to see it.

    A ``k`` that cannot be asked for stays.
    """
    return k + 1 if min_probability and k > 0 else k


def first(answers: Sequence[list[P]], k: int) -> tuple[list[list[P]], list[int]]:
    """Return the first ``k`` labels of each text, and the places of the texts that have more."""
    return [labels[:k] for labels in answers], [place for place, labels in enumerate(answers) if len(labels) > k]


@dataclass(frozen=True)
class Predictor:
    """Tokenizer, encoder, ranker and the names of the labels; several threads may use it at once."""

    tokenizer: TextTokenizer
    encoder: Encoder
    ranker: Ranker
    uids: Sequence[str]
    titles: Sequence[str]

    def embed(self, texts: list[str]) -> F32:
        """Return the unit vector of each text (N x D); only the beginning of a long text is tokenised.

        Raises UsageError for a single string, whose characters would be taken for texts.
        """
        _refuse_string(texts)
        store = TokenStore.of_texts(texts, self.tokenizer, self.encoder.config.max_length)
        with torch.inference_mode(), self.encoder.autocast():
            vectors = encode_rows(self.encoder, store, np.arange(len(texts), dtype=np.int64))
        return vectors.float().cpu().numpy()

    def shortlist(self, texts: list[str], k: int, tail: float | None = None, min_probability: float = 0.0) -> Shortlist:
        """Return the ``k`` best labels of each text (N x min(k, L)); rows end in holes if fewer were found.

        Only the beginning of a very long text is read (``MAX_CHARS``).
        ``tail`` is the position of the dial between P@k (0) and PSP@k (1), by default the model's own. Labels with a
        probability below ``min_probability`` are left out. Raises UsageError for a k that is not a whole number above
        0, a tail or probability outside 0 to 1 or of a model without a dial, or a text that is not a string.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UsageError(f"k {k!r}", expected="a whole number, at least 1", do="fix k")
        _check(texts)
        if tail is not None:
            checked(tail)
        k = min(k, self.ranker.num_labels)
        if not texts:
            return self.ranker.fusion.likely(Shortlist.nothing(0), min_probability, tail).top(k)
        blocks = np.array_split(np.arange(len(texts)), math.ceil(len(texts) / _AT_ONCE))  # of nearly equal size
        batches = (texts[block[0] : block[-1] + 1] for block in blocks)
        queries = (Query(self.embed(batch), batch) for batch in batches)
        return Shortlist.stack([self.ranker.shortlist(query, k, tail, min_probability) for query in queries])

    def predict(
        self, texts: list[str], k: int = 5, tail: float | None = None, min_probability: float = 0.0
    ) -> list[list[Prediction]]:
        """Return the ``k`` best labels of each text with their names, best first; fewer if fewer were found.

        Only candidates are ranked: about ``fusion.candidates`` labels from each score that can search. A higher
        ``tail`` ranks rare labels higher. With a ``min_probability`` a text has as many labels as are that likely, at
        most ``k``; it may have none. Raises UsageError as ``shortlist`` does.
        """
        short = self.shortlist(texts, k, tail, min_probability)
        probability_NK = self.ranker.fusion.probabilities(short, tail)
        known_NK = np.full(short.ids_NK.shape, None) if probability_NK is None else probability_NK
        return [
            [
                Prediction(label, self.uids[label], self.titles[label], score, probability)
                for label, score, probability in zip(ids.tolist(), scores.tolist(), known.tolist(), strict=True)
                if label != PAD_ID
            ]
            for ids, scores, known in zip(short.ids_NK, short.scores_NK, known_NK, strict=True)
        ]


def latencies_ms(predictor: Predictor, texts: list[str]) -> list[float]:
    """Return the milliseconds of each text from string to labels, predicted alone, after a few to warm up."""
    for text in texts[:_WARM]:
        predictor.shortlist([text], 5)
    times = []
    for text in texts:
        started = time.perf_counter()
        predictor.shortlist([text], 5)
        times.append(1000 * (time.perf_counter() - started))
    return times


def _check(texts: object) -> None:
    """Raise UsageError unless ``texts`` is a list of strings that UTF-8 can encode."""
    if not isinstance(texts, list):
        raise _no_list(texts)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UsageError(
                f"text {number} of type {type(text).__name__}", expected="strings", do="send a list of strings"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"half a character (U+{ord(text[error.start]):X}) as character {error.start + 1} of text {number}",
                expected="characters that UTF-8 can encode",
                do="decode the text correctly where it is read",
            ) from error


def _refuse_string(texts: object) -> None:
    if isinstance(texts, str):
        raise _no_list(texts)


def _no_list(texts: object) -> UsageError:
    return UsageError(f"a {type(texts).__name__} of texts", expected="a list of strings", do="pass a list")
