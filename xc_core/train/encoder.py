"""M1: the encoder learns that a document lies near its labels' texts, near rows of a table, or near both.

Takes: Encoder, token stores, LabelMatrix, the four parts.   Gives: a Task.
May import: classifiers, cluster, data, encoders, losses, sampling, train.*.  Never: reads validation or test rows.

Each step's vectors go into a memory bank, so a refresh encodes nothing twice (stale embeddings, NGAME section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import TableHead, gradient_error, marks
from xc_core.cluster import theorem1
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokens import Joined, Tokens, TokenStore
from xc_core.encoders import CachedRows, Encoder, embed_rows, encode_rows
from xc_core.losses import Loss
from xc_core.sampling import BatchOrder, EveryLabel, NegativeSource, Pool, missed_by_pools
from xc_core.sampling.searched import Importance
from xc_core.seeds import generator
from xc_core.shapes import F32, I64
from xc_core.train.optim import EncoderOptimizer, OptimConfig
from xc_core.train.state import diverged, part

_SAMPLE: Final = 256
"""Documents on which the error of a gradient estimate is measured, a batch's worth."""
_DRAWS: Final = 8
"""Draws it is averaged over."""


@dataclass(frozen=True)
class EncoderData:
    """What an encoder is trained on: the rows of train, their labels (one row each), and both token stores."""

    documents: Tokens
    labels: Tokens
    rows_N: I64
    truth: LabelMatrix
    filters: LabelMatrix | None = None
    """The pairs that predictions leave out, which are neither positives nor negatives."""
    augmented: bool = False
    """True where the last L documents are the labels' texts."""

    @classmethod
    def with_label_texts(
        cls,
        documents: TokenStore,
        labels: TokenStore,
        rows_N: I64,
        truth: LabelMatrix,
        filters: LabelMatrix | None = None,
    ) -> EncoderData:
        """Return documents and, behind them, every label's text as a document of that label; no text is copied.

        Source: ASTRA (004), section 3.2, and Renee: label texts as training points.
        """
        texts = len(documents) + np.arange(len(labels), dtype=np.int64)
        both = Joined(documents, labels, documents.pad_id)
        rows = np.concatenate([rows_N, texts])
        size = len(labels)
        if filters is not None:
            filters = filters.above(LabelMatrix.none(size, size))
        return cls(both, labels, rows, truth.above(LabelMatrix.identity(size)), filters, augmented=True)


@dataclass
class EncoderTask:
    """Document and label towers share the encoder; scores are cosines; the pool's labels are encoded once a batch.

    With a ``table`` its rows are scored and learnt along, on the same batch and pool, and the loss is ``text_share``
    of that on label texts and the rest of that on rows (UniDEC, section 3.3); with share 0 no label text is read.
    """

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
    table: TableHead | None = None
    text_share: float = 1.0
    cache: bool = False
    """Encode the pool's labels twice instead of keeping their activations (GradCache)."""
    search_rows: bool = False
    """Let negatives search the table's rows instead of the label texts."""
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
        if epoch == 0:
            self._begin()
        searched = self.rows_LD if self.search_rows else self._text_vectors()
        mined = self.negatives.refresh(epoch, self.bank_ND, searched)
        figures = self.order.refresh(epoch, self.bank_ND)
        clusters = self.order.arrays()
        if figures and "sizes" in clusters and self.text_share:
            figures |= self._theorem(epoch, (clusters["order"], clusters["sizes"]))
        return figures | mined | (self._gradient_errors() if mined and (epoch or self.fill_banks) else {})

    def _theorem(self, epoch: int, clusters: tuple[I64, I64]) -> dict[str, float]:
        """Return the figures of Theorem 1 on new clusters, and what the batches of the epoch miss with their pools.

        They are of the labels that have a vector: one that no batch has drawn so far has none, and is counted out.
        """
        docs = self.encoder.views(torch.from_numpy(self.bank_ND))[0].numpy()
        labels = self.label_bank_LD[:, : docs.shape[1]]
        seen_L, used_L = np.any(labels, axis=1), self.data.truth.frequency_L() > 0
        truth = self.data.truth.only(seen_L)
        measured = theorem1((docs, labels), truth, self.negatives.known, clusters, radius=self.radius, seed=self.seed)
        missed = missed_by_pools(
            (docs, labels), truth, self.order.batches(epoch), self.negatives, radius=self.radius, seed=self.seed
        )
        share = float(seen_L[used_L].mean()) if used_L.any() else 0.0
        return {"labels_seen": share, **measured.as_dict(), "missed_by_batches": missed}

    def _gradient_errors(self) -> dict[str, float]:
        """Return how far ASTRA's gradient estimate is from the one over all labels, and a uniform one beside it."""
        source, size = self.negatives, len(self.data.rows_N)
        if not isinstance(source, Importance) or self.table is None or not self.table.loss.separable:
            return {}
        docs = np.sort(generator(self.seed, "gradient").choice(size, min(_SAMPLE, size), replace=False))
        vectors = self.encoder.views(torch.from_numpy(self.bank_ND[docs]).to(self.encoder.device))[1]
        sources = {"gradient_error": source, "gradient_error_uniform": source.all_uniform()}
        pools = {name: [own.pool(docs, -1 - draw) for draw in range(_DRAWS)] for name, own in sources.items()}
        whole = EveryLabel(self.data.truth.rows(docs), source.known.rows(docs))
        return {name: gradient_error(self.table, vectors, docs, drawn, whole) for name, drawn in pools.items()}

    def _text_vectors(self) -> F32:
        """Return the latest vectors of the label texts: as labels, or where none is read so, as documents."""
        if self.text_share or not self.data.augmented:
            return self.label_bank_LD
        return self.encoder.as_label(torch.from_numpy(self.bank_ND[-len(self.label_bank_LD) :])).numpy()

    @property
    def rows_LD(self) -> F32:
        """The table's rows (L x D) as a document's vector is scored against them."""
        assert self.table is not None
        rows = self.table.table.vectors(self.table.table.rows_LD)
        return np.asarray(self.encoder.as_rows(rows).cpu().numpy())

    def _begin(self) -> None:
        """Fill the banks where parts want vectors before the first step, and start rows at their labels' texts."""
        if self.fill_banks:
            embed_rows(self.encoder, self.data.documents, self.data.rows_N, self.bank_ND, "encoding documents")
        if self.fill_banks or (self.table and self.table.table.config.start == "text"):
            labels = np.arange(len(self.label_bank_LD), dtype=np.int64)
            embed_rows(self.encoder, self.data.labels, labels, self.label_bank_LD, "encoding labels")
            vectors = torch.from_numpy(self.label_bank_LD)
            if self.table and self.table.table.config.start == "text":
                self.table.table.rows_LD.copy_(self.encoder.views(vectors)[1])
            self.label_bank_LD = self.encoder.as_label(vectors).numpy()

    def batches(self, epoch: int) -> list[I64]:
        """Return the order's batches of positions in ``data.rows_N``."""
        return self.order.batches(epoch)

    def step(self, docs_B: I64, step: int, scale: float) -> tuple[float, float]:
        """Encode batch and pool, descend on the loss, put the vectors into the banks."""
        pool = self.negatives.pool(docs_B, step)
        with self.encoder.autocast():
            doc_BD = encode_rows(self.encoder, self.data.documents, self.data.rows_N[docs_B])
        texts = self._texts(pool) if self.text_share else None
        loss, count, ends = self._descend(doc_BD, texts, pool, docs_B, scale)
        if not math.isfinite(loss):
            return loss, count
        torch.autograd.backward(*ends)
        if isinstance(texts, CachedRows):
            texts.backward()
        if not math.isfinite(self.optimizer.step(scale)):
            raise diverged("a gradient that is not finite", step)
        self.bank_ND[docs_B] = doc_BD.detach().cpu().numpy()
        if texts is not None:
            vectors = texts.vectors_UD if isinstance(texts, CachedRows) else texts
            self.label_bank_LD[pool.labels_U] = self.encoder.as_label(vectors.detach()).cpu().numpy()
        return loss, count

    def _texts(self, pool: Pool) -> Tensor | CachedRows:
        """Encode the pool's label texts, with their graph or to be encoded again."""
        with self.encoder.autocast():
            if self.cache:
                return CachedRows(self.encoder, self.data.labels, pool.labels_U)
            return encode_rows(self.encoder, self.data.labels, pool.labels_U)

    def _descend(
        self, doc_BD: Tensor, texts: Tensor | CachedRows | None, pool: Pool, docs_B: I64, scale: float
    ) -> tuple[float, float, tuple[list[Tensor], list[Tensor | None]]]:
        """Return the loss, its count, and (tensors, gradients) to go back from; the table's rows are updated here."""
        for_text, for_rows = self.encoder.views(doc_BD)
        loss, count, ends, gradients = 0.0, 0.0, list[Tensor](), list[Tensor | None]()
        if texts is not None:
            vectors = texts.vectors_UD if isinstance(texts, CachedRows) else texts
            label_UD = self.encoder.views(vectors)[0]
            total, counted = self.loss(for_text @ label_UD.T, *marks(pool, docs_B, doc_BD.device))
            loss, count = float(total.detach()), float(counted)
            mean = total / counted.clamp(min=1)
            ends.append(mean if self.table is None else self.text_share * mean)
            gradients.append(None)
        if self.table is not None:
            found = self.table.descend(for_rows, pool, docs_B, scale)
            share = 1 - self.text_share
            assert found.gradient_BD is not None
            ends.append(for_rows)
            gradients.append(share * found.gradient_BD)
            of_rows = found.loss / found.count if found.count else 0.0
            loss, count = (self.text_share * loss / max(count, 1) + share * of_rows) * found.count, found.count
        return loss, count, (ends, gradients)

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimiser state, banks, order, and the table where there is one."""
        arrays = {"bank": self.bank_ND, "label_bank": self.label_bank_LD}
        rows = {} if self.table is None else {**self.table.table.tensors(), **self.table.loss.tensors()}
        return {
            **{f"encoder/{name}": value for name, value in self.encoder.state_dict().items()},
            **{f"adam/{name}": value for name, value in self.optimizer.tensors().items()},
            **{f"order/{name}": torch.from_numpy(value) for name, value in self.order.arrays().items()},
            **{f"negatives/{name}": torch.from_numpy(value) for name, value in self.negatives.arrays().items()},
            **{f"loss/{name}": value for name, value in self.loss.tensors().items()},
            **{f"table/{name}": value for name, value in rows.items()},
            **{name: torch.from_numpy(value) for name, value in arrays.items()},
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""
        self.encoder.load_state_dict(part(tensors, "encoder/"))
        self.optimizer.load(part(tensors, "adam/"))
        self.order.load({name: value.numpy() for name, value in part(tensors, "order/").items()})
        self.negatives.load({name: value.numpy() for name, value in part(tensors, "negatives/").items()})
        self.loss.load(part(tensors, "loss/"))
        if self.table is not None:
            self.table.table.load(part(tensors, "table/"))
            self.table.loss.load(part(tensors, "table/"))
        self.bank_ND = tensors["bank"].numpy().copy()
        self.label_bank_LD = tensors["label_bank"].numpy().copy()
