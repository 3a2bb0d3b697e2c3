"""``make gpu-proof``: what a GPU does with this code, as a table in docs/results.md.

Losses beside the CPU's, share of the card's bf16 rate, label steps, exact search, and recipes within a budget.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import torch

from benchmarks.harness import today
from xc_core import artifacts
from xc_core.ann import ExactIndex
from xc_core.chain import STAGES, Workspace
from xc_core.chain.costs import processor
from xc_core.chain.on_gpu import GPU_RATES
from xc_core.chain.runner import read_costs
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokens import TokenStore
from xc_core.devices import CPU, VARIABLE, Device
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.errors import CorruptError, XCError
from xc_core.losses import Bce
from xc_core.metrics.evaluation import FUSION, Evaluation
from xc_core.recipes import find_recipe
from xc_core.sampling import LabelPool
from xc_core.seeds import generator
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task

RECIPES: Final = ("ngame", "unidec", "astra", "house")
TOLERANCE: Final = 1e-3
"""Relative difference of a step's loss from the CPU's, both in fp32: sums in another order, amplified by the steps."""
BEGIN, END = "<!-- gpu-proof: begin -->", "<!-- gpu-proof: end -->"
_GOAL: Final = 0.45
"""Share of the card's bf16 rate that a step of M1 should reach."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    found: str
    wanted: str = ""


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the defaults are for a GPU, tests use smaller ones."""

    encoder: str = "minilm"
    documents: int = 20_000
    batch: int = 1024
    steps: int = 12
    rows: tuple[int, ...] = (1_000_000, 10_000_000)
    width: int = 384
    pool: int = 8192
    searched: int = 1_000_000
    queries: int = 16_384
    product: int = 8192


def losses(device: Device, sizes: Sizes) -> list[Row]:
    """Return the largest relative difference of a loss from the CPU's, in a few steps of each recipe, in fp32."""
    few = replace(sizes, documents=min(sizes.documents, 512), batch=min(sizes.batch, 64))
    rows = []
    for name in RECIPES:
        ours, theirs = (_losses(training(name, place, few, precision="fp32")) for place in (device, CPU))
        worst = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours, theirs, strict=True))
        rows.append(Row(f"M1 of {name}: loss beside the CPU's, 4 steps", f"{worst:.1e}", f"at most {TOLERANCE:.0e}"))
    return rows


def _losses(task: EncoderTask) -> list[float]:
    found = [task.step(batch, step, 1.0) for step, batch in enumerate(task.batches(0)[:4])]
    return [float(loss) / max(float(count), 1.0) for loss, count in found]


def training(recipe: str, device: Device, sizes: Sizes, *, precision: str = "auto") -> EncoderTask:
    """Return M1 of a recipe on random titles of 6 to 30 tokens, with two labels per document."""
    settings = find_recipe(recipe).encoder
    config = replace(settings.encoder, name=sizes.encoder, precision=precision)
    if sizes.encoder == "bag":
        config = EncoderConfig(name="bag", width=16, precision=precision, heads=config.heads)
    order = replace(settings.order, batch_size=sizes.batch)
    random, labels = generator(0, "gpu-proof"), max(sizes.documents // 4, 8)
    documents, texts = (_titles(random, size) for size in (sizes.documents, labels))
    pairs = np.repeat(np.arange(sizes.documents), 2), random.integers(0, labels, 2 * sizes.documents)
    truth = LabelMatrix.from_pairs(*pairs, (sizes.documents, labels))
    make = EncoderData.with_label_texts if settings.augment else EncoderData
    data = make(documents, texts, np.arange(sizes.documents, dtype=np.int64), truth)
    encoder = build_encoder(config, _VOCABULARY, 0).on(device)
    task = encoder_task(replace(settings, encoder=config, order=order), encoder, data)
    task.start_epoch(0)
    return task


_VOCABULARY: Final = 30_000


def _titles(random: np.random.Generator, size: int) -> TokenStore:
    offsets = np.concatenate([[0], np.cumsum(random.integers(6, 31, size))])
    ids = random.integers(1000, _VOCABULARY, offsets[-1]).astype(np.uint16)
    return TokenStore(ids, offsets, (101,), (102,), 0)


def bf16_share(device: Device, sizes: Sizes) -> list[Row]:
    """Return the share of the device's bf16 rate that steps of M1 of ``ngame`` reach on tokens that are no padding.

    The rate is that of a square product on the same device.
    """
    per_token, tokens = _tokens_per_second(device, sizes)
    rate = per_token * tokens
    best = product_rate(device, sizes.product)
    what = (
        f"M1 step of ngame, {sizes.encoder}, {sizes.batch} documents: share of the bf16 rate ({best / 1e12:.3g} TF/s)"
    )
    return [Row(what, f"{rate / best:.1%}", f"{_GOAL:.0%}")]


@cache
def _tokens_per_second(device: Device, sizes: Sizes) -> tuple[int, float]:
    """Return the operations of M1 of ``ngame`` per token, and the tokens (padding not counted) that it reads per
    second."""
    task = training("ngame", device, sizes)
    batches = task.batches(0)[: sizes.steps]
    ready = [task.prepare(batch, step) for step, batch in enumerate(batches)]
    tokens = sum(int(mask.sum()) for one in ready for mask in _masks(one))

    def steps() -> None:
        for step, (batch, one) in enumerate(zip(batches, ready, strict=True)):
            task.step(batch, step, 0.5, one)

    return operations(task.encoder), tokens / seconds_of(steps, device)


def rates(device: Device, sizes: Sizes) -> dict[str, Any]:
    """Return the rates that ``xc plan`` reads, with the device and the day (``xc_core.chain.on_gpu``).

    What the table has measured is not measured again.
    """
    return {
        "device": device.in_words(),
        "date": today(),
        "encoder": sizes.encoder,
        "tokens_per_second": _tokens_per_second(device, sizes)[1],
        "step_seconds": _label_step(device, sizes, sizes.rows[0]),
        "step_documents": sizes.batch,
        "step_width": sizes.width,
        "pairs_per_second": sizes.searched * sizes.width * sizes.queries / _search_seconds(device, sizes),
    }


def operations(encoder: torch.nn.Module) -> int:
    """Return the operations of a training step per token: 6 per weight of a linear layer (2 forward, 4 backward).

    2 for a weight that is not trained. Attention and embeddings are not counted.
    """
    weights = [module.weight for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    return sum((6 if weight.requires_grad else 2) * weight.numel() for weight in weights)


def _masks(ready: Any) -> list[torch.Tensor]:
    return [mask for passes in (ready.documents, ready.texts) if passes is not None for _, mask in passes.batches]


def product_rate(device: Device, size: int) -> float:
    """Return the operations per second of a square product in bf16."""
    left = torch.ones((size, size), dtype=torch.bfloat16, device=device.torch)
    return 2 * size**3 / seconds_of(lambda: left @ left, device)


def seconds_of(work: Callable[[], Any], device: Device, rounds: int = 5) -> float:
    """Return the median seconds of ``work`` after one round that is not counted; waits for the device."""
    times = []
    for _ in range(rounds + 1):
        device.wait()
        started = time.perf_counter()
        work()
        device.wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def label_steps(device: Device, sizes: Sizes) -> list[Row]:
    """Return the time of a step of the label table on a pool of labels, for tables of several sizes."""
    found = [_label_step(device, sizes, labels) for labels in sizes.rows]
    rows = [
        Row(
            f"label step, {labels:,} x {sizes.width}, {sizes.batch} documents, pool {sizes.pool:,}",
            f"{1e3 * own:.2f} ms",
        )
        for labels, own in zip(sizes.rows, found, strict=True)
    ]
    rows.append(Row(f"label step, growth from {sizes.rows[0]:,} to {sizes.rows[-1]:,} labels",
                    f"{found[-1] / found[0]:.2f}", "at most 1.6"))  # fmt: skip
    return rows


@cache
def _label_step(device: Device, sizes: Sizes, labels: int) -> float:
    random = generator(0, "gpu-proof-rows")
    rows_LD = torch.zeros((labels, sizes.width), device=device.torch)
    head = TableHead(LabelTable(rows_LD, TableConfig(start="zero", unit=False)), Bce(), 0.05)
    labels_U = np.sort(random.choice(labels, sizes.pool, replace=False)).astype(np.int64)
    chosen_BU = random.random((sizes.batch, sizes.pool)) < 2 / sizes.pool
    pool, docs_B = LabelPool(labels_U, chosen_BU, chosen_BU), np.arange(sizes.batch, dtype=np.int64)
    doc_BD = torch.nn.functional.normalize(torch.ones((sizes.batch, sizes.width), device=device.torch), dim=1)
    return seconds_of(lambda: head.descend(doc_BD, pool, docs_B, 1.0), device)


def search_rate(device: Device, sizes: Sizes) -> list[Row]:
    """Return the rate of exact search for the 100 best, results on the processor."""
    seconds = _search_seconds(device, sizes)
    what = f"exact search, {sizes.searched:,} x {sizes.width}, top 100"
    rate = 2 * sizes.searched * sizes.width * sizes.queries / seconds
    return [Row(what, f"{sizes.queries / seconds:,.0f} queries/s, {rate / 1e12:.3g} TF/s")]


@cache
def _search_seconds(device: Device, sizes: Sizes) -> float:
    random = generator(0, "gpu-proof-search")
    vectors, queries = (random.standard_normal((n, sizes.width), np.float32) for n in (sizes.searched, sizes.queries))
    index = ExactIndex(vectors, device)
    return seconds_of(lambda: index.search(queries, 100), device, rounds=3)


def recipe_rows(workspace: Workspace, dataset: str, budget: str, recipes: tuple[str, ...] = RECIPES) -> list[Row]:
    """Train each recipe within ``budget`` in a process of its own; return its figures, time and share of mining.

    The process uses the device of XC_DEVICE. Raises ChildError if one fails.
    """
    rows = []
    for name in recipes:
        started = time.monotonic()
        command = [sys.executable, "-m", "xc_core.cli.main", "train", "--dataset", dataset, "--recipe", name]
        done = subprocess.run([*command, "--budget", budget, "--force"], cwd=workspace.root, check=False)
        if done.returncode:
            raise ChildError(
                f"xc train of {name} ending with exit code {done.returncode}",
                expected="a trained recipe",
                do="see its messages above",
            )
        rows.append(_recipe_row(workspace, dataset, name, time.monotonic() - started))
    return rows


class ChildError(XCError):
    """A command that was started failed."""


def _recipe_row(workspace: Workspace, dataset: str, name: str, seconds: float) -> Row:
    report = Evaluation.open(workspace.folder("evaluation", dataset, name)).report
    figures = report["ablation"][FUSION]
    costs = [read_costs(workspace, STAGES[stage], dataset, name) for stage in ("encoder", "classifier")]
    trained, mined = (sum(cost.get(key, 0.0) for cost in costs) for key in ("train_seconds", "mining_seconds"))
    shown = ", ".join(f"{key.replace('_at_', '@')} {figures[key]:.2f}" for key in ("P_at_1", "P_at_5", "PSP_at_5"))
    share = f"mining {mined / trained:.1%} of {trained:.0f} s of training" if trained else "no training"
    return Row(f"{name} on {dataset}", f"{shown}; {share}; {seconds:.0f} s in all")


def table(rows: list[Row], device: Device) -> str:
    """Return the rows as Markdown, with date and machine."""
    head = f"{today()}, {device.in_words()}, {processor()}, torch {torch.__version__}."
    lines = [head, "", "| what | found | wanted |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {row.what} | {row.found} | {row.wanted} |" for row in rows)])


def written(page: str, content: str) -> str:
    """Return ``page`` with ``content`` between the markers; raise CorruptError if it does not have both."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise CorruptError("a page without the markers", expected=f"{BEGIN} and {END}", do="git checkout the page")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


PIECES: Final[tuple[Callable[[Device, Sizes], list[Row]], ...]] = (losses, bf16_share, label_steps, search_rate)


@click.command()
@click.option("--dataset", default="ysofinna", show_default=True, help="Dataset of the project that recipes train on.")
@click.option("--budget", default="2m", show_default=True, help="Training time of each of the four recipes.")
@click.option("--page", type=click.Path(path_type=Path), default=Path("docs/results.md"), show_default=True)
@click.option("--device", default="cuda", show_default=True)
def main(dataset: str, budget: str, page: Path, device: str) -> None:
    """Measure on a GPU, print the table and write it into PAGE."""
    try:
        chosen = Device.of(device)
        os.environ[VARIABLE] = chosen.name
        workspace = Workspace.find()
        workspace.params.dataset(dataset)
        rows: list[Row] = []
        for piece in PIECES:
            click.echo(f"{piece.__name__} ...", err=True)
            rows += piece(chosen, Sizes())
        workspace.write(workspace.state / GPU_RATES, json.dumps(rates(chosen, Sizes()), indent=1) + "\n")
        rows += recipe_rows(workspace, dataset, budget)
        content = table(rows, chosen)
        click.echo(content)
        with artifacts.writing(page):
            page.write_text(written(page.read_text("utf-8"), content), "utf-8")
    except XCError as error:
        click.echo(f"gpu-proof: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
