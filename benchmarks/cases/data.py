"""Comparisons: reading a dataset, batches of tokens, the evaluator."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from tests.naive import metrics as naive_metrics
from xc_core.ann import Exact
from xc_core.artifacts import building
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.data.splits import TEST
from xc_core.data.tokenizer import load as load_tokenizer
from xc_core.data.tokens import TokenStore
from xc_core.metrics.ranking import per_document
from xc_core.pretrained import minilm


@case
def reading(world: World) -> list[Row]:
    """Ingest, including checks, hashes and Parquet, against a loop that reads the same JSON."""
    raw = world.workspace.raw(world.dataset)
    if not (raw / "trn.json.gz").is_file():
        return []

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder, building(Path(folder) / "corpus", kind="corpus") as at:
            ingest(raw, at, IngestConfig())

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
    batches = np.random.default_rng(0).permutation(len(texts)).reshape(-1, 128)
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
        )
    ]
