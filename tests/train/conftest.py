"""A small corpus of topics and words, as token stores and labels, and trainings of M1 on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from xc_core.data.labels import LabelMatrix
from xc_core.data.tokenizer import load
from xc_core.data.tokens import TokenStore
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.losses import PLAIN, Loss, Sampled, Stateless, Triplet
from xc_core.sampling import Clustered, InBatch
from xc_core.train import encoder
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.loop import Plan, fit
from xc_core.train.optim import OptimConfig
from xc_core.train.state import History

TOPICS = ("river", "castle", "engine", "violin", "glacier")


@dataclass(frozen=True)
class Broken(Stateless):
    """A loss that is ``value`` times the scores: not finite if ``value`` is not."""

    value: float

    def __call__(
        self, scores: torch.Tensor, chosen: torch.Tensor, known: torch.Tensor, sampled: Sampled = PLAIN
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return scores.sum() * self.value, chosen.sum()


@dataclass(frozen=True)
class Small:
    """Documents of two topics each; every third is not a train row. A label is a topic."""

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
    """Return a function that builds a new task; ``seed`` is its root seed."""

    def make(
        seed: int = 0, *, lr: float = 0.02, data: EncoderData | None = None, loss: Loss | None = None
    ) -> EncoderTask:
        settings = EncoderSettings(
            encoder=EncoderConfig(name="bag", width=16, precision="fp32"),
            order=Clustered(batch_size=8, size=4, refresh_every=1, warmup_epochs=1),
            negatives=InBatch(positives=1),
            loss=loss or Triplet(),
            optim=OptimConfig(lr=lr),
            seed=seed,
        )
        new = build_encoder(settings.encoder, small.vocabulary, seed)
        return encoder.encoder_task(settings, new, data or small.data())

    return make


def train(task: EncoderTask, folder: Path, epochs: float = 3) -> History:
    """Train without checkpoints and return the losses."""
    return fit(task, Plan(epochs=epochs, warmup=0.1, checkpoint_seconds=1e9), Checkpoints(folder, "x"))
