"""Where the rows of a table are: in memory or in a memory-mapped file, as float32 or bfloat16.

Nothing here makes a second copy of all rows; whoever needs all of them reads them in blocks.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.artifacts import writing
from xc_core.seeds import generator, torch_generator
from xc_core.shapes import spans

MEMORY: Final = "memory"
MAPPED: Final = "mapped"
FP32: Final = "fp32"
BF16: Final = "bf16"
FORMATS: Final = {FP32: torch.float32, BF16: torch.bfloat16}

_BLOCK: Final = 1 << 24
"""Numbers in a block of rows: 64 MB of float32."""
RESIDENT: Final = 1 << 31
"""Bytes of a mapped file that may become resident before its pages are released."""
_PAGE: Final = 4096


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices that cover all rows, of at most 64 MB as float32 each."""
    return spans(rows, max(_BLOCK // max(width, 1), 1))


def stochastic(rows_UD: Tensor, seed: int, write: int) -> Tensor:
    """Return ``rows_UD`` (float32) in bfloat16, rounded up or down at random so that the expectation is the value.

    16 random bits are added to the 16 bits that are cut off. They depend on ``seed``, the number ``write`` and the kind
    of device alone. Source: ELMO (ICML 2025), section 4; Gupta et al. (2015), stochastic rounding.
    """
    bits = _random_bits(rows_UD, seed, write).add_(rows_UD.contiguous().view(torch.int32))
    return bits.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)


def _random_bits(rows_UD: Tensor, seed: int, write: int) -> Tensor:
    """Return 16 random bits (int32) for each number; a card draws its own, without a copy from the processor."""
    if not rows_UD.is_cpu:
        draws = torch_generator(seed, "rounding", write, device=rows_UD.device)
        return torch.empty(rows_UD.shape, dtype=torch.int32, device=rows_UD.device).random_(0, 1 << 16, generator=draws)
    words = generator(seed, "rounding", write).bit_generator.random_raw((rows_UD.numel() + 3) // 4)
    noise = torch.from_numpy(words.view(np.int16)[: rows_UD.numel()].reshape(rows_UD.shape))
    return noise.to(torch.int32).bitwise_and_(0xFFFF)


@dataclass
class Mapping:
    """An unnamed file that is memory-mapped; it disappears with the process. If many of its pages are resident, all are
    released.

    A released page is written to the file, or read from it again, by the kernel: nothing is lost.
    """

    map: mmap.mmap
    touched: int = 0
    """Bytes that may be resident since the last release."""

    @classmethod
    def of(cls, size: int, folder: Path | None) -> Mapping:
        """Return a mapping of ``size`` bytes in ``folder``, or in the system's folder for temporary files.

        The disk space is reserved first: writing to a mapped file on a full disk would kill the process. Raises
        StorageError if the disk is full.
        """
        with writing(folder or Path(tempfile.gettempdir())), tempfile.TemporaryFile(dir=folder) as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                stream.truncate(size)
            mapped = mmap.mmap(stream.fileno(), size)
        mapped.madvise(mmap.MADV_RANDOM)
        return cls(mapped)

    def count_access(self, rows: int, row_bytes: int, *, scattered: bool) -> None:
        """Count an access to ``rows``; release all pages if more than 2 GB may be resident."""
        self.touched += rows * (max(row_bytes, _PAGE) if scattered else row_bytes)
        if self.touched > RESIDENT:
            self.release()

    def release(self) -> None:
        """Release all resident pages."""
        self.map.madvise(mmap.MADV_DONTNEED)
        self.touched = 0


class Rows:
    """L rows of width D in one storage. ``data_LD`` is the whole of it; read and write through the methods."""

    def __init__(
        self, shape: tuple[int, int], device: torch.device, *, storage: str = MEMORY, precision: str = FP32,
        folder: Path | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.shape, self.storage, self.precision, self.folder, self.seed = shape, storage, precision, folder, seed
        self.writes = 0
        """Number of writes so far, which decides their random bits."""
        kind = FORMATS[precision]
        self.mapping: Mapping | None = None
        if storage == MAPPED and shape[0] * shape[1]:
            self.mapping = Mapping.of(shape[0] * shape[1] * kind.itemsize, folder)
            self.data_LD = torch.frombuffer(self.mapping.map, dtype=kind).view(shape)
        else:
            self.data_LD = torch.zeros(shape, dtype=kind, device=device)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def exact(self) -> bool:
        """True if a row is stored as float32."""
        return self.precision == FP32

    def to(self, device: torch.device) -> None:
        """Move rows in memory to ``device``; those of a mapped file stay where they are."""
        if self.storage == MEMORY:
            self.data_LD = self.data_LD.to(device)

    def zeros_like(self) -> Rows:
        """Return rows of zeros in float32, as many and in the same kind of storage."""
        return Rows(self.shape, self.data_LD.device, storage=self.storage, folder=self.folder)

    def read(self, index: Tensor | slice, out: Tensor | None = None) -> Tensor:
        """Return rows as float32: a view if they are contiguous and stored as such, else a copy, in ``out`` if given.

        ``out`` may have more rows than needed.
        """
        if isinstance(index, slice):
            self._count_access(index.stop - index.start, scattered=False)
            return self.data_LD[index].float()
        self._count_access(len(index), scattered=True)
        if not self.exact:
            return self.data_LD.index_select(0, index).float()
        if out is None or out.requires_grad:
            return self.data_LD.index_select(0, index)
        return torch.index_select(self.data_LD, 0, index, out=out[: len(index)])

    def write(self, index: Tensor | slice, rows_UD: Tensor) -> None:
        """Store float32 rows; they are rounded at random if the storage is bfloat16."""
        value = rows_UD
        if not self.exact:
            value = stochastic(rows_UD, self.seed, self.writes)
            self.writes += 1
        if isinstance(index, slice):
            self._count_access(index.stop - index.start, scattered=False)
            self.data_LD[index] = value
        else:
            self._count_access(len(index), scattered=True)
            self.data_LD.index_copy_(0, index, value)

    def subtract(self, index: Tensor, step_UD: Tensor) -> None:
        """Subtract from float32 rows in place."""
        self._count_access(len(index), scattered=True)
        self.data_LD.index_add_(0, index, step_UD, alpha=-1.0)

    def put(self, index: Tensor, rows_UD: Tensor) -> None:
        """Store float32 rows; to bfloat16 they are rounded to the nearest."""
        self._count_access(len(index), scattered=True)
        self.data_LD[index] = rows_UD.to(self.data_LD)

    def fill(self, rows_LD: Tensor, factor: float = 1.0) -> None:
        """Store all rows, multiplied by ``factor``, block by block; to bfloat16 they are rounded to the nearest."""
        for block in blocks(*self.shape):
            rows_UD = rows_LD[block].to(self.data_LD.device)
            self.data_LD[block] = rows_UD if factor == 1.0 else rows_UD.float() * factor
            self._count_access(block.stop - block.start, scattered=False)

    def _count_access(self, rows: int, *, scattered: bool) -> None:
        if self.mapping is not None:
            self.mapping.count_access(rows, self.shape[1] * self.data_LD.element_size(), scattered=scattered)
