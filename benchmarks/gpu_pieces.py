"""The pieces of ``make gpu-proof``: each measures one thing on a device and returns rows of the table.

Losses beside the CPU's, share of the card's bf16 rate, label steps, exact search, clusters, and the rates that ``xc
plan`` reads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
import torch

from benchmarks.harness import today
from xc_core.ann import ExactIndex
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.cluster import balanced_clusters, cohesion, placed
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokens import TokenStore
from xc_core.devices import CPU, Device, put
from xc_core.encoders import Encoder, EncoderConfig, build_encoder
from xc_core.encoders.base import Precision
from xc_core.errors import MissingError
from xc_core.losses import Bce
from xc_core.pretrained import locate
from xc_core.recipes import find_recipe
from xc_core.sampling import LabelPool
from xc_core.seeds import generator, seed_torch
from xc_core.shapes import F32
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task

T = TypeVar("T")
RECIPES: Final = ("ngame", "unidec", "astra", "house")
TOLERANCE: Final = 1e-3
"""Relative difference of a step's loss from the CPU's, both in fp32: sums in another order, amplified by the steps."""
_GOAL: Final = 0.45
"""Share of the card's bf16 rate that a step of M1 should reach."""
_CLUSTER: Final = 9
"""Documents per cluster."""


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
    clustered: int = 300_000


def losses(device: Device, sizes: Sizes) -> list[Row]:
    """Return the largest relative difference of a loss from the CPU's, in a few steps of each recipe, in fp32."""
    small = replace(sizes, documents=min(sizes.documents, 512), batch=min(sizes.batch, 64))
    rows = []
    for name in RECIPES:
        ours, theirs = (_losses(_in_fp32(name, target, small)) for target in (device, CPU))
        worst = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours, theirs, strict=True))
        what = f"M1 of {name}, {_encoder_title(sizes.encoder)}: loss beside the CPU's, 4 steps"
        rows.append(Row(what, f"{worst:.1e}", f"at most {TOLERANCE:.0e}"))
    return rows


def _in_fp32(name: str, device: Device, sizes: Sizes) -> EncoderTask:
    return training(name, device, sizes, precision=Precision.FP32, make=of_shape)


def _losses(task: EncoderTask) -> list[float]:
    results = [task.step(batch, step, 1.0) for step, batch in enumerate(task.batches(0)[:4])]
    return [float(loss) / max(float(count), 1.0) for loss, count in results]


def training(
    recipe: str,
    device: Device,
    sizes: Sizes,
    *,
    precision: Precision = Precision.AUTO,
    make: Callable[..., Encoder] = build_encoder,
) -> EncoderTask:
    """Return M1 of a recipe on random titles of 6 to 30 tokens, with two labels per document."""
    settings = find_recipe(recipe).encoder
    config = replace(settings.encoder, name=sizes.encoder, precision=precision)
    if sizes.encoder == "bag":
        config = EncoderConfig(name="bag", width=16, precision=precision, heads=config.heads)
    order = replace(settings.order, batch_size=sizes.batch)  # type: ignore[type-var]
    random, labels = generator(0, "gpu-proof"), max(sizes.documents // 4, 8)
    documents, texts = (_titles(random, size) for size in (sizes.documents, labels))
    pairs = np.repeat(np.arange(sizes.documents), 2), random.integers(0, labels, 2 * sizes.documents)
    truth = LabelMatrix.from_pairs(*pairs, (sizes.documents, labels))
    gather = EncoderData.with_label_texts if settings.augment else EncoderData
    data = gather(documents, texts, np.arange(sizes.documents, dtype=np.int64), truth)
    encoder = make(config, _VOCABULARY, 0).on(device)
    task = encoder_task(replace(settings, encoder=config, order=order), encoder, data)
    task.start_epoch(0)
    return task


_VOCABULARY: Final = 30_000


def _titles(random: np.random.Generator, size: int) -> TokenStore:
    offsets = np.concatenate([[0], np.cumsum(random.integers(6, 31, size))])
    ids = random.integers(1000, _VOCABULARY, offsets[-1]).astype(np.uint16)
    return TokenStore(ids, offsets, (101,), (102,), 0)


def has_weights(encoder: str) -> bool:
    """Return False if the weights of a packaged encoder are not on this machine."""
    try:
        locate(encoder)
    except MissingError:
        return False
    return True


def _encoder_title(encoder: str) -> str:
    """Return the name of an encoder, as ``of_shape`` builds it."""
    return encoder if has_weights(encoder) else f"{encoder}'s shape with random weights"


def of_shape(config: EncoderConfig, vocabulary_size: int, seed: int) -> Encoder:
    """Return the encoder; without its weights, one of MiniLM's shape with random ones, which is as fast.

    Its losses differ by more than ``TOLERANCE`` if the attention mask is left out.
    """
    if has_weights(config.name):
        return build_encoder(config, vocabulary_size, seed)
    from transformers import BertConfig, BertModel

    from xc_core.encoders.transformer import TransformerEncoder

    seed_torch(seed, "gpu-proof-weights")
    shape = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return TransformerEncoder(config, BertModel(shape))


def bf16_share(device: Device, sizes: Sizes) -> list[Row]:
    """Return the share of the device's bf16 rate that steps of M1 of ``ngame`` reach on tokens that are no padding.

    The rate is that of a square product on the same device.
    """
    per_token, tokens = _tokens_per_second(device, sizes)
    rate = per_token * tokens
    best = product_rate(device, sizes.product)
    step = f"M1 step of ngame, {_encoder_title(sizes.encoder)}, {sizes.batch} documents"
    what = f"{step}: share of the bf16 rate ({best / 1e12:.3g} TF/s)"
    return [Row(what, f"{rate / best:.1%}", f"{_GOAL:.0%}")]


@cache
def _tokens_per_second(device: Device, sizes: Sizes) -> tuple[int, float]:
    """Return the operations of M1 of ``ngame`` per token, and the tokens (padding not counted) that it reads per
    second."""
    task = training("ngame", device, sizes, make=of_shape)
    batches = task.batches(0)[: sizes.steps]
    prepared = [task.prepare(batch, step) for step, batch in enumerate(batches)]
    tokens = sum(int(mask.sum()) for passes in prepared for mask in _masks(passes))

    def steps() -> None:
        for step, (batch, passes) in enumerate(zip(batches, prepared, strict=True)):
            task.step(batch, step, 0.5, passes)

    sample = task.data.documents.batch(task.data.rows_N[:8], task.encoder.config.max_length)
    arguments = (put(part, device.torch) for part in (sample.ids_BT, sample.mask_BT))
    return operations(task.encoder, *arguments), tokens / seconds_of(steps, device)


def rates(device: Device, sizes: Sizes) -> dict[str, Any]:
    """Return the rates that ``xc plan`` reads, with the device and the day (``xc_core.planning.on_gpu``).

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


def operations(encoder: torch.nn.Module, *arguments: torch.Tensor) -> int:
    """Return the operations of a training step per token: 6 per weight of a linear layer (2 forward, 4 backward).

    2 for a weight that is not trained. Attention and embeddings are not counted, nor layers that read one vector per
    text of ``arguments``, those of a forward pass: BERT's pooler and projections.
    """
    weights: list[torch.Tensor] = []

    def record(module: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if inputs[0].dim() == 3:
            weights.append(module.weight)

    linear = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    handles = [module.register_forward_hook(record) for module in linear]
    with torch.no_grad():
        encoder(*arguments)
    for handle in handles:
        handle.remove()
    return sum((6 if weight.requires_grad else 2) * weight.numel() for weight in weights)


def _masks(prepared: Any) -> list[torch.Tensor]:
    """Return the masks of all passes: an encoder that skips padding has groups of texts in a pass."""
    batches = [
        batch for passes in (prepared.documents, prepared.texts) if passes is not None for batch in passes.batches
    ]
    return [group[1] for batch in batches for group in (batch if isinstance(batch, list) else [batch])]


def product_rate(device: Device, size: int) -> float:
    """Return the operations per second of a square product of random numbers in bf16.

    With equal numbers a card needs less power, so its clock is higher.
    """
    values = torch.from_numpy(generator(0, "gpu-proof-product").standard_normal((size, size), np.float32))
    left = values.to(device.torch, torch.bfloat16)
    return 2 * size**3 / seconds_of(lambda: left @ left, device)


def seconds_of(work: Callable[[], Any], device: Device, rounds: int = 5) -> float:
    """Return the median seconds of ``work`` after one round that is not counted; waits for the device."""
    return statistics.median([_timed(work, device)[1] for _ in range(rounds + 1)][1:])


def label_steps(device: Device, sizes: Sizes) -> list[Row]:
    """Return the time of a step of the label table on a pool of labels, for tables of several sizes."""
    seconds = [_label_step(device, sizes, labels) for labels in sizes.rows]
    rows = [
        Row(
            f"label step, {labels:,} x {sizes.width}, {sizes.batch} documents, pool {sizes.pool:,}",
            f"{1e3 * step_seconds:.2f} ms",
        )
        for labels, step_seconds in zip(sizes.rows, seconds, strict=True)
    ]
    rows.append(Row(f"label step, growth from {sizes.rows[0]:,} to {sizes.rows[-1]:,} labels",
                    f"{seconds[-1] / seconds[0]:.2f}", "at most 1.6"))  # fmt: skip
    return rows


@cache
def _label_step(device: Device, sizes: Sizes, labels: int) -> float:
    random = generator(0, "gpu-proof-rows")
    rows_LD = put(np.zeros((1, 1), np.float32), device.torch).expand(labels, sizes.width)  # the table has its own
    head = TableHead(LabelTable(rows_LD, TableConfig(start="zero", unit=False)), Bce(), 0.05)
    labels_U = np.sort(random.choice(labels, sizes.pool, replace=False)).astype(np.int64)
    chosen_BU = random.random((sizes.batch, sizes.pool)) < 2 / sizes.pool
    pool, docs_B = LabelPool(labels_U, chosen_BU, chosen_BU), np.arange(sizes.batch, dtype=np.int64)
    doc_BD = put(random.standard_normal((sizes.batch, sizes.width), np.float32), device.torch)
    doc_BD = torch.nn.functional.normalize(doc_BD, dim=1)
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


def clusters(device: Device, sizes: Sizes) -> list[Row]:
    """Return the times of a copy of vectors to the device, of clusters there and of numpy's, and both cohesions.

    The first clusters on the device are not timed.
    """
    vectors_ND = _groups(sizes.clustered, sizes.width)
    what = f"clusters of {_CLUSTER}, {sizes.clustered:,} x {sizes.width}"
    points_ND, copied = _timed(lambda: placed(vectors_ND, device), device)
    if isinstance(points_ND, np.ndarray) and not device.is_cpu:
        return [Row(what, "not measured: the GPU has too little free memory")]
    found = cohesion(points_ND, *balanced_clusters(points_ND, _CLUSTER, 0))
    seconds = seconds_of(lambda: balanced_clusters(points_ND, _CLUSTER, 0), device, rounds=3)
    by_numpy, numpy_seconds = _timed(lambda: balanced_clusters(vectors_ND, _CLUSTER, 0), CPU)
    times = f"{seconds:.2f} s, and {copied:.2f} s to copy the vectors; CPU {numpy_seconds:.2f} s"
    cohesions = f"{found:.4f}; CPU {cohesion(vectors_ND, *by_numpy):.4f}"
    return [Row(f"{what}: beside the CPU's", times), Row(f"{what}: cohesion beside the CPU's", cohesions, "within 2%")]


def _groups(size: int, width: int) -> F32:
    """Return unit vectors in groups of about 100, shuffled."""
    random = generator(0, "gpu-proof-clusters")
    middle = random.standard_normal((size // 100 + 1, width), np.float32)
    vectors_ND: F32 = 0.7 * random.standard_normal((size, width), np.float32)
    vectors_ND += middle[random.integers(0, len(middle), size)]
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND


def _timed(work: Callable[[], T], device: Device) -> tuple[T, float]:
    """Return the result of ``work`` and its seconds; waits for the device."""
    device.wait()
    start = time.perf_counter()
    found = work()
    device.wait()
    return found, time.perf_counter() - start


PIECES: Final[dict[str, Callable[[Device, Sizes], list[Row]]]] = {
    "losses": losses,
    "bf16": bf16_share,
    "labels": label_steps,
    "search": search_rate,
    "clusters": clusters,
}
RATED: Final = ("bf16", "labels", "search")
"""Pieces that measure what ``rates`` returns."""
