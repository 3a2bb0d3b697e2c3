"""Stage negatives (M2): hard negatives from a search over label texts; for NGAME an audit of what batches hold anyway.

Takes: corpus, embeddings, clusters.                    Gives: hard_negatives.npz (docs, ids, scores), report.json.
May import: ann, data, sampling, shapes, stages.runner.  Never: returns a known positive as a negative.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from xc_core.ann import build_index, recall
from xc_core.artifacts import verify
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN
from xc_core.progress import report
from xc_core.sampling import ORDERS, audit_batches, hard_negatives, search_rows
from xc_core.sampling.order import ClusteredOrder
from xc_core.seeds import generator
from xc_core.shapes import I64, Embeddings, Shortlist
from xc_core.stages.runner import Context


def run(context: Context) -> None:
    """Search, take positives out, and measure recall against exact search and the share that batches hold."""
    config = context.config
    corpus = Corpus.open(context.input("corpus"))
    verify(context.input("embeddings"), kind="embeddings")
    rows = corpus.rows(TRAIN)
    truth = corpus.labels.rows(rows)
    known = truth.union(corpus.filters.rows(rows))
    doc_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
    label_LD = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
    docs = np.arange(len(rows))
    sample = np.sort(generator(config.seed, "audit").choice(docs, min(config.sample, len(docs)), replace=False))
    chosen = docs if config.use == "train" else sample
    width = config.k + int(known.counts_N.max(initial=0))
    index = build_index(label_LD, config.index)
    found = search_rows(index, doc_ND, rows[chosen], width)
    negatives = hard_negatives(found, known.rows(chosen), config.k)
    np.savez(
        context.build.path / "hard_negatives.npz",
        docs=chosen, ids=negatives.ids_NK, scores=negatives.scores_NK,
    )  # fmt: skip
    exact = build_index(label_LD, dataclasses.replace(config.index, kind="exact"))
    few = np.searchsorted(chosen, sample)
    held = _held(context, truth, negatives.rows(few), sample)
    facts = {
        "use": config.use,
        "documents": len(chosen),
        "k": config.k,
        "recall": recall(found.rows(few), search_rows(exact, doc_ND, rows[sample], width)),
        "held_by_clustered_batches": held["clustered"],
        "held_by_random_batches": held["random"],
    }
    context.build.json("report.json", facts)
    context.build.facts |= facts
    report(
        f"negatives: batches of clusters hold {_told(held['clustered'])} of the {config.k} hardest negatives, "
        f"random ones {_told(held['random'])}; search recall {facts['recall']:.3f}"
    )


def _told(share: float) -> str:
    """Return a share in percent; a document that has every label has no negatives to hold."""
    return "none" if math.isnan(share) else f"{share:.1%}"


def _held(context: Context, truth: LabelMatrix, negatives: Shortlist, docs: I64) -> dict[str, float]:
    """Return the share of hard negatives that the batches of M4 hold, clustered and, for comparison, random."""
    recipe = context.experiment.recipe
    assert recipe is not None
    config = recipe.classifier.order
    folder = context.input("clusters")
    clusters = np.load(folder / "order.npy"), np.load(folder / "sizes.npy")
    orders = {
        "clustered": ClusteredOrder.fixed(config, clusters, recipe.classifier.seed),
        "random": ORDERS["random"](config, len(truth), recipe.classifier.seed),
    }
    return {name: audit_batches(negatives, docs, truth, order.batches(0)) for name, order in orders.items()}
