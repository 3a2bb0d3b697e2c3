"""A released model as one folder: all that serving needs, nothing that runs code when it is read.

Takes: encoder, tokenizer, vectors, rows, indexes, fusion, label names.   Gives: Bundle, Predictor.
May import: the rooms of rank 0 to 4.                                      Never: pickle; a path outside the folder.

Files: ``encoder.{json,safetensors}``, ``tokenizer.json``, ``labels.parquet`` (uid, title, frequency),
``vectors.safetensors`` (label texts' vectors, classifier rows), ``by_row/`` and ``by_text/`` (indexes),
``fusion.json``; where train documents vote ``neighbours/``, their index and their labels; where negatives were drawn
from a distribution that prediction needs, ``noise.safetensors``; where words have a score, ``lexical/``.
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
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokenizer import TextTokenizer
from xc_core.encoders import Encoder, load_encoder, save_encoder
from xc_core.errors import CorruptError
from xc_core.fusion import LEXICAL, Lexical, Neighbours, Sources, load_fusion
from xc_core.fusion.lexical import CONFIG
from xc_core.infer.predictor import Predictor
from xc_core.infer.score import Scorer, Searchers
from xc_core.sampling import load_noise, save_noise
from xc_core.sampling.noise import FILE as NOISE_FILE

KIND: Final = "model"
_INDEXES: Final = ("by_row", "by_text")
_NEIGHBOURS: Final = "neighbours"


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
    if sources.neighbours is not None:
        _write_neighbours(folder / _NEIGHBOURS, sources.neighbours)
    if sources.noise is not None:
        save_noise(sources.noise, folder)
    if sources.lexical is not None:
        (folder / LEXICAL).mkdir()
        sources.lexical.save(folder / LEXICAL)
    parts.scorer.fusion.save(folder / "fusion.json")
    build.facts |= {**facts, "tokenizer": parts.tokenizer.name, "labels": len(names)}


def _write_neighbours(folder: Path, neighbours: Neighbours) -> None:
    """Write the train documents that vote: their index and their labels."""
    write_index(folder, neighbours.index, Neighbours.searched(neighbours.index.size))
    truth = neighbours.truth
    save_file({"indptr": truth.indptr, "indices": truth.indices}, folder / "labels.safetensors")


def _neighbours(folder: Path, num_labels: int) -> Neighbours:
    """Load what ``_write_neighbours`` wrote."""
    rows = load_file(folder / "labels.safetensors")
    index, truth = load_index(folder), LabelMatrix(rows["indptr"], rows["indices"], num_labels)
    if index.size != len(truth):
        raise CorruptError(
            f"{index.size} vectors and labels of {len(truth)} documents in {folder}",
            expected="as many of both",
            do="make the bundle again: xc run model --force, with its --dataset and --recipe",
        )
    return Neighbours(index, truth)


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
    manifest = artifacts.verify(folder, kind=KIND)
    facts = manifest.facts
    labels = pl.read_parquet(folder / "labels.parquet")
    vectors = load_file(folder / "vectors.safetensors")
    # what the manifest does not list was not checked, so it is not opened
    indexes = {name: load_index(folder / name) for name in _INDEXES if f"{name}/index.json" in manifest.files}
    sizes = {"labels.parquet": len(labels), **{f"vectors.safetensors, {name}": len(v) for name, v in vectors.items()}}
    sizes |= {name: index.size for name, index in indexes.items()}
    words = Lexical.load(folder / LEXICAL) if f"{LEXICAL}/{CONFIG}" in manifest.files else None
    sizes |= {} if words is None else {LEXICAL: words.num_labels}
    if len(set(sizes.values())) > 1 or "by_row" not in indexes:
        raise CorruptError(
            f"{', '.join(f'{size} in {name}' for name, size in sizes.items())} at {folder}",
            expected="as many labels everywhere, by_row among them",
            do="make the bundle again: xc run model --force, with its --dataset and --recipe",
        )
    drawn_from = load_noise(folder) if NOISE_FILE in manifest.files else None
    votes = _neighbours(folder / _NEIGHBOURS, len(labels)) if f"{_NEIGHBOURS}/index.json" in manifest.files else None
    return Predictor(
        TextTokenizer.from_file(str(facts["tokenizer"]), folder / "tokenizer.json"),
        load_encoder(folder),
        Scorer(
            Searchers(indexes["by_row"], indexes.get("by_text")),
            Sources(vectors["labels"], vectors["rows"], labels["frequency"].to_numpy(), votes, drawn_from, words),
            load_fusion(folder / "fusion.json"),
        ),
        labels["uid"].to_list(),
        labels["title"].to_list(),
    )
