"""A small corpus of topics and words, as token stores and labels: what both kinds of training learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from xc_core.data.labels import LabelMatrix
from xc_core.data.tokenizer import load
from xc_core.data.tokens import TokenStore
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.losses import PLAIN, LossConfig, Sampled
from xc_core.losses.base import Stateless
from xc_core.sampling import NEGATIVES, ORDERS, NegativesConfig, OrderConfig
from xc_core.train.encoder import EncoderData, EncoderTask
from xc_core.train.optim import OptimConfig

TOPICS = ("river", "castle", "engine", "violin", "glacier")


@dataclass(frozen=True)
class Broken(Stateless):
    """A loss that is ``value`` times the scores: no number where ``value`` is none."""

    value: float

    def __call__(
        self, scores: torch.Tensor, chosen: torch.Tensor, known: torch.Tensor, sampled: Sampled = PLAIN
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return scores.sum() * self.value, chosen.sum()


@dataclass(frozen=True)
class Small:
    """Documents of two topics each, of which every third is not a train row; a label is a topic."""

    documents: TokenStore
    labels: TokenStore
    rows_N: np.ndarray[tuple[int], np.dtype[np.int64]]
    truth: LabelMatrix
    vocabulary: int

    def data(self) -> EncoderData:
        return EncoderData(self.documents, self.labels, self.rows_N, self.truth)


def make_small(size: int) -> Small:
    topics = [(i % 5, (i * 2 + 1 + i // 5) % 5) for i in range(size)]
    texts = [" ".join(f"{TOPICS[t]} {TOPICS[t]}{i % 3}" for t in pair) + f" n{i}" for i, pair in enumerate(topics)]
    tokenizer = load("wordpiece", [list(TOPICS) * 3, texts * 2], 200)
    rows = np.array([i for i in range(size) if i % 3 != 2], np.int64)
    docs = np.repeat(np.arange(len(rows)), 2)
    labels = np.array([t for i in rows for t in topics[i]])
    return Small(
        TokenStore.of_texts(texts, tokenizer),
        TokenStore.of_texts(list(TOPICS), tokenizer),
        rows,
        LabelMatrix.from_pairs(docs, labels, (len(rows), len(TOPICS))),
        tokenizer.vocabulary_size,
    )


@pytest.fixture(scope="session")
def small() -> Small:
    return make_small(45)


@pytest.fixture(scope="session")
def ten() -> Small:
    """Ten train documents."""
    return make_small(15)


@pytest.fixture
def encoder_task(small: Small) -> Callable[..., EncoderTask]:
    """Make a fresh task; ``seed`` is the root of all its randomness."""

    def make(seed: int = 0, *, lr: float = 0.02, data: EncoderData | None = None, loss: object = None) -> EncoderTask:
        data = data or small.data()
        order = OrderConfig(kind="clustered", batch_size=8, cluster_size=4, refresh_every=1, warmup_epochs=1)
        return EncoderTask(
            build_encoder(EncoderConfig(name="bag", width=16, precision="fp32"), small.vocabulary, seed),
            data,
            ORDERS[order.kind](order, len(data.rows_N), seed),
            NEGATIVES["in-batch"](NegativesConfig(positives=1), data.truth, seed),
            loss or LossConfig().build(),  # type: ignore[arg-type]
            OptimConfig(lr=lr),
            seed,
            0.8,
        )

    return make
