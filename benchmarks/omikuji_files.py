"""What omikuji reads and prints: a training file, and logs that are discarded."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xc_core.data.labels import LabelMatrix


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
    """Write a training file: the numbers of documents, terms and labels, then a document per line, as in svmlight."""
    from scipy.sparse import csr_matrix
    from sklearn.datasets import dump_svmlight_file

    labels_NL = csr_matrix((np.ones(len(truth.indices)), truth.indices, truth.indptr), truth.shape)
    with path.open("wb") as stream:
        stream.write(f"{len(truth)} {terms_NT.shape[1]} {truth.num_labels}\n".encode())
        dump_svmlight_file(terms_NT, labels_NL, stream, multilabel=True)
