"""Stage negatives (M2): hard negatives of train and validation documents, by a search over the label texts' vectors.

Empty for a recipe whose M4 finds its own negatives (k = 0). A known positive is never a negative.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.ann import Exact, mining_part, recall, spread
from xc_core.chain.context import Context
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.distributed import World
from xc_core.recipes.settings import NegativesSettings
from xc_core.sampling import search_negatives
from xc_core.sampling.hard import HardNegatives
from xc_core.shapes import Shortlist
from xc_core.visible import counted

_RECALL_DOCUMENTS: Final = 1000
"""Documents on which the recall of the search is measured, at most; evenly spread."""


def run(context: Context[NegativesSettings]) -> None:
    """Search, remove positives, and measure recall against exact search; several processes share the labels."""
    if not context.settings.k:
        HardNegatives(np.zeros(0, np.int64), Shortlist.nothing(0)).write(context.build)
        context.report("negatives: none are mined (negatives.k = 0)")
        return
    _mine(context)


def _mine(context: Context[NegativesSettings]) -> None:
    corpus, embeddings, settings = context.read(Corpus), context.read(Embeddings), context.settings
    world = World.from_environment()
    rows_N = corpus.published_rows()
    excluded = corpus.labels.rows(rows_N).union(corpus.filters.rows(rows_N))
    doc_ND, label_LD = embeddings.documents_ND, embeddings.labels_LD
    index = spread(mining_part(settings.index.for_batches()), label_LD, world)
    mined = search_negatives(index, doc_ND, rows_N, excluded, settings.k)
    HardNegatives(rows_N, mined).write(context.build)
    sample = np.arange(0, len(rows_N), max(-(-len(rows_N) // _RECALL_DOCUMENTS), 1))
    exact = search_negatives(
        spread(Exact(), label_LD, world), doc_ND, rows_N[sample], excluded.rows(sample), settings.k
    )
    context.build.facts["recall"] = recall(mined.rows(sample), exact)
    context.report(
        f"negatives: {settings.k} for each of {counted(len(rows_N), 'document')}, "
        f"search recall {context.build.facts['recall']:.3f}"
    )
