"""Stage index: what serving searches, over classifier rows and label texts, with recall against exact search.

Takes: corpus, embeddings, classifier.          Gives: by_row/, by_text/, report.json.
May import: ann, bundle, data, shapes, stages.runner.  Never: measures recall on test rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from xc_core.ann import IndexConfig, build_index, recall
from xc_core.artifacts import verify
from xc_core.bundle import write_index
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.progress import report
from xc_core.shapes import F32, Embeddings
from xc_core.stages.runner import Context


def run(context: Context) -> None:
    """Build both indexes and measure each."""
    config = context.config
    corpus = Corpus.open(context.input("corpus"))
    for name in ("embeddings", "classifier"):
        verify(context.input(name), kind=name)
    rows_LD = np.load(context.input("classifier") / "rows.npy")
    label_LD = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
    doc_ND = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
    rows = corpus.rows(VALIDATION)
    queries = np.ascontiguousarray(doc_ND[(rows if len(rows) else corpus.rows(TRAIN))[: config.queries]])
    by_row = rows_LD + label_LD if config.joined else rows_LD
    facts: dict[str, object] = {"kind": config.rows.resolve(len(rows_LD)), "labels": len(rows_LD)}
    for name, vectors in (("by_row", by_row), ("by_text", label_LD if config.texts else None)):
        if vectors is not None:
            facts[f"recall_{name}"] = _build(context, name, vectors, queries, config.rows)
    context.build.json("report.json", facts)
    context.build.facts |= facts
    report(f"index: {facts['kind']} over {len(rows_LD):,} labels, recall {facts['recall_by_row']:.3f}")


def _build(context: Context, name: str, vectors_LD: F32, queries: F32, config: IndexConfig) -> float:
    """Write one index and return its recall at k, measured on validation documents."""
    index = build_index(vectors_LD, config)
    write_index(context.build.path / name, index, config)
    exact = build_index(vectors_LD, dataclasses.replace(config, kind="exact"))
    return recall(index.search(queries, config.k), exact.search(queries, config.k))
