"""Stage clusters: balanced clusters of the train documents, the batch order of M4, with the figures of Theorem 1.

Takes: corpus, embeddings.                           Gives: order.npy, sizes.npy, quality.json, perhaps refit_*.
May import: cluster, data, encoders, sampling, stages.runner.  Never: reads test rows.

``refit_order.npy`` and ``refit_sizes.npy`` are of train and validation documents, where M4 is trained on both.
"""

from __future__ import annotations

from typing import Final

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
from xc_core.shapes import F32, I64, Embeddings
from xc_core.stages.runner import Context

REFIT: Final = "refit_"
CLUSTERED: Final = "clustered"


def refits(corpus: Corpus, config: ClassifierStage) -> bool:
    """Return whether M4 is trained twice; without validation documents it has nothing more to learn on."""
    return config.refit and len(corpus.published_rows()) > len(corpus.rows(TRAIN))


def batch_order(context: Context, config: ClassifierStage, size: int, *, refit: bool = False) -> BatchOrder:
    """Return the order in which M4 meets ``size`` documents; where it is clustered, on this stage's clusters.

    They are the train documents; with ``refit`` those of validation too.
    """
    if config.order.kind != CLUSTERED:
        return ORDERS[config.order.kind](config.order, size, config.seed)
    folder, prefix = context.input("clusters"), REFIT if refit else ""
    clusters = np.load(folder / f"{prefix}order.npy"), np.load(folder / f"{prefix}sizes.npy")
    return ClusteredOrder.fixed(config.order, clusters, config.seed)


def run(context: Context) -> None:
    """Cluster and measure; positions count within the train rows."""
    config = context.config
    corpus = Corpus.open(context.input("corpus"))
    verified = verify(context.input("embeddings"), kind="embeddings")
    rows = corpus.rows(TRAIN)
    vectors_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
    doc_ND = vectors_ND[rows]
    label_LD = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
    order, sizes = _write(context, doc_ND)
    recipe = context.experiment.recipe
    assert recipe is not None
    if recipe.classifier.order.kind == CLUSTERED and refits(corpus, recipe.classifier):
        _write(context, vectors_ND[corpus.published_rows()], REFIT)
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


def _write(context: Context, doc_ND: F32, prefix: str = "") -> tuple[I64, I64]:
    """Cluster documents, write order and sizes, and return them."""
    order, sizes = balanced_clusters(doc_ND, context.config.size, context.config.seed)
    np.save(context.build.path / f"{prefix}order.npy", order)
    np.save(context.build.path / f"{prefix}sizes.npy", sizes)
    return order, sizes
