"""The states of tokens after the layers of an encoder that are not trained: computed once, read in every step of M1.

A text is encoded several times in a training, and its frozen layers give the same each time. A step that reads their
states computes the trained layers alone. Losses are those of whole encodings, up to rounding.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from xc_core.classifiers.storage import FP32, MAPPED, Rows
from xc_core.data.batches import by_length
from xc_core.data.labels import ragged_positions
from xc_core.data.tokens import Tokens
from xc_core.devices import CPU
from xc_core.encoders import Encoder
from xc_core.errors import StorageError
from xc_core.progress import Meter, report
from xc_core.shapes import I64, TokenBatch

_SHARE: Final = 0.25
"""Share of the free disk space that states may take (a guess)."""
_STATE: Final = 4
"""Bytes of a number of a state: float32, so that nothing is lost."""


@dataclass(frozen=True)
class WithStates:
    """Texts of ``store``, with the states of their tokens in an unnamed file that disappears with the training.

    Rows whose states are not kept must not be asked for.
    """

    store: Tokens
    max_length: int
    """Largest number of tokens of a text."""
    states_TH: Rows
    """A row per token of the texts that are kept."""
    starts_N: I64
    """First state of each row of ``store``; -1 if its states are not kept."""

    @classmethod
    @torch.no_grad()
    def of(cls, encoder: Encoder, store: Tokens, rows: I64, folder: Path, side: str) -> WithStates:
        """Compute the states of ``rows``; the file is in ``folder``. ``side`` names the texts in the progress bar.

        Raises StorageError if there is no space for it.
        """
        longest, fast = encoder.config.max_length, encoder.without_gradients()
        lengths = store.lengths(rows, longest)
        starts_N = np.full(len(store), -1, np.int64)
        starts_N[rows] = np.cumsum(lengths) - lengths
        shape = (int(lengths.sum()), encoder.frozen_width)
        states_TH = Rows(shape, CPU.torch, storage=MAPPED, precision=FP32, folder=folder)
        with Meter(f"encoding {side}, frozen layers", shape[0], "tokens") as meter, fast.autocast():
            for chunk in by_length(lengths, fast.tokens_per_pass, fast.pass_cost):
                batch = store.batch(rows[chunk], longest)
                mask_BT = torch.from_numpy(batch.mask_BT)
                states_BTH = fast.frozen(torch.from_numpy(batch.ids_BT), mask_BT)
                positions = ragged_positions(starts_N[rows[chunk]], batch.lengths_B)
                states_TH.put(torch.from_numpy(positions), states_BTH[mask_BT])
                meter.update(len(positions))
        return cls(store, longest, states_TH, starts_N)

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, rows: I64, max_length: int) -> I64:
        """Return the number of tokens of ``rows`` in a batch, at most ``max_length``."""
        return self.store.lengths(rows, max_length)

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        """Return ``rows`` as a TokenBatch with states, padded to the longest row."""
        assert max_length == self.max_length, "states are those of texts that are cut elsewhere"
        batch = self.store.batch(rows, max_length)
        starts = self.starts_N[rows]
        assert starts.min(initial=0) >= 0, "rows whose states are not kept"
        states_BTH = torch.zeros((*batch.ids_BT.shape, self.states_TH.shape[1]))
        positions = torch.from_numpy(ragged_positions(starts, batch.lengths_B))
        states_BTH[torch.from_numpy(batch.mask_BT)] = self.states_TH.read(positions)
        return replace(batch, states_BTH=states_BTH.numpy())


def with_states(encoder: Encoder, store: Tokens, rows: I64, folder: Path, side: str) -> Tokens:
    """Return ``store`` with the states of ``rows``, or as it is if the disk has too little space for them."""
    size = state_bytes(encoder, int(store.lengths(rows, encoder.config.max_length).sum()))
    free = shutil.disk_usage(folder).free
    slower = f"encoder: the frozen layers of {side} are computed in every step"
    need = f"their states need {size / 1e9:.1f} GB"
    if size > _SHARE * free:
        report(f"{slower}, because {need}, more than a quarter of the {free / 1e9:.1f} GB that are free")
        return store
    try:
        return WithStates.of(encoder, store, rows, folder, side)
    except StorageError as error:  # a quota, for example
        report(f"{slower}, because {need} on disk ({error.found})")
        return store


def state_bytes(encoder: Encoder, tokens: int) -> int:
    """Return the bytes of the states of ``tokens`` tokens."""
    return tokens * encoder.frozen_width * _STATE
