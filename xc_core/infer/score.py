"""Document vectors to fused shortlists: search, gather features, fuse. Evaluation and serving run this same code.

Takes: document vectors, indexes, Sources, Fusion.   Gives: Shortlist.
May import: ann, fusion, shapes, progress.           Never: applies a filter (that is evaluation's).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xc_core.ann import Index
from xc_core.fusion import Fusion, Query, Sources, feature_table
from xc_core.progress import Meter
from xc_core.shapes import F32, I32, I64, PAD_ID, Shortlist

_DOCS_AT_ONCE = 2048


@dataclass(frozen=True)
class Searchers:
    """The indexes a document is searched in: over classifier rows and, where there is one, over label texts."""

    by_row: Index
    by_text: Index | None

    def candidates(self, query: Query, k: int) -> I32:
        """Return the searches' ``k`` best, the neighbours', the noise's likeliest and the lexical labels, each once."""
        found = [self.by_row.search(query.doc_ND, k).ids_NK]
        if self.by_text is not None:
            found.append(self.by_text.search(query.doc_ND, k).ids_NK)
        if query.sources.neighbours is not None:
            found.append(query.votes.labels())
        if query.sources.noise is not None:
            found.append(query.sources.noise.likely(query.doc_ND, k))
        if query.sources.lexical is not None:
            found.append(query.lexical.ids_NK)
        return found[0] if len(found) == 1 else distinct(np.concatenate(found, axis=1))


@dataclass(frozen=True)
class Scorer:
    """Everything between a document's vector (and its text, where the sources have a lexical score) and its labels."""

    searchers: Searchers
    sources: Sources
    fusion: Fusion

    def shortlist(self, doc_ND: F32, k: int | None = None, texts: list[str] | None = None) -> Shortlist:
        """Return the ``k`` best labels of each document (all candidates where None) by fused score."""
        ranked = self._ranked(Query(doc_ND, self.sources, texts), {"fusion": self.fusion})["fusion"]
        return ranked if k is None else ranked.top(k)

    def shortlist_rows(
        self, vectors_ND: F32, rows: I64, rules: dict[str, Fusion], what: str, texts: list[str] | None = None
    ) -> dict[str, Shortlist]:
        """Return all candidates of the documents ``rows`` (perhaps none) ranked by each rule, block by block.

        ``texts`` are those of ``rows``, in their order. A rule may need no feature that the fusion does not need:
        candidates and features are computed once.
        """
        parts: dict[str, list[Shortlist]] = {name: [] for name in rules}
        with Meter(what, len(rows), "documents") as meter:
            for start in range(0, max(len(rows), 1), _DOCS_AT_ONCE):
                block = rows[start : start + _DOCS_AT_ONCE]
                own = texts and texts[start : start + _DOCS_AT_ONCE]
                query = Query(np.ascontiguousarray(vectors_ND[block]), self.sources, own)
                for name, ranked in self._ranked(query, rules).items():
                    parts[name].append(ranked)
                meter.update(len(block))
        return {name: Shortlist.stack(found) for name, found in parts.items()}

    def _ranked(self, query: Query, rules: dict[str, Fusion]) -> dict[str, Shortlist]:
        needed = self.fusion.config.needed
        ids_NK = self.searchers.candidates(query, self.fusion.config.candidates)
        features_NKF = feature_table(needed, query, ids_NK)
        return {name: rule.rank(ids_NK, rule.own(features_NKF, needed)) for name, rule in rules.items()}


def distinct(ids_NK: I32) -> I32:
    """Return every row's distinct ids in rising order, holes last."""
    ordered = np.sort(np.where(ids_NK == PAD_ID, np.iinfo(np.int32).max, ids_NK), axis=1)
    repeated = np.zeros(ordered.shape, bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    ordered = np.sort(np.where(repeated, np.iinfo(np.int32).max, ordered), axis=1)
    return np.where(ordered == np.iinfo(np.int32).max, PAD_ID, ordered).astype(np.int32)
