"""The artefact of the stage encoder: a trained encoder with its tokenizer.

Files: ``encoder.json``, ``encoder.safetensors``, ``tokenizer.json``, ``history.json`` (losses and figures of
refreshes), and, if a table was trained along with the encoder, ``rows.npy`` (L x D), ``rows.json`` (unit or not) and
``rows.parquet`` (uid of each label and a hash of its text).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.data.history import TrainedOn, read_history, write_history
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TOKENIZER
from xc_core.encoders.base import Encoder, load_encoder, save_encoder
from xc_core.shapes import Vectors, spans

_ROWS: Final = "rows.npy"
_KIND_OF_ROWS: Final = "rows.json"
_LABELS_OF_ROWS: Final = "rows.parquet"
_NUMBERS: Final = 1 << 22
"""Numbers of rows that are written together: 16 MB."""


@dataclass(frozen=True)
class TrainedEncoder:
    """An encoder, its tokenizer, and the rows that were trained along with it."""

    kind: ClassVar[str] = "encoder"
    encoder: Encoder
    tokenizer: TextTokenizer
    history: dict[str, Any]
    """Losses, epochs, refreshes and documents of the training; empty lists and no documents if there was none."""
    rows_LD: Vectors | None = None
    """Rows of a table that was trained along (L x D), as they are served; None if there was none."""
    unit_rows: bool = True
    """True if these rows are unit vectors; otherwise products with them are logits."""
    row_labels: pl.DataFrame | None = None
    """The labels of these rows (``data.names.row_labels``), in their order."""

    @property
    def was_trained(self) -> bool:
        """False for one that is as it was pretrained, or initialised: it learnt from no document of the dataset."""
        return bool(self.history.get("losses"))

    @property
    def saw_validation(self) -> bool:
        """True if it was trained on validation documents, so that nothing may be fitted or chosen on them."""
        return TrainedOn.read(self.history, TrainedOn(train=0)).validation > 0

    @classmethod
    def open(cls, folder: Path) -> TrainedEncoder:
        """Open and verify the artefact at ``folder``; the encoder is in evaluation mode.

        Raises MissingError, CorruptError.
        """
        manifest = artifacts.verify(folder, kind=cls.kind)
        encoder, tokenizer = open_encoder(folder)
        rows_LD = None
        if _ROWS in manifest.files:  # memory-mapped: most readers of an encoder do not use its rows
            rows_LD = np.asarray(np.load(folder / _ROWS, mmap_mode="c", allow_pickle=False))
        unit = _KIND_OF_ROWS not in manifest.files or json.loads((folder / _KIND_OF_ROWS).read_text("utf-8"))["unit"]
        labels = pl.read_parquet(folder / _LABELS_OF_ROWS, glob=False) if _LABELS_OF_ROWS in manifest.files else None
        return cls(encoder, tokenizer, read_history(folder) or {}, rows_LD, unit, labels)

    def write(self, build: Build) -> None:
        """Write the files of the artefact."""
        write_encoder(build.path, self.encoder, self.tokenizer)
        write_history(build, self.history)
        if self.rows_LD is not None:
            _write_rows(build.path / _ROWS, self.rows_LD)
            build.json(_KIND_OF_ROWS, {"unit": self.unit_rows})
        if self.row_labels is not None:
            self.row_labels.write_parquet(build.path / _LABELS_OF_ROWS)
        build.facts["width"] = self.encoder.width


def _write_rows(path: Path, rows_LD: Vectors) -> None:
    """Write what ``np.save`` would, block by block."""
    with path.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": rows_LD.shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for part in spans(len(rows_LD), max(_NUMBERS // max(rows_LD.shape[1], 1), 1)):
            stream.write(np.ascontiguousarray(rows_LD[part], "<f4").data)


def write_encoder(folder: Path, encoder: Encoder, tokenizer: TextTokenizer) -> None:
    """Write an encoder and its tokenizer into ``folder``."""
    save_encoder(encoder, folder)
    tokenizer.backend.save(str(folder / TOKENIZER))


def open_encoder(folder: Path, *, to_answer: bool = False) -> tuple[Encoder, TextTokenizer]:
    """Return the encoder in ``folder`` and its tokenizer; ``to_answer`` is that of ``load_encoder``.

    Raises MissingError, CorruptError.
    """
    encoder = load_encoder(folder, to_answer=to_answer)
    return encoder, TextTokenizer.from_file(encoder.config.tokenizer, folder / TOKENIZER)
