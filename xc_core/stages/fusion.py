"""Stage fusion: the tree or trees that fuse scores, fitted on validation documents' candidates and positives.

Takes: corpus, embeddings, classifier, index.              Gives: fusion.json, report.json.
May import: data, fusion, infer, metrics, shapes, stages.  Never: reads test rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import VALIDATION
from xc_core.fusion import FUSIONS, Fusion, FusionConfig, Query, feature_table, parts_of, worth
from xc_core.infer.score import distinct
from xc_core.metrics.ranking import per_document
from xc_core.progress import report
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Bool, Embeddings, Shortlist
from xc_core.stages.released import searchers, sources, texts, unseen, weights
from xc_core.stages.runner import Context


@dataclass(frozen=True)
class Pairs:
    """Candidates of validation documents with their features: those a search found, and the positives it did not."""

    ids_NK: I32
    features_NKF: F32
    positive_NK: Bool
    found_NK: Bool

    @classmethod
    def together(cls, parts: list[Pairs], rows: I64) -> Pairs:
        """Put parts together in the order of their documents, ``rows``, which are those of all parts."""
        width, back = max(part.ids_NK.shape[1] for part in parts), np.argsort(rows)

        def joined(name: str, hole: int) -> Any:
            wide = []
            for part in parts:
                own = getattr(part, name)
                more = [(0, 0), (0, width - own.shape[1]), *[(0, 0)] * (own.ndim - 2)]
                wide.append(np.pad(own, more, constant_values=hole))
            return np.concatenate(wide)[back]

        return cls(joined("ids_NK", PAD_ID), joined("features_NKF", 0), joined("positive_NK", 0), joined("found_NK", 0))

    def fit(self, config: FusionConfig, weights_L: F64, rows: I64 | slice = slice(None)) -> Fusion:
        """Fit on found candidates and positives of ``rows`` (NGAME, appendix C)."""
        ids_NK = self.ids_NK[rows]
        worth_NK = worth(self.positive_NK[rows], weights_L[ids_NK].astype(np.float32), config.tail)
        return FUSIONS[config.kind](config, self.features_NKF[rows], worth_NK, ids_NK != PAD_ID)

    def rank(self, fusion: Fusion, names: tuple[str, ...], rows: I64 | slice = slice(None)) -> Shortlist:
        """Rank what serving would have: found candidates alone."""
        ids_NK = np.where(self.found_NK[rows], self.ids_NK[rows], PAD_ID).astype(np.int32)
        return fusion.rank(ids_NK, fusion.own(self.features_NKF[rows], names))


def run(context: Context) -> None:
    """Gather candidates of validation documents, fit, and compare with each score alone by two-fold cross-fitting."""
    config: FusionConfig = context.config
    corpus = Corpus.open(context.input("corpus"))
    if not len(corpus.rows(VALIDATION)):
        _without_validation(context, config)
        return
    halves = unseen(context, corpus, config.rows)
    parts = [_gathered(context, corpus, own, training) for training, own in halves.items()]
    mixed = np.concatenate([*halves.values()])
    pairs, rows = Pairs.together(parts, mixed), np.sort(mixed)
    truth = corpus.labels.rows(rows)
    weights_L = weights(corpus)
    pairs.fit(config, weights_L).save(context.build.path / "fusion.json")
    compared = _compare(config, pairs, truth, weights_L)
    facts: dict[str, Any] = {"documents": len(rows), "pairs": int((pairs.ids_NK != PAD_ID).sum()), "kind": config.kind}
    facts["validation"] = compared
    context.build.json("report.json", facts)
    context.build.facts |= facts
    told = ", ".join(f"{name} {value['P_at_1']:.1f} / {value['PSP_at_5']:.1f}" for name, value in compared.items())
    report(f"fusion: P@1 / PSP@5 on validation, cross-fitted: {told}")


def _gathered(context: Context, corpus: Corpus, rows: I64, training: str) -> Pairs:
    """Return the candidates of documents as the training of that name, which has not seen them, scores them."""
    config: FusionConfig = context.config
    vectors = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
    own = sources(context, corpus, config, training)
    query = Query(np.ascontiguousarray(vectors[rows]), own, texts(context, corpus, own, rows))
    found_NK = searchers(context, training).candidates(query, config.candidates)
    return _pairs(config, query, found_NK, corpus.labels.rows(rows), corpus.filters.rows(rows))


def _without_validation(context: Context, config: FusionConfig) -> None:
    """Write the plain sum of the scores: a tree is fitted on validation documents or not at all."""
    report("fusion: there are no validation documents, so no tree is fitted and the scores are summed")
    summed = dataclasses.replace(config, kind="sum")
    Fusion(summed).save(context.build.path / "fusion.json")
    facts: dict[str, Any] = {"documents": 0, "pairs": 0, "kind": summed.kind, "validation": {}}
    context.build.json("report.json", facts)
    context.build.facts |= facts


def _pairs(config: FusionConfig, query: Query, found_NK: I32, truth: LabelMatrix, filters: LabelMatrix) -> Pairs:
    """Return found candidates and all positives of each document with their features, without what is filtered.

    As negatives such pairs would teach that a label with the document's own text is wrong.
    """
    own_rows = np.arange(len(truth))[:, None]
    positives = np.full((len(truth), int(truth.counts_N.max(initial=1))), PAD_ID, np.int32)
    docs, labels = truth.pairs()
    positives[docs, np.arange(len(docs)) - truth.indptr[docs]] = labels
    both_NK = np.concatenate([found_NK, positives], axis=1)
    ids_NK = distinct(np.where(filters.contains(own_rows, both_NK), PAD_ID, both_NK).astype(np.int32))
    width = np.int64(truth.num_labels + 1)
    return Pairs(
        ids_NK,
        feature_table(config.needed, query, ids_NK),
        truth.contains(own_rows, ids_NK),
        np.isin(own_rows * width + ids_NK, own_rows * width + found_NK) & (ids_NK != PAD_ID),
    )


def _compare(config: FusionConfig, pairs: Pairs, truth: LabelMatrix, weights_L: F64) -> dict[str, dict[str, float]]:
    """Return figures of each score, of their sum, and of the fusion fitted on the other half of the documents."""
    ranked = {name: pairs.rank(fusion, config.needed) for name, fusion in parts_of(config).items()}
    if config.fitted and len(truth) > 1:
        halves = np.arange(0, len(truth), 2), np.arange(1, len(truth), 2)
        fits = [pairs.fit(config, weights_L, half) for half in reversed(halves)]
        crossed = [pairs.rank(fitted, config.needed, half) for fitted, half in zip(fits, halves, strict=True)]
        back = np.argsort(np.concatenate(halves))
        ranked[config.kind] = Shortlist.stack(crossed).rows(back)
    return {
        name: {
            key: value
            for key, value in per_document(short, truth, weights_L).total().items()
            if key in ("P_at_1", "P_at_5", "PSP_at_5")
        }
        for name, short in ranked.items()
    }
