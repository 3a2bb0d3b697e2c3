"""Stage clusters: balanced clusters of the train documents, the batch order of M4, with the figures of Theorem 1.

Takes: corpus, embeddings.                           Gives: order.npy, sizes.npy, quality.json.
May import: cluster, data, encoders, sampling, stages.runner.  Never: reads validation or test rows.
"""

from __future__ import annotations

import numpy as np
import torch

from xc_core.artifacts import verify
from xc_core.cluster import balanced_clusters, cohesion, theorem1
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.encoders.heads import split
from xc_core.progress import report
from xc_core.recipes.base import ClassifierStage
from xc_core.sampling import ORDERS, BatchOrder
from xc_core.sampling.order import ClusteredOrder
from xc_core.shapes import Embeddings
from xc_core.stages.runner import Context


def batch_order(context: Context, config: ClassifierStage, size: int) -> BatchOrder:
    """Return the order in which M4 meets ``size`` train documents; where it is clustered, on this stage's clusters."""
    if config.order.kind != "clustered":
        return ORDERS[config.order.kind](config.order, size, config.seed)
    folder = context.input("clusters")
    clusters = np.load(folder / "order.npy"), np.load(folder / "sizes.npy")
    return ClusteredOrder.fixed(config.order, clusters, config.seed)


def run(context: Context) -> None:
    """Cluster and measure; positions count within the train rows."""
    config = context.config
    corpus = Corpus.open(context.input("corpus"))
    verified = verify(context.input("embeddings"), kind="embeddings")
    rows = corpus.rows(TRAIN)
    doc_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND[rows]
    label_LD = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
    order, sizes = balanced_clusters(doc_ND, config.size, config.seed)
    np.save(context.build.path / "order.npy", order)
    np.save(context.build.path / "sizes.npy", sizes)
    truth = corpus.labels.rows(rows)
    if verified.facts.get("heads", 1) > 1:  # the theorem is about what faces label texts, the first half
        doc_ND = split(torch.from_numpy(doc_ND), 2)[0].numpy()
        label_LD = label_LD[:, : doc_ND.shape[1]]
    figures = theorem1(doc_ND, label_LD, truth, (order, sizes), radius=config.radius, seed=config.seed).as_dict()
    quality = {
        "clusters": len(sizes),
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "cohesion": cohesion(doc_ND, order, sizes),
        "theorem1": figures,
    }
    context.build.json("quality.json", quality)
    context.build.facts |= quality
    report(
        f"clusters: {len(sizes):,} of {sizes.min()} to {sizes.max()}, cohesion {quality['cohesion']:.3f}; "
        f"hard negatives missed {figures['missed']:.2e} <= bound {figures['bound']:.2e}"
    )
