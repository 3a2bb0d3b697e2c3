"""A slice of the bundled dataset as a folder of its own, and the chain that runs on it."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, Final

from tests.conftest import write_json, write_lines
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.encoders import TrainedEncoder
from xc_core.metrics.evaluation import Evaluation

RAW: Final = Path(__file__).resolve().parents[2] / "data" / "wordnet-mini" / "raw"
TRAIN, TEST = 300, 60
CHANGES: Final[dict[str, Any]] = {
    "encoder": {
        "encoder": {"name": "bag", "width": 64, "max_length": 32, "precision": "fp32"},
        "order": {"batch_size": 32, "size": 4},
        "optim": {"lr": 0.01},
        "epochs": 4.0,
    },
    "classifier": {"order": {"batch_size": 64}, "epochs": 10.0, "table": {"lr": 0.02}},
    "clusters": {"size": 4},
    "audit": {"sample": 100, "k": 5},
    "fusion": {"candidates": 20, "rule": {"min_leaf": 5}},
    "evaluation": {"latency_queries": 2},
}
"""The recipe ngame, small; in fp32, because only some processors multiply bf16 natively."""


def rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(RAW / f"{name}.json.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def write(folder: Path, *, filtered: bool = False) -> Path:
    """Write the first train documents, the first test documents that share a label with them, and those labels.

    With ``filtered``, also write filter files: for each document the label whose text shares most words with its own.
    """
    train = rows("trn")[:TRAIN]
    known = sorted({label for row in train for label in row["target_ind"]})
    new = {label: number for number, label in enumerate(known)}
    test = [row for row in rows("tst") if set(row["target_ind"]) & set(new)][:TEST]
    labels = rows("lbl")
    folder.mkdir(parents=True)
    content = {
        "trn": [moved(row, new) for row in train],
        "tst": [moved(row, new) for row in test],
        "lbl": [labels[label] for label in known],
    }
    for name, kept in content.items():
        write_json(folder / f"{name}.json.gz", kept)
    for name, split in (("trn", "train"), ("tst", "test")) if filtered else ():
        nearest = (nearest_label(row, content["lbl"]) for row in content[name])
        write_lines(folder / f"filter_labels_{split}.txt", (f"{row} {label}" for row, label in enumerate(nearest)))
    return folder


def words(row: dict[str, Any]) -> set[str]:
    return set(re.findall("[a-z]+", f"{row['title']} {row['content']}".lower()))


def nearest_label(document: dict[str, Any], labels: list[dict[str, Any]]) -> int:
    """Return the label with the largest overlap of words, the first one if several are equal; it may be a positive."""
    own = words(document)
    alike = [len(own & words(label)) / len(own | words(label)) for label in labels]
    return alike.index(max(alike))


def moved(row: dict[str, Any], new: dict[int, int]) -> dict[str, Any]:
    """Return a document with the numbers that its labels have in the slice; labels outside it are dropped."""
    own = [new[label] for label in row["target_ind"] if label in new]
    return {**row, "target_ind": own, "target_rel": [1.0] * len(own)}


def run_chain(root: Path, *, filtered: bool = False) -> Workspace:
    """Make the slice and run every stage on it."""
    workspace = Workspace(root)
    artifacts.write_file(root / "params.yaml", "datasets: {}\nexperiments: {}\n")
    write(workspace.raw("slice"), filtered=filtered)
    config = IngestConfig(validation_fraction=0.2, filters="given" if filtered else "none")
    workspace.params.declare_dataset("slice", config)
    workspace.params.declare_experiment("slice", "ngame", "ngame", CHANGES)
    for name in STAGES:
        run_stage(workspace, name, "slice", "ngame")
    return workspace


def figures(workspace: Workspace) -> dict[str, Any]:
    """Return what the golden file holds: counts, losses and metrics of the chain."""
    folder = {name: workspace.folder(name, "slice", "ngame") for name in STAGES}
    corpus = Corpus.open(folder["corpus"])
    store = artifacts.read_made(folder["tokens"]).facts["wordpiece"]
    trained: tuple[TrainedEncoder, LabelTables] = (
        TrainedEncoder.open(folder["encoder"]),
        LabelTables.open(folder["classifier"]),
    )
    history = {part.kind: part.history["losses"] for part in trained}
    return {
        "counts": {
            "rows": corpus.facts["rows"],
            "labels": corpus.num_labels,
            "vocabulary": store["vocabulary"],
            "tokens": {side: store["sides"][side]["tokens"] for side in store["sides"]},
            "steps": {name: len(losses) for name, losses in history.items()},
        },
        "losses": {
            f"{name} {what}": value
            for name, losses in history.items()
            for what, value in (("first", losses[0]), ("mean", sum(losses) / len(losses)))
        },
        "metrics": Evaluation.open(folder["evaluation"]).metrics,
    }
