"""Comparisons: searches of vectors, and a whole answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from xc_core.ann import Exact, Ivf, recall
from xc_core.data.splits import TEST, VALIDATION
from xc_core.infer.bundle import Model
from xc_core.pretrained import minilm
from xc_core.scores import Neighbours
from xc_core.shapes import F32, Shortlist

Search = Callable[[F32, int], Any]


@case
def search(world: World) -> list[Row]:
    """Exact search of the classifier rows against faiss, for all queries at once and for one query."""
    rows_LD, k = world.rows_LD, 100
    queries = np.ascontiguousarray(world.doc_ND[world.split(VALIDATION)[0]])
    exact = Exact().build(rows_LD)
    flat = faiss.IndexFlatIP(rows_LD.shape[1])
    flat.add(rows_LD)
    truth = exact.search(queries, k)
    ids = flat.search(queries, k)[1].astype(np.int32)
    same = recall(Shortlist.ranked(ids, np.zeros(ids.shape, np.float32)), truth)
    what, note = f"{k} best of {len(rows_LD):,} labels", f"{same:.3%} of the labels"
    return _many_and_one(what, exact.search, "faiss IndexFlatIP", flat.search, (queries, k), note)


@case
def cells(world: World) -> list[Row]:
    """Search of the nearest documents in cells, as the score neighbours does for many, against exact search."""
    docs = np.ascontiguousarray(world.doc_ND[world.corpus.published_rows()])
    queries = np.ascontiguousarray(world.doc_ND[world.split(TEST)[0][:2000]])
    settings = Neighbours()
    nearest = settings.nearest
    ours, exact = Ivf(probes=settings.probes).build(docs), Exact().build(docs)
    share = recall(ours.search(queries, nearest), exact.search(queries, nearest))
    what, note = f"{nearest} nearest of {len(docs):,} documents", f"{share:.1%} of the documents"
    return _many_and_one(what, ours.search, "all compared", exact.search, (queries, nearest), note)


def _many_and_one(
    what: str, ours: Search, other: str, theirs: Search, search_arguments: tuple[F32, int], note: str
) -> list[Row]:
    """Compare two searches of the k best labels or documents, for all queries at once and for the first alone."""
    queries, k = search_arguments
    first = np.ascontiguousarray(queries[:1])
    return [
        compare(
            f"{what}, {len(queries):,} queries", lambda: ours(queries, k), other, lambda: theirs(queries, k), note=note
        ),
        compare(f"{what}, 1 query", lambda: ours(first, k), other, lambda: theirs(first, k), rounds=200),
    ]


@case
def answer(world: World) -> list[Row]:
    """A whole answer, from a text to five labels, against an encoder and products with all label texts alone."""
    predictor = world.read(Model).predictor()
    texts = world.texts(200)
    tokenizer = AutoTokenizer.from_pretrained(str(minilm()))
    model = AutoModel.from_pretrained(str(minilm())).eval()
    labels = torch.from_numpy(world.label_LD[:, : model.config.hidden_size])
    our_texts, their_texts = cycle(texts), cycle(texts)

    def theirs() -> Tensor:
        batch = tokenizer([next(their_texts)], truncation=True, max_length=64, return_tensors="pt")
        with torch.inference_mode():
            vector = torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(1))
            return (vector @ labels.T).topk(5).indices

    return [
        compare(
            f"an answer of {world.recipe}, {len(labels):,} labels",
            lambda: predictor.predict([next(our_texts)], 5),
            "transformers and all products with label texts",
            theirs,
            rounds=200,
            note="not the same labels: the other has one score, ours all of the recipe's",
        )
    ]
