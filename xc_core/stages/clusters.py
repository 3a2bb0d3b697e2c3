"""Stage clusters: balanced clusters of the train documents, the batch order of M4, with the figures of Theorem 1.

Takes: corpus, embeddings.                           Gives: order.npy, sizes.npy, quality.json, perhaps refit_*.
May import: cluster, data, encoders, sampling, stages.runner.  Never: reads test rows.

``refit_order.npy`` and ``refit_sizes.npy`` are of train and validation documents, where M4 is trained on both.
"""

from __future__ import annotations

import math
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
from xc_core.sampling.order import ClusteredOrder, within
from xc_core.shapes import F32, I64, Bool, Embeddings
from xc_core.stages.runner import Context

REFIT: Final = "refit_"
HELD: Final = ("held/0", "held/1")
"""The folders, inside the artefact of M4, of what has not seen one half of the validation documents."""


def refits(corpus: Corpus, config: ClassifierStage) -> bool:
    """Return whether M4 learns on validation documents too: where it is to, and where there are any."""
    return config.refit and len(corpus.published_rows()) > len(corpus.rows(TRAIN))


def trainings(corpus: Corpus, *, refit: bool, enough: float = math.inf) -> dict[str, I64]:
    """Return the documents of each training of M4, by the folder in its artefact, that of what serves ("") last.

    With ``refit``, two others, "held/0" and "held/1", leave out the half of the validation documents that they are to
    score; where the first half has ``enough`` documents, the second training is left out. A document is of the same
    half for ever, so that rows which are kept when documents come never saw theirs.
    """
    if not refit:
        return {"": corpus.rows(TRAIN)}
    published, halves = corpus.published_rows(), corpus.validation_halves()
    needed = HELD[:1] if len(halves[0]) >= enough else HELD
    return {**{name: np.setdiff1d(published, halves[i]) for i, name in enumerate(needed)}, "": published}


def batch_order(context: Context, config: ClassifierStage, size: int, kept_N: Bool | None = None) -> BatchOrder:
    """Return the order in which M4 meets ``size`` documents; where it is clustered, on this stage's clusters.

    They are the train documents; with ``kept_N`` those it marks among train and validation documents, in file order.
    """
    if not config.order.clusters:
        return ORDERS[config.order.kind](config.order, size, config.seed)
    folder, prefix = context.input("clusters"), "" if kept_N is None else REFIT
    clusters = np.load(folder / f"{prefix}order.npy"), np.load(folder / f"{prefix}sizes.npy")
    if kept_N is not None:
        clusters = within(clusters, kept_N)
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
    if recipe.classifier.order.clusters and refits(corpus, recipe.classifier):
        _write(context, vectors_ND[corpus.published_rows()], REFIT)
    truth = corpus.labels.rows(rows)
    if verified.facts.get("heads", 1) > 1:  # the theorem is about what faces label texts, the first half
        doc_ND = split(torch.from_numpy(doc_ND), 2)[0].numpy()
        label_LD = label_LD[:, : doc_ND.shape[1]]
    known = truth.union(corpus.filters.rows(rows))
    measured = theorem1((doc_ND, label_LD), truth, known, (order, sizes), radius=config.radius, seed=config.seed)
    figures = measured.as_dict()
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
