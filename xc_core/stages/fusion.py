"""Stage fusion: the score-fusion tree, fitted on validation documents' candidates and positives.

Takes: corpus, embeddings, classifier, index.        Gives: fusion.json, report.json.
May import: data, fusion, infer, metrics, shapes, stages.  Never: reads test rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.fusion import FUSIONS, Fusion, FusionConfig, Sources, feature_table
from xc_core.infer.score import distinct
from xc_core.metrics.propensity import inverse_propensity
from xc_core.metrics.ranking import per_document, without
from xc_core.progress import report
from xc_core.shapes import PAD_ID, F32, I32, I64, Embeddings
from xc_core.stages.released import searchers, sources
from xc_core.stages.runner import Context


def run(context: Context) -> None:
    """Gather candidates of validation documents, fit, and compare with each score alone by two-fold cross-fitting."""
    config: FusionConfig = context.config
    corpus = Corpus.open(context.input("corpus"))
    where = sources(context, corpus)
    rows = corpus.rows(VALIDATION)[: config.rows]
    if not len(rows):
        report("fusion: there are no validation documents, so the scores are summed")
        config = dataclasses.replace(config, kind="sum")
        rows = corpus.rows(TRAIN)[:1]
    doc_ND = np.ascontiguousarray(Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND[rows])
    truth = corpus.labels.rows(rows)
    found_NK = searchers(context).candidates(doc_ND, config.candidates)
    fusion, features_NKF, ids_NK = _fit(config, doc_ND, found_NK, truth, where)
    fusion.save(context.build.path / "fusion.json")
    facts = {"documents": len(rows), "pairs": int((ids_NK != PAD_ID).sum()), "kind": config.kind}
    facts["validation"] = _compare(config, doc_ND, found_NK, truth, where, corpus, rows)
    context.build.json("report.json", facts)
    context.build.facts |= facts
    told = ", ".join(f"{name} {value['P_at_1']:.1f} / {value['PSP_at_5']:.1f}" for name, value in facts["validation"].items())
    report(f"fusion: P@1 / PSP@5 on validation, cross-fitted: {told}")


def _fit(
    config: FusionConfig, doc_ND: F32, found_NK: I32, truth: LabelMatrix, where: Sources
) -> tuple[Fusion, F32, I32]:
    """Fit on found candidates and the positives that were not found (NGAME, appendix C)."""
    width = int(truth.counts_N.max(initial=1))
    positives = np.full((len(truth), width), PAD_ID, np.int32)
    docs, labels = truth.pairs()
    positives[docs, np.arange(len(docs)) - truth.indptr[docs]] = labels
    ids_NK = distinct(np.concatenate([found_NK, positives], axis=1))
    features_NKF = feature_table(config.needed, doc_ND, ids_NK, where)
    is_positive = truth.contains(np.arange(len(truth))[:, None], ids_NK)
    return FUSIONS[config.kind](config, features_NKF, is_positive, ids_NK != PAD_ID), features_NKF, ids_NK


def _compare(
    config: FusionConfig, doc_ND: F32, found_NK: I32, truth: LabelMatrix, where: Sources, corpus: Corpus, rows: I64
) -> dict[str, dict[str, float]]:
    """Return P@1 and PSP@5 of each score, of their sum and of the fusion (fitted on the other half of the documents)."""
    constants = corpus.propensity
    train = corpus.published_train()
    weights_L = inverse_propensity(train.frequency_L(), len(train), constants)
    filters = corpus.filters.rows(rows)
    rules = {name: FusionConfig(kind="sum", add=(name,)) for name in config.add}
    if len(config.add) > 1:
        rules["sum"] = FusionConfig(kind="sum", add=config.add)
    out = {}
    for name, rule in rules.items():
        ranked = Fusion(rule).rank(found_NK, feature_table(rule.needed, doc_ND, found_NK, where))
        out[name] = per_document(without(ranked, filters), truth, weights_L).total()
    if config.kind == "tree" and len(rows) > 1:
        halves = [np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)]
        ids, scores = found_NK.copy(), np.zeros(found_NK.shape, np.float32)
        for fitted, judged in (halves, halves[::-1]):
            fusion = _fit(config, doc_ND[fitted], found_NK[fitted], truth.rows(fitted), where)[0]
            ranked = fusion.rank(found_NK[judged], feature_table(config.needed, doc_ND[judged], found_NK[judged], where))
            ids[judged], scores[judged] = ranked.ids_NK, ranked.scores_NK
        from xc_core.shapes import Shortlist

        out["tree"] = per_document(without(Shortlist(ids, scores), filters), truth, weights_L).total()
    return {name: {key: value[key] for key in ("P_at_1", "P_at_5", "PSP_at_5")} for name, value in out.items()}
