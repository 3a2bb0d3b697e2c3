"""What omikuji reads and prints: a training file, and logs that are discarded."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from xc_core.data.labels import LabelMatrix

_LINES_AT_ONCE: Final = 2_048
"""Documents of a training file that are turned into text at a time, at most."""
_TERMS_AT_ONCE: Final = 100_000
"""Their terms, about: a term takes some 100 bytes meanwhile. Arrow holds 2 GB of text at most."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard stdout and stderr of the process: omikuji logs to one and draws progress bars on the other."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(devnull, number)
        yield
    finally:
        for number, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, number)
        for descriptor in (*saved, devnull):
            os.close(descriptor)


def write_rows(path: Path, terms_NT: Any, truth: LabelMatrix) -> None:
    """Write a training file for omikuji: the numbers of documents, terms and labels, then one document per line.

    A line has the document's labels, then its terms with their values. Numbers are written so that the same float32 is
    read again.
    """
    with path.open("wb") as stream:
        stream.write(f"{len(truth)} {terms_NT.shape[1]} {truth.num_labels}\n".encode())
        at_once = max(min(_LINES_AT_ONCE, _TERMS_AT_ONCE * len(truth) // max(terms_NT.nnz, 1)), 1)
        for start in range(0, len(truth), at_once):
            rows = np.arange(start, min(len(truth), start + at_once))
            stream.write(_lines(terms_NT[rows], truth.rows(rows)))


def _lines(terms_NT: Any, truth: LabelMatrix) -> bytes:
    """Return lines of a training file; text is made by columns, in Arrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs = (pa.array(column).cast(pa.string()) for column in (terms_NT.indices, terms_NT.data))
    terms = pc.binary_join_element_wise(*pairs, ":")
    labels = pa.array(truth.indices).cast(pa.string())
    rows = [(truth.indptr, labels, ","), (terms_NT.indptr, terms, " ")]
    fields = [
        pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat), mark)
        for offsets, flat, mark in rows
    ]
    lines = pc.binary_join_element_wise(*fields, " ")
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")
    joined: bytes = text[0].as_buffer().to_pybytes()
    return joined + b"\n"
