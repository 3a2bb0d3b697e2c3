"""Encode many texts, in chunks of similar length so that little padding is encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from xc_core.data.batches import by_length
from xc_core.data.tokens import Tokens
from xc_core.devices import fetched, put
from xc_core.distributed import ALONE, World
from xc_core.encoders.base import Encoder, Group
from xc_core.progress import Meter
from xc_core.seeds import drawn_again
from xc_core.shapes import F32, I64, TokenBatch

T = TypeVar("T")
_GROUP_COST: Final = 8192
"""Padded tokens that cost as much as one more group of texts in a pass without padding (a guess): a group adds a few
operations to each layer."""
_STEP: Final = 8
"""Lengths are rounded up to multiples of this when texts are divided into groups: fewer to choose from (a guess)."""
PassInput = tuple[Tensor, ...] | list[Group]
"""What an encoder is given for a pass: its arguments, or the groups of texts for ``unpadded``."""


@dataclass(frozen=True)
class _LazyPasses(Sequence[PassInput]):
    """Passes that are read when they are encoded, so that memory holds the states of one of them."""

    chunks: list[list[I64]]
    read: Callable[[list[I64]], PassInput]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, index: Any) -> Any:
        return self.read(self.chunks[index])


@dataclass(frozen=True)
class Passes:
    """Texts that are ready to be encoded: their tokens on the encoder's device, in passes of similar length."""

    batches: Sequence[PassInput]
    """Each pass: token ids and mask (both B x T), and if they are known the states of the tokens (B x T x H); or groups
    of texts, for an encoder that skips padding. On a CPU a pass is read when it is encoded."""
    back_N: Tensor
    """Position of each text among the texts of all passes."""

    @classmethod
    def of(cls, encoder: Encoder, store: Tokens, rows: I64) -> Passes:
        """Divide ``rows`` into passes and copy them to the encoder's device."""
        longest = encoder.config.max_length
        passes = _plan_passes(encoder, store.lengths(rows, longest), encoder.tokens_per_pass)
        back = np.argsort(np.concatenate([np.zeros(0, np.int64), *chain.from_iterable(passes)]), kind="stable")

        def read(groups: list[I64]) -> PassInput:
            return _load_pass(encoder, store, rows, groups)

        batches = _LazyPasses(passes, read) if encoder.device.type == "cpu" else [read(groups) for groups in passes]
        return cls(batches, put(back, encoder.device))


def _plan_passes(encoder: Encoder, lengths_N: I64, max_tokens: int) -> list[list[I64]]:
    """Return the positions of the texts of each pass, in groups that are padded together.

    A pass has at most ``max_tokens`` padded tokens, or one longer text. It has one group unless padding is skipped.
    """
    if not encoder.skips_padding:
        return [[chunk] for chunk in by_length(lengths_N, max_tokens, encoder.pass_cost)]
    rounded = -(-lengths_N // _STEP) * _STEP
    passes: list[list[I64]] = []
    tokens = 0
    for group in by_length(rounded, max_tokens, _GROUP_COST):
        size = len(group) * int(rounded[group].max())
        if not passes or tokens + size > max_tokens:
            passes.append([])
            tokens = 0
        passes[-1].append(group)
        tokens += size
    return passes


def _load_pass(encoder: Encoder, store: Tokens, rows: I64, groups: list[I64]) -> PassInput:
    """Return what the encoder is given for a pass, on its device; ``groups`` are positions among ``rows``."""
    batches = [store.batch(rows[group], encoder.config.max_length) for group in groups]
    if encoder.skips_padding:
        return [_unpadded_group(encoder, batch) for batch in batches]
    (batch,) = batches
    tensors = (batch.ids_BT, batch.mask_BT, batch.states_BTH)
    return tuple(put(tensor, encoder.device) for tensor in tensors if tensor is not None)


def _unpadded_group(encoder: Encoder, batch: TokenBatch) -> Group:
    mask_BT = batch.mask_BT
    arrays = batch.ids_BT[mask_BT], mask_BT, np.flatnonzero(mask_BT)
    return Group(*(put(array, encoder.device) for array in arrays))


def _encode_pass(encoder: Encoder, batch: PassInput) -> Tensor:
    """Return the unit vectors of a pass (N x D), in the order of its texts."""
    out: Tensor = encoder.forward_unpadded(batch) if isinstance(batch, list) else encoder(*batch)
    return out


def encode_passes(encoder: Encoder, passes: Passes) -> Tensor:
    """Return unit vectors (N x D), with gradient, in the order of the texts.

    Call it in ``encoder.autocast()``: one context for all texts of a step casts the weights once.
    """
    if not passes.batches:
        return torch.zeros((0, encoder.width), device=encoder.device)
    return torch.cat([_encode_pass(encoder, batch) for batch in passes.batches]).index_select(0, passes.back_N)


def encode_rows(encoder: Encoder, store: Tokens, rows: I64) -> Tensor:
    """Return unit vectors (len(rows) x D), with gradient, in the order of ``rows``; see ``encode_passes``."""
    return encode_passes(encoder, Passes.of(encoder, store, rows))


class Cached:
    """Texts that are encoded without a graph, then again pass by pass for their gradient (GradCache).

    Memory holds the activations of one pass instead of all, at the cost of a second forward pass. Source: Gao et al.,
    "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (2021). DEXML trains its label tower this
    way. On a CPU an encoder that draws numbers, as for dropout, draws the same ones again.
    """

    def __init__(self, encoder: Encoder, passes: Passes) -> None:
        self.encoder, self.passes = encoder, passes
        self._drawn_again = drawn_again()
        with torch.no_grad():
            vectors = encode_passes(encoder, passes)
        self.vectors_UD = vectors.requires_grad_(True)

    def backward(self) -> None:
        """Add the gradient of ``vectors_UD`` to the encoder's parameters; call it after the loss's backward pass."""
        if self.vectors_UD.grad is None:
            return
        with self._drawn_again():
            self._encode_again(self.vectors_UD.grad)

    def _encode_again(self, gradient_UD: Tensor) -> None:
        places_N, start = torch.argsort(self.passes.back_N), 0
        for batch in self.passes.batches:
            with self.encoder.autocast():
                recomputed = _encode_pass(self.encoder, batch)
            torch.autograd.backward(recomputed, gradient_UD[places_N[start : start + len(recomputed)]])
            start += len(recomputed)


class Out(Protocol):
    """Where vectors are written: an array, or what passes them on."""

    def __setitem__(self, rows_B: I64, vectors_BD: F32, /) -> None:
        """Write the vectors of the texts ``rows_B``."""


@torch.no_grad()
def embed_rows(encoder: Encoder, store: Tokens, rows: I64, out_ND: Out, title: str, world: World = ALONE) -> None:
    """Fill ``out_ND`` (len(rows) x D, float32, may be a memory map) with unit vectors, in evaluation mode.

    ``title`` is that of the progress bar. Of several processes each encodes every W-th pass; only the first one
    gets the vectors, which are those of one process, bit for bit on the same kind of processor. The vectors of a pass
    are read after the next pass was begun, so that a card does not wait for the processor.
    """
    was_training = encoder.training
    encoder.eval()
    fast = encoder.without_gradients()

    def begin(groups: list[I64]) -> Callable[[], F32]:
        return fetched(_encode_pass(fast, _load_pass(fast, store, rows, groups)).float())

    lengths = store.lengths(rows, encoder.config.max_length)
    max_tokens = min(world.everyone(encoder.tokens_per_pass))  # cards differ in memory
    passes = _plan_passes(fast, lengths, max_tokens)
    rounds = (passes[start : start + world.size] for start in range(0, len(passes), world.size))
    begun = (
        (passes_of_round, [begin(groups) for groups in passes_of_round[world.rank : world.rank + 1]])
        for passes_of_round in rounds
    )
    with Meter(title, int(lengths.sum()), "tokens") as meter, fast.autocast():
        for passes_of_round, reads in _delayed(begun):
            for groups, vectors in zip(passes_of_round, world.to_first([read() for read in reads]), strict=False):
                out_ND[np.concatenate(groups)] = vectors[0]
            meter.update(sum(int(lengths[group].sum()) for groups in passes_of_round for group in groups))
    encoder.train(was_training)


def _delayed(items: Iterable[T]) -> Iterator[T]:
    """Yield all items in order, each only after the next one has been read."""
    previous: list[T] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous
