"""Stage audit: measures which hard negatives the batches of M4 held and missed. No stage depends on it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch

from xc_core.ann import Exact
from xc_core.chain.context import Context
from xc_core.classifiers import LabelTables
from xc_core.cluster import Clusters, theorem1
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.labels import LabelMatrix
from xc_core.encoders.heads import split
from xc_core.infer.examples import titles_of
from xc_core.metrics import plots
from xc_core.recipes.settings import AuditSettings
from xc_core.sampling import Documents, Random, audit_batches, search_negatives
from xc_core.sampling.audit import Audit
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, Shortlist

_MAP_SAMPLE = 400
"""Sampled documents from which the document of the label map is chosen."""


@dataclass(frozen=True)
class TrainedDocuments:
    """The documents that the final training of M4 was trained on."""

    rows_N: I64
    truth: LabelMatrix
    excluded: LabelMatrix
    """Pairs that are not negatives: positives and filtered pairs."""
    batches: list[I64] | None
    """Batches of one epoch of M4; None if M4 did not train."""


def run(context: Context[AuditSettings]) -> None:
    """Measure Theorem 1 on the clusters, and the share of hard negatives that batches hold."""
    corpus, embeddings, tables = context.read(Corpus), context.read(Embeddings), context.read(LabelTables)
    rows_N = tables.folds[-1].documents(corpus)
    truth = corpus.labels.rows(rows_N)
    excluded = truth.union(corpus.filters.rows(rows_N))
    trained = TrainedDocuments(rows_N, truth, excluded, tables.audited_batches())
    theorem = _theorem(context, embeddings, trained)
    docs = _sample(context.settings, len(rows_N))
    index = Exact().build(embeddings.labels_LD)
    hard = search_negatives(index, embeddings.documents_ND, rows_N[docs], excluded.rows(docs), context.settings.k)
    shares = _held_shares(context.settings, trained, hard, docs)
    Audit({"theorem1": theorem, "documents": len(docs), "k": context.settings.k, **shares}).write(context.build)
    plots.label_map(context.build.path, _label_map(corpus, embeddings, trained, hard, docs), context.run.title)
    if trained.batches is None:
        batches = "M4 was not trained here, so there are no batches to measure"
    elif math.isnan(shares["held_by_batches"]):
        batches = "the documents have no negatives"
    else:
        batches = (
            f"of the {context.settings.k} hardest negatives M4's batches hold {shares['held_by_batches']:.1%}, "
            f"random ones {shares['held_by_random_batches']:.1%}"
        )
    context.report(f"audit: {batches}; hard negatives missed {theorem['missed']:.2e} <= bound {theorem['bound']:.2e}")


def _sample(settings: AuditSettings, size: int) -> I64:
    random = generator(settings.seed, "audit")
    return np.sort(random.choice(np.arange(size), min(settings.sample, size), replace=False))


def _theorem(context: Context[AuditSettings], embeddings: Embeddings, trained: TrainedDocuments) -> dict[str, float]:
    """Return the figures of Theorem 1 on the clusters; with two heads, on the half that is scored with label texts."""
    doc_ND: F32 = embeddings.documents_ND[trained.rows_N]
    label_LD = embeddings.labels_LD
    if embeddings.heads > 1:
        doc_ND = split(torch.from_numpy(doc_ND), embeddings.heads)[0].numpy()
        label_LD = label_LD[:, : doc_ND.shape[1]]
    clusters = context.read(Clusters).among(trained.rows_N)
    settings = context.settings
    measured = theorem1(
        (doc_ND, label_LD), trained.truth, trained.excluded, clusters, radius=settings.radius, seed=settings.seed
    )
    return asdict(measured)


def _held_shares(settings: AuditSettings, trained: TrainedDocuments, hard: Shortlist, docs: I64) -> dict[str, float]:
    """Return the share of hard negatives that the batches of M4 hold, and that random batches of their size hold.

    Both are nan if M4 did not train.
    """
    if trained.batches is None:
        return {"held_by_batches": math.nan, "held_by_random_batches": math.nan}
    size = -(-len(trained.truth) // len(trained.batches))
    random = Random(batch_size=size).build(Documents(trained.truth), settings.seed).batches(0)
    orders = {"held_by_batches": trained.batches, "held_by_random_batches": random}
    return {name: audit_batches(hard, docs, trained.truth, batches) for name, batches in orders.items()}


def _label_map(
    corpus: Corpus, embeddings: Embeddings, trained: TrainedDocuments, hard: Shortlist, docs: I64
) -> plots.LabelMap:
    """Return the labels near one document, preferably one with 3 labels and half of its hard negatives held."""
    docs, ids_NK = docs[:_MAP_SAMPLE], hard.ids_NK[:_MAP_SAMPLE]
    pools = _pools(trained, docs)
    held = [np.isin(ids, pool) for ids, pool in zip(ids_NK, pools, strict=True)]
    num_positives = np.minimum(trained.truth.counts_N[docs], 3)
    best = int(np.argmin([abs(h.mean() - 0.5) - n for h, n in zip(held, num_positives, strict=True)]))
    row, ids = trained.rows_N[docs[best]], ids_NK[best]
    positives, near = trained.truth.row(int(docs[best])), ids[ids >= 0]
    return plots.LabelMap(
        label_LD=embeddings.labels_LD,
        doc_D=np.asarray(embeddings.documents_ND[row]),
        text=str(corpus.table("documents", np.array([row]))["title"][0]),
        titles=titles_of(corpus, [*positives.tolist(), *near.tolist()]),
        positives=positives,
        in_batch=pools[best],
        held=ids[held[best]],
        missed=ids[~held[best] & (ids >= 0)],
    )


def _pools(trained: TrainedDocuments, docs: I64) -> list[I64]:
    """Return the positives of all documents in each document's batch; empty if M4 did not train."""
    if trained.batches is None:
        return [np.zeros(0, np.int64) for _ in docs]
    batch_of = np.empty(len(trained.truth), np.int64)
    for number, batch in enumerate(trained.batches):
        batch_of[batch] = number
    return [np.unique(trained.truth.rows(trained.batches[batch_of[doc]]).indices) for doc in docs]
