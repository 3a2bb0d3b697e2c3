"""Ranks labels of documents: gathers candidates, scores them, fuses. Evaluation and serving share this code.

It applies no filters; the evaluation does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import numpy as np

from xc_core.errors import ConfigError, XCError
from xc_core.fusion import FittedFusion
from xc_core.progress import Meter
from xc_core.scores import FittedScore, Query
from xc_core.shapes import F32, I32, I64, PAD_ID, Shortlist, repeated

DOCS_AT_ONCE: Final = 2048
"""Documents whose candidates are held at a time."""


def candidates(scores: Mapping[str, FittedScore], query: Query, k: int) -> I32:
    """Return the labels that the scores propose, about ``k`` each, without duplicates (N x K, holes last).

    Raises ConfigError if no score proposes labels, XCError if one proposes what is no label.
    """
    proposed = {name: score.candidates(query, k) for name, score in scores.items()}
    proposals = [_checked_labels(name, scores[name], ids_NK) for name, ids_NK in proposed.items() if ids_NK is not None]
    if not proposals:
        raise ConfigError(
            f"no score that proposes labels among {', '.join(scores)}",
            expected="at least one, for instance classifier or label_text with a search",
            do="add one to the recipe's scores",
        )
    if len(proposals) == 1:
        return _without_repeats(proposals[0])
    ids_NK = distinct(np.concatenate(proposals, axis=1))
    return ids_NK[:, : int((ids_NK != PAD_ID).sum(1).max(initial=0))]  # labels that two scores propose left holes


def values(scores: Mapping[str, FittedScore], query: Query, ids_NK: I32) -> F32:
    """Return the value of each score for each candidate (N x K x F).

    Raises XCError if a score has another shape, or is not finite for a candidate.
    """
    checked = (_checked_values(name, score.values(query, ids_NK), ids_NK) for name, score in scores.items())
    return np.stack(list(checked), axis=2)


def _advice(method: str, name: str) -> str:
    return f"fix the method {method} of the score; python -m pytest tests/contracts -k {name} tests it"


def _checked_labels(name: str, score: FittedScore, ids_NK: I32, method: str = "candidates") -> I32:
    if ids_NK.size and not PAD_ID <= ids_NK.min() <= ids_NK.max() < score.num_labels:
        raise XCError(
            f"candidates of the score {name!r} from {ids_NK.min()} to {ids_NK.max()}",
            expected=f"labels from 0 to {score.num_labels - 1:,}, or {PAD_ID} for a hole",
            do=_advice(method, name),
        )
    return ids_NK


def _checked_values(name: str, values_NK: F32, ids_NK: I32) -> F32:
    if values_NK.shape != ids_NK.shape:
        raise XCError(
            f"values of the score {name!r} of the shape {values_NK.shape}",
            expected=f"one per candidate, {ids_NK.shape}",
            do=_advice("values", name),
        )
    if not np.isfinite(values_NK).all() and len(wrong := values_NK[(ids_NK != PAD_ID) & ~np.isfinite(values_NK)]):
        raise XCError(
            f"{len(wrong):,} of {int((ids_NK != PAD_ID).sum()):,} values of the score {name!r} that are not finite, "
            f"the first {wrong[0]}",
            expected="a finite number per candidate",
            do=_advice("values", name),
        )
    return values_NK


@dataclass(frozen=True)
class Ranker:
    """Ranks labels by all scores and their fusion."""

    scores: Mapping[str, FittedScore]
    fusion: FittedFusion

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return next(iter(self.scores.values())).num_labels

    def searching(self, query: Query) -> frozenset[str]:
        """Return the names of the scores that can be served alone, because they propose candidates for ``query``."""
        return frozenset(name for name, score in self.scores.items() if score.alone(query, 1) is not None)

    def shortlist(
        self, query: Query, k: int | None = None, tail: float | None = None, min_probability: float = 0.0
    ) -> Shortlist:
        """Return the ``k`` best labels of each document by fused score; all candidates if ``k`` is None.

        ``tail`` is the position of the fusion's dial, by default the dial's own; labels below ``min_probability`` are
        left out. Raises UsageError as ``rank`` and ``likely`` of the fusion do.
        """
        ranked = self._rank_candidates(query, {"fusion": self.fusion}, tail)["fusion"]
        ranked = self.fusion.likely(ranked, min_probability, tail)
        return ranked if k is None else ranked.top(k)

    def blocks(
        self,
        vectors_ND: F32,
        rows: I64,
        texts: Callable[[], list[str]],
        rules: Mapping[str, FittedFusion],
        step: str,
        alone: Collection[str] = (),
    ) -> Iterator[tuple[slice, dict[str, Shortlist]]]:
        """Yield all candidates of the documents ``rows``, block by block, ranked by each rule, and the block's place.

        ``texts`` returns the texts of ``rows`` in their order; it is called only if a score reads texts. Candidates
        and values are computed once for all rules. A rule whose name is in ``alone`` is the score of that name, and
        ranks the candidates that a model with this score alone would have. ``step`` is its name in progress messages.
        Without rows, one empty block is yielded.
        """
        cached_texts = cache(texts)
        shared = {name: rule for name, rule in rules.items() if name not in alone}
        with Meter(step, len(rows), "documents") as meter:
            for start in range(0, max(len(rows), 1), DOCS_AT_ONCE):
                block = slice(start, min(start + DOCS_AT_ONCE, len(rows)))
                query = Query(np.ascontiguousarray(vectors_ND[rows[block]]), partial(_texts_of, cached_texts, block))
                ranked = self._rank_candidates(query, shared) | {name: self._rank_alone(query, name) for name in alone}
                yield block, {name: ranked[name] for name in rules}
                meter.update(len(query))

    def _rank_candidates(
        self, query: Query, rules: Mapping[str, FittedFusion], tail: float | None = None
    ) -> dict[str, Shortlist]:
        ids_NK = candidates(self.scores, query, self.fusion.candidates)
        values_NKF = values(self.scores, query, ids_NK)
        return {name: rule.rank(ids_NK, values_NKF, tail) for name, rule in rules.items()}

    def _rank_alone(self, query: Query, name: str) -> Shortlist:
        """Rank by one score the candidates that it proposes alone."""
        score = self.scores[name]
        ids_NK = score.alone(query, self.fusion.candidates)
        if ids_NK is None:
            raise ConfigError(
                f"the score {name} alone, which proposes no labels",
                expected=f"one of {', '.join(sorted(self.searching(query)))}",
                do="rank it among the candidates of all scores",
            )
        ids_NK = _without_repeats(_checked_labels(name, score, ids_NK, "alone"))
        return Shortlist.ranked(ids_NK, _checked_values(name, score.values(query, ids_NK), ids_NK))


def _texts_of(texts: Callable[[], list[str]], block: slice) -> list[str]:
    return texts()[block]


def _without_repeats(ids_NK: I32) -> I32:
    """Return the ids as they are or, if a score names a label of a document twice, each of them once."""
    return distinct(ids_NK) if len(repeated(ids_NK)[0]) else ids_NK


def distinct(ids_NK: I32) -> I32:
    """Return the distinct ids of each row in ascending order, holes last."""
    ordered = np.sort(np.where(ids_NK == PAD_ID, np.iinfo(np.int32).max, ids_NK), axis=1)
    repeated = np.zeros(ordered.shape, bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    ordered = np.sort(np.where(repeated, np.iinfo(np.int32).max, ordered), axis=1)
    return np.where(ordered == np.iinfo(np.int32).max, PAD_ID, ordered).astype(np.int32)
