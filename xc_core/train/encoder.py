"""M1: train the encoder so that a document's vector is near those of its labels' texts, rows of a table, or both.

The vectors of each step are kept in a memory bank if a refresh reads them, which then encodes nothing (stale
embeddings, NGAME section 3).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import LabelTable, gradient_error
from xc_core.cluster import theorem1
from xc_core.data.tokens import Joined
from xc_core.devices import put
from xc_core.distributed import ALONE, World
from xc_core.encoders import Cached, Encoder, Passes, encode_passes
from xc_core.sampling import BatchOrder, Documents, NegativeSource, PairPool, missed_by_pools
from xc_core.seeds import generator, torch_generator
from xc_core.shapes import I64, Computed, Vectors
from xc_core.train.activations import fits
from xc_core.train.banks import Bank, Ready, encode_all
from xc_core.train.documents import EncoderData
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.frozen import with_states
from xc_core.train.heads import Batch, Head
from xc_core.train.label_vectors import EncoderLabelVectors
from xc_core.train.optim import EncoderOptimizer
from xc_core.train.parallel import check_draws, gathered, local_rows
from xc_core.train.state import diverged, tensors_under

RADIUS: Final = 0.8
"""Hardness radius r of the figures of Theorem 1 that a training logs, a distance between unit vectors (0.8 is a cosine
of 0.68). The stage ``audit`` has a setting for it."""
_SAMPLE: Final = 256
"""Documents on which the error of a gradient estimate is measured, about as many as a batch has."""
_ROWS: Final = 4096
"""Labels on whose rows it is measured."""
_DRAWS: Final = 8
"""Number of estimates that the error is averaged over."""


def encoder_task(settings: EncoderSettings, encoder: Encoder, data: EncoderData, world: World = ALONE) -> EncoderTask:
    """Return the training of ``encoder`` on ``data`` that ``settings`` describe.

    The processes of ``world`` encode parts of each batch; all other state, a table included, is the same in each. If
    this machine has too little memory for a step, it keeps fewer activations; losses are the same up to rounding.
    """
    task = _task(settings, encoder, data, world)
    sparing = settings.sparing()
    if settings == sparing or fits(task):
        return task
    del task  # before another table is made
    return _task(sparing, encoder, data, world)


def _task(settings: EncoderSettings, encoder: Encoder, data: EncoderData, world: World) -> EncoderTask:
    documents = Documents(data.truth, data.filters)
    return EncoderTask(
        settings,
        encoder,
        data,
        settings.order.build(documents, settings.seed),
        settings.negatives.build(documents, settings.seed),
        settings.scorer.build(settings.loss, encoder, data.truth.num_labels),
        EncoderOptimizer(encoder, settings.optim, world),
        world,
    )


@dataclass
class EncoderTask:
    """Training of an encoder that documents and label texts share; scores are cosines."""

    settings: EncoderSettings
    encoder: Encoder
    data: EncoderData
    order: BatchOrder
    negatives: NegativeSource
    head: Head
    optimizer: EncoderOptimizer
    world: World
    """The processes that encode parts of each batch."""
    name: str = "encoder"
    fill_banks: bool = field(init=False)
    """Encode everything before the first step, for parts that refresh before epoch 0."""
    documents: Bank = field(init=False)
    """The latest vector of each document (N x D)."""
    texts: Bank = field(init=False)
    """The latest vector of each label's text, as documents are scored against it; zero if it was never encoded."""

    def __post_init__(self) -> None:
        self.encoder.train()
        self.fill_banks = self.settings.fills_banks
        width, device, (documents, texts) = self.encoder.width, self.encoder.device, self.settings.keeps
        self.documents = Bank.zeros(len(self.data.rows_N), width, device, kept=documents)
        heads, labels = self.encoder.config.heads, self.data.truth.num_labels
        self.texts = Bank.zeros(labels, width // heads, device, kept=texts)

    @property
    def keeps_states(self) -> bool:
        """True if it saves time to compute layers that are not trained once: on a CPU, in one process (a guess)."""
        on_one_cpu = self.world.size == 1 and self.encoder.device.type == "cpu"
        return on_one_cpu and self.settings.repeats and self.encoder.frozen_width > 0

    def keep_states(self, folder: Path, timed: int | None = None) -> None:
        """Compute the layers that are not trained once for all texts, if that saves time; steps read their states.

        Call it before the training starts. The states are in an unnamed file in ``folder``. With ``timed`` they are
        those of so many first steps, which repeat the batches of the first epoch if there are fewer.
        """
        if not self.keeps_states:
            return
        docs, labels = np.arange(len(self.data.rows_N)), np.arange(self.data.truth.num_labels)
        if timed is not None:
            batches = self.batches(0)
            steps = [(batches[step % len(batches)], step) for step in range(timed)]
            docs = np.unique(np.concatenate([docs_B for docs_B, _ in steps]))
            labels = np.unique(np.concatenate([self.negatives.pool(*step).labels_U for step in steps]))
        encoder, data = self.encoder, self.data
        documents = with_states(encoder, data.documents, data.rows_N[docs], folder, "documents")
        texts = with_states(encoder, data.labels, labels, folder, "labels") if self.head.reads_texts else data.labels
        self.data = replace(data, documents=documents, labels=texts)

    def start_epoch(self, epoch: int) -> dict[str, float]:
        """Cluster documents and search hard negatives if due; measure Theorem 1 on new clusters."""
        if epoch == 0:
            self._initialise()
        searches = self.settings.negatives.reads(epoch)
        vectors_ND = self.documents.numpy() if searches else np.empty((0, self.encoder.width), np.float32)
        mined = self.negatives.refresh(epoch, vectors_ND, self.vectors)
        figures = self.order.refresh(epoch, self.documents.stored())
        if figures and not self.documents.rows_ND.is_cpu:
            self.order.load(self.world.of_first(self.order.arrays()))  # kinds of cards round differently
        check_draws(self.world, self.order, self.negatives, epoch)
        clusters = self.order.clusters()
        if figures and clusters is not None and self.head.reads_texts:
            figures |= self._theorem_figures(epoch, clusters)
        return figures | mined | (self._gradient_errors() if mined and (epoch or self.fill_banks) else {})

    def _theorem_figures(self, epoch: int, clusters: tuple[I64, I64]) -> dict[str, float]:
        """Return the figures of Theorem 1 on new clusters, and the share of hard labels that the epoch's pools miss.

        Labels that no batch has drawn yet have no vector and are left out.
        """
        bank_ND, labels = self.documents.numpy(), self.texts.numpy()
        docs: Vectors = bank_ND
        if self.encoder.config.heads > 1:
            docs = Computed(
                (len(bank_ND), labels.shape[1]),
                lambda rows: self.encoder.views(torch.from_numpy(bank_ND[rows]))[0].numpy(),
            )
        seen_L, used_L = np.any(labels, axis=1), self.data.truth.frequency_L() > 0
        truth, seed = self.data.truth.only(seen_L), self.settings.seed
        measured = theorem1((docs, labels), truth, self.negatives.known, clusters, radius=RADIUS, seed=seed)
        batches = self.order.batches(epoch)
        missed = missed_by_pools((docs, labels), truth, batches, self.negatives, radius=RADIUS, seed=seed)
        share = float(seen_L[used_L].mean()) if used_L.any() else 0.0
        return {"labels_seen": share, **asdict(measured), "missed_by_batches": missed}

    def _gradient_errors(self) -> dict[str, float]:
        """Return the relative error of gradients on sampled pools against the gradient on all labels (ASTRA)."""
        head, size, rows = self.head.rows, len(self.data.rows_N), self.data.truth.num_labels
        sources = self.negatives.estimates()
        if head is None or not head.loss.separable or not sources:
            return {}
        random = generator(self.settings.seed, "gradient")
        docs, labels = (
            np.sort(random.choice(n, min(k, n), replace=False)) for n, k in ((size, _SAMPLE), (rows, _ROWS))
        )
        vectors = self.encoder.views(self.documents.rows_ND[put(docs, self.encoder.device)])[1]
        all_labels = PairPool(self.data.truth.rows(docs), self.negatives.known.rows(docs))
        figures: dict[str, float] = {}
        for name, source in sources.items():
            drawn = [source.pool(docs, -1 - draw) for draw in range(_DRAWS)]
            figures |= gradient_error(head, vectors, docs, drawn, all_labels, labels).as_dict(name)
        return figures

    @property
    def vectors(self) -> EncoderLabelVectors:
        """The vectors of all labels."""
        texts_in_documents = self.data.augmented and not self.head.reads_texts
        labels = self.data.truth.num_labels
        return EncoderLabelVectors(self.encoder, self.head, self.texts, self.documents, texts_in_documents, labels)

    def _initialise(self) -> None:
        """Fill the banks if parts need vectors before the first step; initialise rows with vectors of label texts."""
        rows = self.head.rows.table if self.head.rows is not None else None
        from_texts = rows is not None and rows.config.start == "text"
        encoder, data = self.encoder, self.data
        if self.fill_banks and self.documents.kept:
            encode_all(encoder, data.documents, data.rows_N, self.documents.write, "encoding documents", self.world)
        if not (from_texts or (self.fill_banks and self.texts.kept)):
            return

        def write(labels_B: I64, vectors_BD: Tensor) -> None:
            first_BD, second_BD = encoder.views(vectors_BD)
            self.texts.write(labels_B, first_BD)
            if rows is not None and from_texts:
                rows.put(put(labels_B, rows.rows_LD.device), second_BD)

        labels = np.arange(data.truth.num_labels, dtype=np.int64)
        encode_all(encoder, data.labels, labels, write, "encoding labels", self.world)

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of ``epoch``, as positions in ``data.rows_N``."""
        return self.order.batches(epoch)

    def learnable(self, docs_B: I64, step: int) -> bool:
        """Return True if a document of the batch has a positive to learn from and a negative."""
        return self.negatives.pool(docs_B, step).learnable

    def prepare(self, docs_B: I64, step: int) -> Ready:
        """Return the pool of the batch, and the tokens of this process's documents and label texts on the device.

        An encoder that does not compute padding gets both at once: half the operations to start.
        """
        encoder, data, pool = self.encoder, self.data, self.negatives.pool(docs_B, step)
        local_B, local_U = data.rows_N[local_rows(docs_B, self.world)], local_rows(pool.labels_U, self.world)
        if self.head.reads_once and encoder.skips_padding and not self.settings.cache:
            joined = Joined(data.documents, data.labels, 0)
            rows = np.concatenate([local_B, len(data.documents) + local_U])
            return Ready(pool, Passes.of(encoder, joined, rows), None, len(local_B))
        texts = Passes.of(encoder, data.labels, local_U) if self.head.reads_once else None
        return Ready(pool, Passes.of(encoder, data.documents, local_B), texts, len(local_B))

    def step(self, docs_B: I64, step: int, scale: float, ready: Ready | None = None) -> tuple[Tensor, Tensor]:
        """Encode the batch, score it against its pool, take a step, and save the vectors in the banks.

        On a card nothing is read: if a number is not finite, the optimiser skips the step and the loss returned is nan.
        """
        ready = ready or self.prepare(docs_B, step)
        with self.encoder.autocast():
            cached = Cached(self.encoder, ready.documents) if self.settings.cache else None
            local_MD = encode_passes(self.encoder, ready.documents) if cached is None else cached.vectors_UD
        local_BD, local_UD = local_MD[: ready.num_documents], local_MD[ready.num_documents :]
        doc_BD = gathered(local_BD, len(docs_B), self.world)
        random = torch_generator(self.settings.seed, "dropout", step)
        label_UD = local_UD if len(local_UD) else None
        batch = Batch(doc_BD, ready.pool, docs_B, scale, random, ready.texts, self.world, label_UD)
        scored = self.head.score(self.encoder, self.data.labels, batch)
        usable = scored.loss.isfinite()
        if doc_BD.is_cpu and not usable:
            return scored.loss, scored.count
        scored.backward()
        if cached is not None:
            cached.backward()
        norm = self.optimizer.step(scale, usable)
        if doc_BD.is_cpu and not norm.isfinite():
            raise diverged("a gradient that is not finite", step)
        self.documents.write(docs_B, doc_BD.detach())
        if scored.label_UD is not None:
            self.texts.write(ready.pool.labels_U, self.encoder.views(scored.label_UD.detach())[0])
        return torch.where(norm.isfinite(), scored.loss, torch.nan), scored.count

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimiser state, banks, order, negatives, and the table if there is one."""
        return {
            **{f"encoder/{name}": value for name, value in self.encoder.state_dict().items()},
            **{f"adam/{name}": value for name, value in self.optimizer.tensors().items()},
            **{f"order/{name}": torch.from_numpy(value) for name, value in self.order.arrays().items()},
            **{f"negatives/{name}": torch.from_numpy(value) for name, value in self.negatives.arrays().items()},
            **{f"head/{name}": value for name, value in self.head.tensors().items()},
            "bank": self.documents.rows_ND,
            "label_bank": self.texts.rows_ND,
        }

    def tables(self) -> dict[str, LabelTable]:
        """Return the table that is trained along, if there is one."""
        return {f"head/{prefix}": table for prefix, table in self.head.tables().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""
        self.encoder.load_state_dict(tensors_under(tensors, "encoder/"))
        self.optimizer.load(tensors_under(tensors, "adam/"))
        self.order.load({name: value.numpy() for name, value in tensors_under(tensors, "order/").items()})
        self.negatives.load({name: value.numpy() for name, value in tensors_under(tensors, "negatives/").items()})
        self.head.load(tensors_under(tensors, "head/"))
        self.documents.load(tensors["bank"])
        self.texts.load(tensors["label_bank"])
