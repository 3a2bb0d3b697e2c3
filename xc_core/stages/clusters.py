"""Stage clusters: balanced clusters of train and validation documents, for an M4 that trains on whole clusters."""

from __future__ import annotations

from xc_core.chain.context import Context
from xc_core.cluster import Clusters, balanced_clusters, cohesion, placed
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.recipes.settings import ClustersSettings


def run(context: Context[ClustersSettings]) -> None:
    """Cluster the documents' vectors; test documents are left out."""
    rows_N = context.read(Corpus).published_rows()
    doc_ND = placed(context.read(Embeddings).documents_ND[rows_N])
    clusters = Clusters(rows_N, *balanced_clusters(doc_ND, context.settings.size, context.settings.seed))
    clusters.write(context.build)
    context.build.facts["cohesion"] = cohesion(doc_ND, clusters.order_N, clusters.sizes)
    facts = context.build.facts
    context.report(
        f"clusters: {facts['clusters']:,} of {facts['smallest']} to {facts['largest']} documents, "
        f"cohesion {facts['cohesion']:.3f}"
    )
