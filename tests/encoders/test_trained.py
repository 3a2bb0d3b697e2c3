"""The artefact of a trained encoder: encoder, tokenizer, history and rows are read as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from xc_core import artifacts
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import (
    EncoderConfig,
    TrainedEncoder,
    build_encoder,
    encode_rows,
    open_encoder,
    write_encoder,
)
from xc_core.encoders.packed import PackedBert
from xc_core.encoders.trained import _write_rows
from xc_core.errors import CorruptError, MissingError
from xc_core.shapes import F32, I64, Computed

HISTORY: dict[str, Any] = {"losses": [0.5], "epochs": [1.0], "refreshes": [{"epoch": 0.0, "cohesion": 0.5}]}
ROWS: F32 = np.arange(8, dtype=np.float32).reshape(2, 4)


def trained(tokenizer: TextTokenizer, **changes: Any) -> TrainedEncoder:
    config = EncoderConfig(name="bag", width=4, precision="fp32", max_length=8)  # type: ignore[arg-type]
    return TrainedEncoder(build_encoder(config, tokenizer.vocabulary_size, 0), tokenizer, HISTORY, **changes)


@pytest.mark.parametrize("numbers", [1, 7, 1 << 22])
def test_rows_are_written_block_by_block_as_numpy_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr("xc_core.encoders.trained._NUMBERS", numbers)
    rows_LD = np.random.default_rng(0).random((11, 3), np.float32)
    np.save(tmp_path / "expected.npy", rows_LD)
    for rows in (rows_LD, Computed(rows_LD.shape, rows_LD.__getitem__)):
        _write_rows(tmp_path / "rows.npy", rows)
        assert (tmp_path / "rows.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


def write(folder: Path, encoder: TrainedEncoder) -> TrainedEncoder:
    with artifacts.building(folder, kind=TrainedEncoder.kind) as build:
        encoder.write(build)
    return TrainedEncoder.open(folder)


def test_an_encoder_is_read_as_it_was_written(
    tokenizer: TextTokenizer, store: TokenStore, rows: I64, tmp_path: Path
) -> None:
    before = trained(tokenizer)
    before.encoder.train()
    after = write(tmp_path / "encoder", before)
    assert not after.encoder.training
    assert torch.equal(encode_rows(after.encoder, store, rows), encode_rows(before.encoder, store, rows))
    assert after.tokenizer.same_as(tokenizer)
    assert after.history == HISTORY
    assert after.rows_LD is None
    assert after.unit_rows
    assert artifacts.read_made(tmp_path / "encoder").facts == {"steps": 1, "width": 4}


@pytest.mark.parametrize("unit", [True, False])
def test_rows_trained_along_are_kept_with_their_kind(tokenizer: TextTokenizer, tmp_path: Path, unit: bool) -> None:
    labels = pl.DataFrame({"uid": ["b", "a"], "text": ["1", "2"]})
    after = write(tmp_path / "encoder", trained(tokenizer, rows_LD=ROWS, unit_rows=unit, row_labels=labels))
    assert after.rows_LD is not None and after.row_labels is not None
    assert np.array_equal(after.rows_LD, ROWS)
    assert after.unit_rows is unit
    assert after.row_labels.equals(labels)


def test_an_encoder_that_only_answers_is_opened_packed(bert: Path, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """It is faster on a few texts."""
    encoder = build_encoder(EncoderConfig(name=str(bert)), tokenizer.vocabulary_size, 0)
    write_encoder(tmp_path, encoder, tokenizer)
    for to_answer in (True, False):
        found, _ = open_encoder(tmp_path, to_answer=to_answer)
        assert isinstance(found, PackedBert) == to_answer


def test_an_encoder_and_its_tokenizer_are_kept_without_an_artefact(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    before = trained(tokenizer).encoder
    write_encoder(tmp_path, before, tokenizer)
    after, found = open_encoder(tmp_path)
    assert found.same_as(tokenizer)
    for name, value in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], value), name
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(MissingError, match=r"tokenizer\.json"):
        open_encoder(tmp_path)


@pytest.mark.parametrize("name", ["encoder.safetensors", "encoder.json", "tokenizer.json", "history.json", "rows.npy"])
def test_a_damaged_or_missing_artefact_is_named(tokenizer: TextTokenizer, tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingError):
        TrainedEncoder.open(tmp_path / "encoder")
    write(tmp_path / "encoder", trained(tokenizer, rows_LD=ROWS))
    path = tmp_path / "encoder" / name
    path.write_bytes(path.read_bytes()[:-1] + b"#")
    with pytest.raises(CorruptError, match=name):
        TrainedEncoder.open(tmp_path / "encoder")
