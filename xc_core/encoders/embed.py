"""Encode many texts, in chunks of similar length so that little padding is encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from xc_core.data.batches import by_length
from xc_core.data.tokens import Tokens
from xc_core.devices import fetched, put
from xc_core.distributed import ALONE, World
from xc_core.encoders.base import Encoder
from xc_core.progress import Meter
from xc_core.shapes import F32, I64, TokenBatch

T = TypeVar("T")


@dataclass(frozen=True)
class _WhenEncoded(Sequence[tuple[Tensor, ...]]):
    """Passes that are read when they are encoded, so that memory holds the states of one of them."""

    chunks: list[I64]
    read: Callable[[I64], tuple[Tensor | None, ...]]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, at: Any) -> Any:
        return self.read(self.chunks[at])


@dataclass(frozen=True)
class Passes:
    """Texts that are ready to be encoded: their tokens on the encoder's device, in passes of similar length."""

    batches: Sequence[tuple[Tensor | None, ...]]
    """The arguments of the encoder for each pass: token ids and mask (both B x T), and if they are known the states of
    the tokens (B x T x H), or the places of the tokens in the mask. On a CPU a pass is read when it is encoded."""
    back_N: Tensor
    """Position of each text among the texts of all passes."""

    @classmethod
    def of(cls, encoder: Encoder, store: Tokens, rows: I64) -> Passes:
        """Divide ``rows`` into passes and copy them to the encoder's device."""
        config = encoder.config
        lengths = store.lengths(rows, config.max_length)
        chunks = by_length(lengths, encoder.tokens_per_pass, encoder.pass_cost)
        back = np.argsort(np.concatenate([np.zeros(0, np.int64), *chunks]), kind="stable")

        def read(chunk: I64) -> tuple[Tensor | None, ...]:
            return _put_batch(encoder, store.batch(rows[chunk], config.max_length))

        batches = _WhenEncoded(chunks, read) if encoder.device.type == "cpu" else [read(chunk) for chunk in chunks]
        return cls(batches, put(back, encoder.device))


def _put_batch(encoder: Encoder, batch: TokenBatch) -> tuple[Tensor | None, ...]:
    """Return the arguments of the encoder for a batch, on its device."""
    parts = (batch.ids_BT, batch.mask_BT, batch.states_BTH)
    given = tuple(put(part, encoder.device) for part in parts if part is not None)
    return (*given, None, put(np.flatnonzero(batch.mask_BT), encoder.device)) if encoder.skips_padding else given


def encode_passes(encoder: Encoder, passes: Passes) -> Tensor:
    """Return unit vectors (N x D), with gradient, in the order of the texts.

    Call it in ``encoder.autocast()``: one context for all texts of a step casts the weights once.
    """
    if not passes.batches:
        return torch.zeros((0, encoder.width), device=encoder.device)
    return torch.cat([encoder(*batch) for batch in passes.batches]).index_select(0, passes.back_N)


def encode_batch(encoder: Encoder, batch: TokenBatch) -> Tensor:
    """Return unit vectors (B x D) of one padded batch, on the encoder's device."""
    out: Tensor = encoder(*_put_batch(encoder, batch))
    return out


def encode_rows(encoder: Encoder, store: Tokens, rows: I64) -> Tensor:
    """Return unit vectors (len(rows) x D), with gradient, in the order of ``rows``; see ``encode_passes``."""
    return encode_passes(encoder, Passes.of(encoder, store, rows))


class Cached:
    """Texts that are encoded without a graph, then again pass by pass for their gradient (GradCache).

    Memory holds the activations of one pass instead of all, at the cost of a second forward pass. Source: Gao et al.,
    "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (2021). DEXML trains its label tower this
    way.
    """

    def __init__(self, encoder: Encoder, passes: Passes) -> None:
        self.encoder, self.passes = encoder, passes
        with torch.no_grad():
            vectors = encode_passes(encoder, passes)
        self.vectors_UD = vectors.requires_grad_(True)

    def backward(self) -> None:
        """Add the gradient of ``vectors_UD`` to the encoder's parameters; call it after the loss's backward pass."""
        if self.vectors_UD.grad is None:
            return
        places_N, start = torch.argsort(self.passes.back_N), 0
        for batch in self.passes.batches:
            with self.encoder.autocast():
                again = self.encoder(*batch)
            torch.autograd.backward(again, self.vectors_UD.grad[places_N[start : start + len(again)]])
            start += len(again)


class Out(Protocol):
    """Where vectors are written: an array, or what passes them on."""

    def __setitem__(self, at_B: I64, vectors_BD: F32, /) -> None:
        """Write the vectors of the texts ``at_B``."""


@torch.no_grad()
def embed_rows(encoder: Encoder, store: Tokens, rows: I64, out_ND: Out, what: str, world: World = ALONE) -> None:
    """Fill ``out_ND`` (len(rows) x D, float32, may be a memory map) with unit vectors, in evaluation mode.

    ``what`` is the title of the progress bar. Of several processes each encodes every W-th chunk; only the first one
    gets the vectors, which are those of one process, bit for bit on the same kind of processor. The vectors of a chunk
    are read after the next chunk was begun, so that a card does not wait for the processor.
    """
    was_training = encoder.training
    encoder.eval()
    fast = encoder.without_gradients()
    lengths = store.lengths(rows, encoder.config.max_length)
    most = min(world.everyone(encoder.tokens_per_pass))  # cards differ in memory
    chunks = by_length(lengths, most, encoder.pass_cost)
    turns = (chunks[at : at + world.size] for at in range(0, len(chunks), world.size))
    begun = ((turn, [_begun(fast, store, rows[at]) for at in turn[world.rank : world.rank + 1]]) for turn in turns)
    with Meter(what, int(lengths.sum()), "tokens") as meter, fast.autocast():
        for turn, own in _one_behind(begun):
            for chunk, found in zip(turn, world.to_first([read() for read in own]), strict=False):
                out_ND[chunk] = found[0]
            meter.update(sum(int(lengths[chunk].sum()) for chunk in turn))
    encoder.train(was_training)


def _begun(encoder: Encoder, store: Tokens, rows: I64) -> Callable[[], F32]:
    """Begin to encode; return a function that returns the vectors."""
    return fetched(encode_batch(encoder, store.batch(rows, encoder.config.max_length)).float())


def _one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yield all items in order, each after the next one was made."""
    last: list[T] = []
    for item in items:
        yield from last
        last = [item]
    yield from last
