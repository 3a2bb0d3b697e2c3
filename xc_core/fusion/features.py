"""What is known of a (document, label) pair: a plug-in table of features, each an N x K matrix.

Takes: Query, candidate ids.                          Gives: features_NKF.
May import: errors, plugins, shapes, sampling, fusion.lexical, .neighbours.
Never: reads the truth of a document it describes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from xc_core.errors import ConfigError
from xc_core.fusion.lexical import Lexical, scores_of
from xc_core.fusion.neighbours import Neighbours, Votes
from xc_core.plugins import Table
from xc_core.sampling import Noise
from xc_core.shapes import F32, I32, I64, Shortlist

VOTES: Final = "neighbours"
"""The feature that needs train documents to be searched."""
NOISE: Final = "noise"
"""The feature that needs the distribution from which negatives were drawn."""
LEXICAL: Final = "lexical"
WORDS: Final = "label_words"
BY_WORDS: Final = frozenset({LEXICAL, WORDS})
"""The feature that needs a document's text."""
_DOCS_AT_ONCE: Final = 16
"""Documents whose candidates' vectors are gathered together: 16 x 200 x 384 x 4 bytes = 5 MB stay in the cache."""


@dataclass(frozen=True)
class Sources:
    """Where features come from: label texts' vectors, classifier rows (both L x D, unit), train frequencies (L)."""

    label_LD: F32
    rows_LD: F32
    frequency_L: I64
    neighbours: Neighbours | None = None
    """Train documents that vote; only where a feature asks for them."""
    noise: Noise | None = None
    """What negatives were drawn from; only where a feature asks for it."""
    lexical: Lexical | None = None
    """The lexical score; only where a feature asks for it."""


@dataclass(frozen=True)
class Query:
    """Documents' vectors and where features come from; what several readers need of a document is found once."""

    doc_ND: F32
    sources: Sources
    texts: list[str] | None = None
    """One a document; only where the sources have a lexical score."""

    @cached_property
    def votes(self) -> Votes:
        """The votes of the nearest train documents; raise ConfigError where the sources have none."""
        if self.sources.neighbours is None:
            raise ConfigError(
                "a vote of neighbours in sources without train documents",
                expected="sources built for these features",
                do="run the stage fusion again",
            )
        return self.sources.neighbours.vote(self.doc_ND)

    @cached_property
    def lexical(self) -> Shortlist:
        """The labels that the words of the texts speak for; raise as ``words`` does."""
        model, own_NT = self.words
        return model.shortlist(own_NT)

    @cached_property
    def words(self) -> tuple[Lexical, Any]:
        """The lexical score and the texts as its rows of terms (N x T).

        Raises ConfigError where the sources have no lexical score, ValueError without one text a document.
        """
        if self.sources.lexical is None:
            raise ConfigError(
                "a lexical score in sources without one",
                expected="sources built for these features",
                do="run the stage fusion again",
            )
        if self.texts is None or len(self.texts) != len(self.doc_ND):
            raise ValueError(f"{len(self.texts or [])} texts for {len(self.doc_ND)} documents")
        return self.sources.lexical, self.sources.lexical.vectors(self.texts)


Feature = Callable[[Query, I32], F32]
FEATURES: Table[Feature] = Table("fusion feature")


@FEATURES.register("label_text")
def label_text(query: Query, ids_NK: I32) -> F32:
    """Return the cosine of the document and the label's text, E(x) . E(z)."""
    return own_products(query.doc_ND, ids_NK, query.sources.label_LD)


@FEATURES.register("classifier")
def classifier(query: Query, ids_NK: I32) -> F32:
    """Return the cosine of the document and the label's classifier row, E(x) . w."""
    return own_products(query.doc_ND, ids_NK, query.sources.rows_LD)


@FEATURES.register("frequency")
def frequency(query: Query, ids_NK: I32) -> F32:
    """Return the number of train documents of the label."""
    return query.sources.frequency_L[ids_NK].astype(np.float32)


@FEATURES.register(NOISE)
def noise(query: Query, ids_NK: I32) -> F32:
    """Return log p_n(label | document): added to a score learnt against p_n it removes the bias (equation 5)."""
    if query.sources.noise is None:
        raise ConfigError(
            "the feature noise with a classifier whose negatives were drawn from none",
            expected="classifier.negatives.kind frequency or tree",
            do="change the recipe, or drop noise from its fusion",
        )
    log_NK = query.sources.noise.log_prob(query.doc_ND, ids_NK.astype(np.int64))
    return np.maximum(log_NK, np.finfo(np.float32).min).astype(np.float32)


@FEATURES.register(VOTES)
def neighbours(query: Query, ids_NK: I32) -> F32:
    """Return the label's share of the votes of the document's nearest train documents."""
    return query.votes.of(ids_NK)


@FEATURES.register(LEXICAL)
def lexical(query: Query, ids_NK: I32) -> F32:
    """Return the lexical score of the label; 0 for one that is not among the document's best by words."""
    return scores_of(query.lexical, ids_NK)


@FEATURES.register(WORDS)
def label_words(query: Query, ids_NK: I32) -> F32:
    """Return the cosine of the text and the label's text as TF-IDF vectors of words and pairs of words."""
    model, own_NT = query.words
    return model.matches(own_NT, ids_NK)


def own_products(doc_ND: F32, ids_NK: I32, vectors_LD: F32) -> F32:
    """Return the inner product of each document with each of its own candidates (N x K); any number for a hole."""
    out = np.empty(ids_NK.shape, np.float32)
    for start in range(0, len(doc_ND), _DOCS_AT_ONCE):
        part = slice(start, start + _DOCS_AT_ONCE)
        own_NKD = np.take(vectors_LD, np.maximum(ids_NK[part], 0), axis=0)
        out[part] = np.matmul(own_NKD, doc_ND[part][:, :, None])[:, :, 0]
    return out


def feature_table(names: tuple[str, ...], query: Query, ids_NK: I32) -> F32:
    """Return the named features of all candidates, N x K x F."""
    return np.stack([FEATURES[name](query, ids_NK) for name in names], axis=2)
