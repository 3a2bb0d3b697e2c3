"""M1: the encoder learns that a document lies near its labels' texts.

Takes: Encoder, token stores, LabelMatrix, the four parts.   Gives: a Task.
May import: cluster, data, encoders, losses, sampling, train.optim, train.state.  Never: reads a validation or test row.

Each step's vectors go into a memory bank, so a refresh encodes nothing twice (stale embeddings, NGAME section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from xc_core.cluster import theorem1
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokens import TokenStore
from xc_core.encoders import Encoder, embed_rows, encode_rows
from xc_core.losses import Loss
from xc_core.sampling import BatchOrder, NegativeSource
from xc_core.shapes import F32, I64
from xc_core.train.optim import EncoderOptimizer, OptimConfig
from xc_core.train.state import diverged


@dataclass(frozen=True)
class EncoderData:
    """What an encoder is trained on: the rows of train, their labels (one row each), and both token stores."""

    documents: TokenStore
    labels: TokenStore
    rows_N: I64
    truth: LabelMatrix


@dataclass
class EncoderTask:
    """Document and label towers share the encoder; scores are cosines; the pool's labels are encoded once a batch."""

    encoder: Encoder
    data: EncoderData
    order: BatchOrder
    negatives: NegativeSource
    loss: Loss
    optim: OptimConfig
    seed: int
    radius: float
    """Hardness radius r of the figures of Theorem 1."""
    fill_banks: bool = False
    """Encode everything before the first step: for parts that refresh before epoch 0, on the encoder as it came."""
    name: str = "encoder"
    bank_ND: F32 = field(init=False)
    label_bank_LD: F32 = field(init=False)

    def __post_init__(self) -> None:
        self.encoder.train()
        self.optimizer = EncoderOptimizer(self.encoder, self.optim)
        self.bank_ND = np.zeros((len(self.data.rows_N), self.encoder.width), np.float32)
        self.label_bank_LD = np.zeros((self.data.truth.num_labels, self.encoder.width), np.float32)

    def start_epoch(self, epoch: int) -> dict[str, float]:
        """Cluster the bank and search it where due, and measure Theorem 1 on new clusters."""
        if self.fill_banks and epoch == 0:
            embed_rows(self.encoder, self.data.documents, self.data.rows_N, self.bank_ND, "encoding documents")
            labels = np.arange(len(self.label_bank_LD), dtype=np.int64)
            embed_rows(self.encoder, self.data.labels, labels, self.label_bank_LD, "encoding labels")
        mined = self.negatives.refresh(epoch, self.bank_ND, self.label_bank_LD)
        figures = self.order.refresh(epoch, self.bank_ND)
        arrays = self.order.arrays()
        if figures and "sizes" in arrays:
            clusters = arrays["order"], arrays["sizes"]
            measured = theorem1(
                self.bank_ND, self.label_bank_LD, self.data.truth, clusters, radius=self.radius, seed=self.seed
            )
            seen = float(np.any(self.label_bank_LD, axis=1).mean())
            figures |= {"labels_seen": seen, **measured.as_dict()}
        return figures | mined

    def batches(self, epoch: int) -> list[I64]:
        """Return the order's batches of positions in ``data.rows_N``."""
        return self.order.batches(epoch)

    def step(self, docs_B: I64, step: int, scale: float) -> tuple[float, float]:
        """Encode batch and pool, descend on the loss, put the vectors into the banks."""
        pool = self.negatives.pool(docs_B, step)
        with self.encoder.autocast():
            doc_BD = encode_rows(self.encoder, self.data.documents, self.data.rows_N[docs_B])
            label_UD = encode_rows(self.encoder, self.data.labels, pool.labels_U)
        device = doc_BD.device
        chosen, known = (torch.from_numpy(m).to(device) for m in (pool.chosen_BU, pool.known_BU))
        total, count = self.loss(doc_BD @ label_UD.T, chosen, known)
        loss = float(total.detach())
        if not math.isfinite(loss):
            return loss, float(count)
        torch.autograd.backward(total / count.clamp(min=1))
        if not math.isfinite(self.optimizer.step(scale)):
            raise diverged("a gradient that is not finite", step)
        self.bank_ND[docs_B] = doc_BD.detach().cpu().numpy()
        self.label_bank_LD[pool.labels_U] = label_UD.detach().cpu().numpy()
        return loss, float(count)

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimiser state, banks and order."""
        arrays = {"bank": self.bank_ND, "label_bank": self.label_bank_LD}
        return {
            **{f"encoder/{name}": value for name, value in self.encoder.state_dict().items()},
            **{f"adam/{name}": value for name, value in self.optimizer.tensors().items()},
            **{f"order/{name}": torch.from_numpy(value) for name, value in self.order.arrays().items()},
            **{f"negatives/{name}": torch.from_numpy(value) for name, value in self.negatives.arrays().items()},
            **{name: torch.from_numpy(value) for name, value in arrays.items()},
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""
        self.encoder.load_state_dict(part(tensors, "encoder/"))
        self.optimizer.load(part(tensors, "adam/"))
        self.order.load({name: value.numpy() for name, value in part(tensors, "order/").items()})
        self.negatives.load({name: value.numpy() for name, value in part(tensors, "negatives/").items()})
        self.bank_ND = tensors["bank"].numpy().copy()
        self.label_bank_LD = tensors["label_bank"].numpy().copy()


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
