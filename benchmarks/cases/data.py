"""Comparisons: reading a dataset, batches of tokens, the evaluator."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from transformers import AutoTokenizer

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from tests.naive import metrics as naive_metrics
from xc_core.ann import Exact
from xc_core.artifacts import building
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TEST
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokenizer import load as load_tokenizer
from xc_core.data.tokens import TokenStore
from xc_core.metrics.bootstrap import columns, percent, resamples
from xc_core.metrics.names import KS
from xc_core.metrics.ranking import per_document
from xc_core.metrics.report import BOOTSTRAPS, intervals
from xc_core.pretrained import minilm
from xc_core.shapes import F64, Shortlist


@case
def reading(world: World) -> list[Row]:
    """Ingest, including checks, hashes and Parquet, against a loop that reads the same JSON."""
    raw = world.workspace.raw(world.dataset)
    if not (raw / "trn.json.gz").is_file():
        return []

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder, building(Path(folder) / "corpus", kind="corpus") as target:
            ingest(raw, target, IngestConfig())

    def theirs() -> int:
        size = 0
        for name in ("trn", "tst", "lbl"):
            with gzip.open(raw / f"{name}.json.gz", "rt", encoding="utf-8") as lines:
                size += sum(len(json.loads(line)["content"]) for line in lines)
        return size

    count = len(world.corpus.labels) + world.corpus.labels.num_labels
    return [compare(f"ingest of {count:,} texts", ours, "json.loads, nothing checked or written", theirs, rounds=3)]


@case
def tokens(world: World) -> list[Row]:
    """Batches from the token store against tokenising again in every epoch."""
    tokenizer = load_tokenizer("minilm")
    texts = world.texts(8192)
    store = TokenStore.of_texts(texts, tokenizer)
    theirs = AutoTokenizer.from_pretrained(str(minilm()))
    batches = np.random.default_rng(0).permutation(len(texts) // 128 * 128).reshape(-1, 128)
    same = all(
        np.array_equal(
            store.batch(b, 64).ids_BT,
            theirs([texts[i] for i in b], padding=True, truncation=True, max_length=64, return_tensors="np")[
                "input_ids"
            ],
        )
        for b in batches[:8]
    )
    return [
        compare(
            f"{len(batches)} batches of 128",
            lambda: [store.batch(b, 64) for b in batches],
            "transformers' fast tokenizer",
            lambda: [
                theirs([texts[i] for i in b], padding=True, truncation=True, max_length=64, return_tensors="np")
                for b in batches
            ],
            rounds=3,
            note="the same ids" if same else "DIFFERENT ids",
        )
    ]


@case
def words(world: World) -> list[Row]:
    """The token ids of texts with the cache of words, empty at the start and then filled, against the tokenizer."""
    texts, backend = world.texts(20_000), load_tokenizer("minilm").backend
    filled = TextTokenizer.wrap("filled", backend)

    def theirs() -> list[list[int]]:
        return [encoded.ids for encoded in backend.encode_batch_fast(texts, add_special_tokens=False)]

    same = filled.encode(texts)[0].tolist() == [i for ids in theirs() for i in ids]
    note = "the same ids" if same else "DIFFERENT ids"
    return [
        compare(
            f"ids of {len(texts):,} texts, {name} cache",
            ours,
            "tokenizers, encode_batch_fast",
            theirs,
            note=note,
        )
        for name, ours in (
            ("empty", lambda: TextTokenizer.wrap("empty", backend).encode(texts)),
            ("filled", lambda: filled.encode(texts)),
        )
    ]


@case
def metrics(world: World) -> list[Row]:
    """The evaluator against a loop over documents and ranks."""
    rows, truth = world.split(TEST)
    short = Exact().build(world.rows_LD).search(np.ascontiguousarray(world.doc_ND[rows]), 100)
    weights = world.corpus.weights()
    ranked, sets = short.ids_NK.tolist(), [set(truth.row(i).tolist()) for i in range(len(truth))]
    ours = per_document(short, truth, weights).total()
    theirs = naive_metrics.metrics(ranked, sets, weights.tolist())
    gap = max(abs(ours[name] - theirs[name]) for name in theirs)
    return [
        compare(
            f"all metrics of {len(rows):,} documents",
            lambda: per_document(short, truth, weights).total(),
            "a loop over documents",
            lambda: naive_metrics.metrics(ranked, sets, weights.tolist()),
            note=f"{gap:.0e} points apart at most",
        ),
        *_large(),
    ]


def _large() -> list[Row]:
    """The evaluator on 130,000 documents x 100 labels, against scipy; the bootstrap against one of documents."""
    random, size, labels = np.random.default_rng(0), 130_000, 118_000
    truth = LabelMatrix.from_pairs(
        np.repeat(np.arange(size), 5), random.integers(0, labels // 2, 5 * size), (size, labels)
    )
    ids = random.integers(labels // 2, labels, (size, 100)).astype(np.int32)
    docs, positives = truth.pairs()
    hit = random.random(len(docs)) < 0.6
    ids[docs[hit], random.integers(0, 100, int(hit.sum()))] = positives[hit]
    short, weights = Shortlist(ids, np.zeros(ids.shape, np.float32)), 1 + 20 * random.random(labels)
    figures = per_document(short, truth, weights)
    table = columns(figures, list(figures.num))
    recall = float(figures.num["R_at_100"].sum()), float(_scipy(short, truth, weights)[-1].sum())

    def theirs() -> None:
        for drawn in resamples(np.random.default_rng(0), size, BOOTSTRAPS):
            percent(drawn @ table)

    return [
        compare(
            f"all metrics of {size:,} documents x 100",
            lambda: per_document(short, truth, weights),
            "scipy's sparse matrices",
            lambda: _scipy(short, truth, weights),
            note=f"sums of R@100 {recall[0]:.6f} and {recall[1]:.6f}",
        ),
        compare(
            f"{BOOTSTRAPS:,} resamples of {size:,} documents",
            lambda: intervals(figures, seed=0),
            "resamples of documents",
            theirs,
            rounds=3,
            note="widths within 3 % (lab notes)",
        ),
    ]


def _scipy(short: Shortlist, truth: LabelMatrix, weights: F64) -> list[F64]:
    """P@k, nDCG@k and PSP@k for k = 1, 3, 5 and R@100 as pyxclib finds them: products of sparse matrices."""
    data = np.ones(len(truth.indices))
    positives = sparse.csr_matrix((data, truth.indices, truth.indptr), truth.shape)
    indptr = np.arange(len(short) + 1) * short.k
    ranks = np.tile(np.arange(1.0, short.k + 1), len(short))
    hits = sparse.csr_matrix((ranks, short.ids_NK.ravel(), indptr), truth.shape).multiply(positives).tocsr()
    hit_ranks, gains = hits.data, weights[hits.indices]
    docs = np.repeat(np.arange(len(short)), np.diff(hits.indptr))
    out: list[Any] = []
    for k in KS:
        for values in (np.ones(len(hit_ranks)), 1 / np.log2(hit_ranks + 1), gains):
            out.append(np.bincount(docs, np.where(hit_ranks <= k, values, 0.0), minlength=len(short)))
    return [*out, np.bincount(docs, minlength=len(short)) / np.maximum(truth.counts_N, 1)]
