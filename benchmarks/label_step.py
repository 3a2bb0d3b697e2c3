"""A step of the label table beside plain ways of the same, in turn in one process.

Run it as ``python -m benchmarks.label_step``. The peer is what a user writes without this table: an embedding with
sparse gradients, one pool of labels for the batch, autograd, and SGD. CPU time of one thread, medians; a batch has 128
documents with 5 positives each, and a pool 2,000 uniform negatives.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.harness import machine
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.data.labels import LabelMatrix
from xc_core.losses import Bce
from xc_core.sampling import All, Documents, LabelPool, Mixture, Pool
from xc_core.seeds import generator
from xc_core.shapes import F32, I64

BATCH, POSITIVES, NEGATIVES, DOCUMENTS = 128, 5, 2000, 20_000
Step = Callable[[F32, LabelPool], None]


def ours(labels: int, width: int, **settings: Any) -> TableHead:
    """Return a table of random rows."""
    pattern = torch.randn(1000, width, generator=torch.Generator().manual_seed(0)) * 0.05
    table = LabelTable(torch.zeros(1).expand(labels, width), TableConfig(unit=False, **settings))
    for first in range(0, labels, 1000):
        table.rows_LD[first : first + 1000] = pattern[: labels - first]
    loss = Bce(temperature=0.05, bias=10.0)
    return TableHead(table, loss.build(), loss.divisor)


def peer(labels: int, width: int) -> Step:
    """Return a step of a sparse embedding with SGD."""
    rows = torch.nn.Embedding(labels, width, sparse=True)
    sgd = torch.optim.SGD(rows.parameters(), lr=0.01)

    def step(doc_BD: F32, pool: LabelPool) -> None:
        scores = torch.from_numpy(doc_BD) @ rows(torch.from_numpy(pool.labels_U)).T
        targets = torch.from_numpy(pool.chosen_BU).float()
        loss = binary_cross_entropy_with_logits(scores / 0.05 - 10.0, targets, reduction="sum") / len(doc_BD)
        sgd.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()

    return step


def products(doc_BD: F32, pool: Pool, width: int) -> Callable[[], object]:
    """Return the floor: the two products of a step, on rows that are in order and in a buffer."""
    rows, doc = torch.zeros(len(pool.labels_U), width), torch.from_numpy(doc_BD)
    slope, scores, gradient = (
        torch.zeros(shape) for shape in ((len(rows), len(doc)), (len(doc), len(rows)), rows.shape)
    )
    return lambda: (torch.mm(doc, rows.T, out=scores), torch.mm(slope, doc, out=gradient))


def medians(works: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of CPU time of each work; they run in turn, after two rounds of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 2):
        for name, work in works.items():
            start = time.process_time()
            work(number)
            if number >= 2:
                times[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def world(labels: int, width: int) -> tuple[F32, Documents]:
    """Return random documents with random labels."""
    random = generator(0, "label step")
    pairs = np.repeat(np.arange(DOCUMENTS), POSITIVES), random.integers(0, labels, POSITIVES * DOCUMENTS)
    doc_ND = random.standard_normal((DOCUMENTS, width), np.float32) / np.float32(np.sqrt(width))
    return doc_ND, Documents(LabelMatrix.from_pairs(*pairs, (DOCUMENTS, labels)))


def batch(number: int) -> I64:
    """Return the documents of a step."""
    return np.arange(number * BATCH, (number + 1) * BATCH) % DOCUMENTS


def sampled(labels: int, width: int, rounds: int) -> str:
    """Return a row of the table: a step on a sample of the labels."""
    doc_ND, documents = world(labels, width)
    source = Mixture(positives=0, uniform=NEGATIVES).build(documents, 0)
    drawn = (source.pool(batch(number), number) for number in range(rounds + 2))
    pools = [pool for pool in drawn if isinstance(pool, LabelPool)]
    heads = {"fp32": ours(labels, width), "bf16": ours(labels, width, precision="bf16")}
    peer_step, floor = peer(labels, width), products(doc_ND[batch(0)], pools[0], width)

    def step(head: TableHead) -> Callable[[int], object]:
        return lambda n: head.descend(torch.from_numpy(doc_ND[batch(n)]), pools[n], batch(n), 1.0)

    milliseconds = medians(
        {name: step(head) for name, head in heads.items()}
        | {"peer": lambda n: peer_step(doc_ND[batch(n)], pools[n]), "floor": lambda _: floor()},
        rounds,
    )
    size = statistics.mean(len(pool.labels_U) for pool in pools)
    cells = [f"{labels:,} x {width}", f"{size:,.0f}", *(f"{milliseconds[name]:.1f}" for name in milliseconds)]
    ratios = [
        f"{milliseconds['fp32'] / milliseconds['peer']:.2f}",
        f"{milliseconds['fp32'] / milliseconds['floor']:.2f}",
    ]
    per_row = f"{1e6 * milliseconds['fp32'] / size:,.0f} ns"
    return f"| {' | '.join([*cells, *ratios, per_row])} |"


def full(labels: int, width: int, rounds: int) -> str:
    """Return a line: one step on all labels, and its two products."""
    doc_ND, documents = world(labels, width)
    head, source = ours(labels, width), All(positives=0).build(documents, 0)
    docs, part = batch(0), np.arange(2048)
    pool = source.pool(docs, 0)
    floor = products(doc_ND[docs], pool.only(part), width)
    milliseconds = medians(
        {
            "ours": lambda _: head.descend(torch.from_numpy(doc_ND[docs]), pool, docs, 1.0),
            "floor": lambda _: [floor() for _ in range(labels // len(part))],
        },
        rounds,
    )
    step_seconds, product_seconds = milliseconds["ours"] / 1e3, milliseconds["floor"] / 1e3
    times = f"{step_seconds:.2f} s, two products {product_seconds:.2f} s"
    return f"one-vs-all, {labels:,} x {width}: {times}, ratio {step_seconds / product_seconds:.2f}"


@click.command()
@click.option("--rounds", default=15, show_default=True)
@click.option("--largest", default=10_000_000, show_default=True, help="Labels of the largest table of width 64.")
def main(rounds: int, largest: int) -> None:
    """Print the steps as a table."""
    torch.set_num_threads(1)
    click.echo(machine())
    click.echo(
        "| rows | touched | fp32 ms | bf16 ms | peer ms | two products ms | to peer | to products | a touched row |"
    )
    click.echo("| --- " + "| ---: " * 8 + "|")
    for labels, width in ((100_000, 768), (10_000, 384), (100_000, 384), (1_000_000, 384)):
        click.echo(sampled(labels, width, rounds))
    for labels in (10_000, 1_000_000, largest):
        click.echo(sampled(labels, 64, rounds))
    click.echo(full(1_000_000, 384, 5))


if __name__ == "__main__":
    main()
