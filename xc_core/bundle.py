"""A released model as one folder: all that serving needs, nothing that runs code when it is read.

Takes: encoder, tokenizer, vectors, rows, indexes, fusion, label names.   Gives: Bundle, Predictor.
May import: the rooms of rank 0 to 4.                                      Never: pickle; a path outside the folder.

Files: ``encoder.{json,safetensors}``, ``tokenizer.json``, ``labels.parquet`` (uid, title, frequency),
``vectors.safetensors`` (label texts' vectors, classifier rows), ``by_row/`` and ``by_text/`` (indexes),
``fusion.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file

from xc_core import artifacts
from xc_core.ann import Index, IndexConfig, load_index, save_index
from xc_core.artifacts import Build
from xc_core.data.tokenizer import TextTokenizer
from xc_core.encoders import Encoder, load_encoder, save_encoder
from xc_core.errors import CorruptError
from xc_core.fusion import Sources, load_fusion
from xc_core.infer.predictor import Predictor
from xc_core.infer.score import Scorer, Searchers

KIND: Final = "model"
_INDEXES: Final = ("by_row", "by_text")


@dataclass(frozen=True)
class Parts:
    """What a bundle is made of."""

    encoder: Encoder
    tokenizer: TextTokenizer
    scorer: Scorer
    labels: pl.DataFrame
    """uid and title of every label, in the order of ids."""


def write_bundle(build: Build, parts: Parts, index: IndexConfig, facts: dict[str, Any]) -> None:
    """Write ``parts`` into the folder being built; ``facts`` go into its manifest."""
    folder = build.path
    save_encoder(parts.encoder, folder)
    parts.tokenizer.backend.save(str(folder / "tokenizer.json"))
    sources = parts.scorer.sources
    names = parts.labels.select("uid", "title").with_columns(pl.Series("frequency", sources.frequency_L))
    names.write_parquet(folder / "labels.parquet")
    vectors = {
        "labels": np.ascontiguousarray(sources.label_LD),
        "rows": np.ascontiguousarray(sources.rows_LD),
    }
    save_file(vectors, folder / "vectors.safetensors")
    searchers = parts.scorer.searchers
    for name, built in zip(_INDEXES, (searchers.by_row, searchers.by_text), strict=True):
        if built is not None:
            write_index(folder / name, built, index)
    parts.scorer.fusion.save(folder / "fusion.json")
    build.facts |= {**facts, "tokenizer": parts.tokenizer.name, "labels": len(names)}


def write_index(folder: Path, index: Index, config: IndexConfig) -> None:
    """Write one index into a new folder inside a bundle."""
    folder.mkdir()
    save_index(index, config, folder)


def open_bundle(folder: Path) -> Predictor:
    """Open the released model at ``folder`` after checking every hash; one that is replaced meanwhile is read anew.

    Raises MissingError, CorruptError.
    """
    return artifacts.steady(folder, lambda: _opened(folder))


def _opened(folder: Path) -> Predictor:
    facts = artifacts.verify(folder, kind=KIND).facts
    labels = pl.read_parquet(folder / "labels.parquet")
    vectors = load_file(folder / "vectors.safetensors")
    if len(labels) != len(vectors["rows"]) or len(labels) != len(vectors["labels"]):
        raise CorruptError(
            f"{len(labels)} names for {len(vectors['rows'])} rows",
            expected="as many",
            do="make the bundle again",
        )
    by_text = load_index(folder / "by_text") if (folder / "by_text").is_dir() else None
    sources = Sources(vectors["labels"], vectors["rows"], labels["frequency"].to_numpy())
    searchers = Searchers(load_index(folder / "by_row"), by_text)
    return Predictor(
        TextTokenizer.from_file(str(facts["tokenizer"]), folder / "tokenizer.json"),
        load_encoder(folder),
        Scorer(searchers, sources, load_fusion(folder / "fusion.json")),
        labels["uid"].to_list(),
        labels["title"].to_list(),
    )
