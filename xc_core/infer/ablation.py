"""What scores are worth to a fusion: it is fitted on some of them, and measured on documents that no score has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.fusion import Fusion, Inputs, summed
from xc_core.infer.gathered import Candidates, HeldOut, gather_each, padded, second_half
from xc_core.metrics.ranking import PerDocument, per_document
from xc_core.scores import FittedScore, Query, Scores
from xc_core.shapes import F64, I64, Bool, Shortlist, among

METRICS: Final = ("P_at_1", "P_at_5", "PSP_at_5")
"""The metrics by which a fusion and its parts are compared."""


@dataclass(frozen=True)
class Ablation:
    """Candidates of N held-out documents by all scores of a recipe, and which of them each score proposes."""

    gathered: Candidates
    proposed: Mapping[str, Bool]
    """True for a candidate that the score proposes (N x K), for each score that searches."""
    names: tuple[str, ...]
    """All scores of the recipe, in the order of the columns of their values."""
    families_N: I64
    weights_L: F64

    @classmethod
    def of(cls, corpus: Corpus, embeddings: Embeddings, scores: Scores, rows: int, k: int) -> Self | None:
        """Gather candidates as the stage fusion does: about ``k`` of each score for each of ``rows`` documents at most.

        None if the scores have seen all documents.
        """
        held_out = HeldOut.of_all(corpus, scores.folds, rows)
        documents = np.concatenate([np.zeros(0, np.int64), *(subset.rows for subset in held_out)])
        if not len(documents):
            return None
        read = gather_each(held_out, corpus, embeddings, scores, k, partial(_with_proposals, k))
        parts, proposals = [part for part, _ in read], [masks for _, masks in read]
        gathered, back = Candidates.concat(parts, documents), np.argsort(documents)
        width = gathered.ids_NK.shape[1]
        proposed = {
            name: np.concatenate([padded(masks[name], width, False) for masks in proposals])[back]
            for name in proposals[0]
        }
        return cls(gathered, proposed, tuple(scores.parts), corpus.families(documents[back]), corpus.weights())

    def __len__(self) -> int:
        return len(self.gathered.truth)

    def measure(self, rule: Fusion, inputs: Inputs, divisions: int) -> PerDocument | None:
        """Return the figures of each document by ``rule`` on the scores ``inputs``, with the candidates they propose.

        The rule ranks each half of the families fitted on the other half; figures are means over ``divisions`` into
        halves, the first of them that of the stage fusion. None if no score of ``inputs`` searches, if the rule names
        other scores alone, or if all documents are of one family. A score that searches together with another one keeps
        its candidates without it.
        """
        searching = [self.proposed[name] for name in inputs.names if name in self.proposed]
        known = _restricted(rule, inputs.names)
        if not searching or known is None or (rule.learns and not self.families_N.any()):
            return None
        columns = [self.names.index(name) for name in inputs.names]
        gathered = self.gathered.only(columns, np.logical_or.reduce(searching))
        if not rule.learns:
            return self._figures(gathered, gathered.rank(summed(known, inputs)))
        measured = [
            self._figures(gathered, gathered.cross_fit(known, inputs, self.weights_L, second_N))
            for second_N in (second_half(self.families_N, division) for division in range(divisions))
        ]
        return PerDocument.mean(measured)

    def _figures(self, gathered: Candidates, ranked: Shortlist) -> PerDocument:
        return per_document(ranked, gathered.truth, self.weights_L).only(METRICS)


def _with_proposals(
    k: int, part: Candidates, fitted: Mapping[str, FittedScore], query: Query
) -> tuple[Candidates, dict[str, Bool]]:
    found = {name: score.candidates(query, k) for name, score in fitted.items()}  # the query kept its searches
    return part, {name: among(part.ids_NK, ids_NK) for name, ids_NK in found.items() if ids_NK is not None}


def _restricted(rule: Fusion, names: tuple[str, ...]) -> Fusion | None:
    """Return ``rule`` without the scores that it names and that are not among ``names``; None if it names no other."""
    lists = {name: listed for name in ("add", "features") if (listed := getattr(rule, name, ()))}
    kept = {name: tuple(score for score in listed if score in names) for name, listed in lists.items()}
    return replace(rule, **kept) if all(kept.values()) else None
