"""Proof of scale: a table of many labels with planted structure is trained, searched and evaluated in bounded memory.

``python -m benchmarks.scale --labels 10000000``; for 100 million: ``--labels 100000000 --mapped --active 51200 --epochs
5 --queries 200``. Every document has one label; its vector is the label's hidden vector plus
noise. Rows start at zero, so before the training no label is found. Train and query documents share no noise.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.harness import machine, today
from xc_core.ann import Exact
from xc_core.chain.costs import peak_memory_mb
from xc_core.classifiers import TableConfig, TableHead
from xc_core.data.labels import LabelMatrix
from xc_core.losses import Bce
from xc_core.sampling import Documents, Mixture, Random
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, Shortlist
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings, TableData, table_task
from xc_core.train.loop import Plan, fit

WIDTH = 64
EACH = 4
"""Train documents of each active label."""
NOISE = 1.0
"""Length of the noise; the label's hidden vector has length 1."""


def noisy(hidden_ND: F32, purpose: str) -> F32:
    """Return the vectors of documents of these labels, as unit vectors."""
    width = hidden_ND.shape[1]
    noise = generator(0, purpose).standard_normal(hidden_ND.shape, np.float32) * np.float32(NOISE / np.sqrt(width))
    vectors = hidden_ND + noise
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def search(head: TableHead, queries_BD: F32, k: int) -> Shortlist:
    """Return the k best of all labels for each query; rows are read block by block."""
    best, offset = Shortlist.nothing(len(queries_BD)), 0
    for part in head.released_blocks():
        block_best = Exact().build(part.numpy()).search(queries_BD, k)
        ids = np.concatenate([best.ids_NK, np.where(block_best.ids_NK < 0, -1, block_best.ids_NK + offset)], axis=1)
        best = Shortlist.ranked(ids, np.concatenate([best.scores_NK, block_best.scores_NK], axis=1)).top(k)
        offset += len(part)
    return best


def peak() -> float:
    """Return the largest resident memory of this process so far, in GB (10^9 bytes), mapped files included."""
    return peak_memory_mb() * (1 << 20) / 1e9


@click.command()
@click.option("--labels", default=10_000_000, show_default=True)
@click.option("--active", default=200_000, show_default=True, help="Labels with train documents.")
@click.option("--epochs", default=4.0, show_default=True)
@click.option("--queries", default=1000, show_default=True)
@click.option("--mapped", is_flag=True, help="Rows in bf16 in a memory-mapped file, instead of fp32 in memory.")
@click.option("--folder", type=Path, default=None, help="Where the mapped file is.")
def main(labels: int, active: int, epochs: float, queries: int, mapped: bool, folder: Path | None) -> None:
    """Train, search and evaluate; print times and peak memory."""
    click.echo(f"{today()}, {machine()}")
    storage, precision = ("mapped", "bf16") if mapped else ("memory", "fp32")
    random = generator(0, "hidden")
    ids_A: I64 = np.sort(random.choice(labels, active, replace=False, shuffle=False))
    hidden_AD = random.standard_normal((active, WIDTH), np.float32)
    hidden_AD /= np.linalg.norm(hidden_AD, axis=1, keepdims=True)
    label_N = np.repeat(np.arange(active), EACH)
    truth = LabelMatrix.from_pairs(np.arange(len(label_N)), ids_A[label_N], (len(label_N), labels))
    doc_ND = noisy(hidden_AD[label_N], "documents")
    settings = ClassifierSettings(
        order=Random(batch_size=512),
        negatives=Mixture(positives=0, uniform=1000),
        loss=Bce(temperature=0.05, bias=5.0),
        table=TableConfig(start="zero", unit=False, lr=0.05, storage=storage, precision=precision),
        epochs=epochs,
    )
    zeros_LD = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (labels, WIDTH), (0, 0))  # 4 bytes
    task = table_task(settings, TableData(doc_ND, zeros_LD, zeros_LD, Documents(truth), folder=folder))
    click.echo(f"{labels:,} labels x {WIDTH}, {precision}, {storage}; {len(label_N):,} documents of {active:,} labels")
    query_labels = generator(0, "asked").integers(0, active, queries)
    query_BD = noisy(hidden_AD[query_labels], "queries")
    with tempfile.TemporaryDirectory() as scratch:
        start, wall = time.process_time(), time.perf_counter()
        plan = Plan(epochs=epochs, warmup=0.03, checkpoint_seconds=1e9)
        history = fit(task, plan, Checkpoints(Path(scratch) / "run", "scale"))
        seconds, wall = time.process_time() - start, time.perf_counter() - wall
    steps = len(history.losses)
    click.echo(f"training: {steps:,} steps, {1000 * seconds / steps:.1f} ms CPU and {1000 * wall / steps:.1f} ms each")
    click.echo(f"peak memory after training: {peak():.2f} GB")
    start = time.process_time()
    results = search(task.head, query_BD, 5)
    click.echo(f"search: {queries:,} queries in {time.process_time() - start:.1f} s CPU")
    click.echo(f"P@1 {float((results.ids_NK[:, 0] == ids_A[query_labels]).mean()):.3f} of {labels:,} labels (start: 0)")
    nearest = Exact().build(hidden_AD).search(query_BD, 1).ids_NK[:, 0]
    click.echo(f"P@1 of the hidden vectors among the active labels: {float((nearest == query_labels).mean()):.3f}")
    click.echo(f"peak memory: {peak():.2f} GB")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
