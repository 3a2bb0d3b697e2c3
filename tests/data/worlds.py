"""Small worlds written in every public layout, and read back as a corpus."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse

from tests.conftest import ToyWorld, write_json, write_lines
from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig, ingest

FILTERS: Final = {"train": [(0, 3), (5, 1)], "test": [(0, 2), (7, 9)]}
"""Filter pairs as in the files: the documents of each split are numbered from 0."""


def facts_of(corpus: Corpus) -> dict[str, Any]:
    """Return the counts and figures recorded by the ingest."""
    return dict(artifacts.read_made(corpus.folder).facts)


def small_world(documents: int = 60, tests: int = 12) -> ToyWorld:
    """Return a toy world that every layout can represent: uids are row numbers, a text is one line."""
    world = ToyWorld.make(documents, tests)
    for stem, rows in (("train-", world.train), ("test-", world.test), ("", world.labels)):
        for number, row in enumerate(rows):
            row |= {"uid": f"{stem}{number}", "title": f"{row['title']} {row['content']}", "content": ""}
    return world


def write_filters(folder: Path, pairs: dict[str, list[tuple[int, int]]]) -> None:
    for split, rows in pairs.items():
        write_lines(folder / f"filter_labels_{split}.txt", [f"{doc} {label}" for doc, label in rows])


def write_xc_json(world: ToyWorld, folder: Path, end: str = "") -> None:
    for stem, rows in (("trn", world.train), ("tst", world.test), ("lbl", world.labels)):
        write_json(folder / f"{stem}.json{end}", rows)


def write_xc_text(world: ToyWorld, folder: Path, end: str = "") -> None:
    write_lines(folder / f"Y.txt{end}", [row["title"] for row in world.labels])
    for stem, rows in (("trn", world.train), ("tst", world.test)):
        matrix = [" ".join(f"{label}:1.0" for label in row["target_ind"]) for row in rows]
        write_lines(folder / f"{stem}_X.txt{end}", [row["title"] for row in rows])
        write_lines(folder / f"{stem}_X_Y.txt{end}", [f"{len(rows)} {len(world.labels)}", *matrix])


def write_pecos(world: ToyWorld, folder: Path, end: str = "") -> None:
    write_lines(folder / f"output-items.txt{end}", [row["title"] for row in world.labels])
    for stem, rows in (("trn", world.train), ("tst", world.test)):
        write_lines(folder / f"X.{stem}.txt{end}", [row["title"] for row in rows])
        scipy.sparse.save_npz(folder / f"Y.{stem}.npz", label_csr(rows, len(world.labels)))


def label_csr(rows: list[dict[str, Any]], labels: int) -> Any:
    indptr = np.cumsum([0, *(len(row["target_ind"]) for row in rows)])
    indices = np.array([label for row in rows for label in row["target_ind"]], np.int32)
    return scipy.sparse.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), (len(rows), labels))


def write_parquet(world: ToyWorld, folder: Path) -> None:
    """Write labels as a list of indices and texts as one column, in small row groups as in real files."""
    for stem, rows in (("train", world.train), ("test", world.test)):
        columns = {"uid": [r["uid"] for r in rows], "text": [r["title"] for r in rows]}
        table = pa.table(columns | {"labels": [r["target_ind"] for r in rows]})
        pq.write_table(table, folder / f"{stem}.parquet", row_group_size=256)
    labels = {key: [row[key] for row in world.labels] for key in ("uid", "title")}
    pq.write_table(pa.table(labels), folder / "labels.parquet")


def write_jsonl(world: ToyWorld, folder: Path, end: str = "") -> None:
    """Write labels as a list of indices and texts as one field."""
    for stem, rows in (("train", world.train), ("test", world.test), ("labels", world.labels)):
        own = [{"uid": row["uid"], "text": row["title"]} for row in rows]
        for row, given in zip(own, rows, strict=True) if stem != "labels" else ():
            row["labels"] = given["target_ind"]
        write_json(folder / f"{stem}.jsonl{end}", own)


def write_csv(world: ToyWorld, folder: Path, end: str = ".csv") -> None:
    """Write labels as uids between separators and texts as title and content."""
    for stem, rows in (("train", world.train), ("test", world.test), ("labels", world.labels)):
        table = [["uid", "title", "content"] + ["labels"] * (stem != "labels")]
        for row in rows:
            cells = [";".join(map(str, row["target_ind"]))] if stem != "labels" else []
            table.append([row["uid"], row["title"], row["content"], *cells])
        write_table(folder / f"{stem}{end}", table)


def write_table(path: Path, table: list[list[str]]) -> None:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as stream:
        separator = "\t" if ".tsv" in path.suffixes else ","
        csv.writer(stream, delimiter=separator, lineterminator="\n").writerows(table)


LAYOUTS: Final[dict[str, Callable[[ToyWorld, Path], None]]] = {
    "xc-json": write_xc_json,
    "xc-json.gz": lambda world, folder: write_xc_json(world, folder, ".gz"),
    "xc-text": write_xc_text,
    "xc-text.gz": lambda world, folder: write_xc_text(world, folder, ".gz"),
    "pecos": write_pecos,
    "pecos.gz": lambda world, folder: write_pecos(world, folder, ".gz"),
    "parquet": write_parquet,
    "csv": write_csv,
    "csv.gz": lambda world, folder: write_csv(world, folder, ".csv.gz"),
    "tsv": lambda world, folder: write_csv(world, folder, ".tsv"),
    "jsonl": write_jsonl,
    "jsonl.gz": lambda world, folder: write_jsonl(world, folder, ".gz"),
}
"""Every way to write a world, by name."""


def write_world(folder: Path, layout: str = "xc-json", world: ToyWorld | None = None) -> Path:
    """Write a world and its filters in ``layout`` and return the folder."""
    folder.mkdir(parents=True)
    LAYOUTS[layout](world or small_world(), folder)
    write_filters(folder, FILTERS)
    return folder


def read_world(folder: Path, **settings: Any) -> Corpus:
    """Ingest a folder into a corpus beside it and open the corpus."""
    target = folder.with_name(f"{folder.name}-corpus")
    with artifacts.building(target, kind=Corpus.kind) as build:
        ingest(folder, build, IngestConfig(**settings))
    return Corpus.open(target)


def contents(corpus: Corpus) -> dict[str, list[tuple[Any, ...]]]:
    """Return all tables of a corpus as plain rows."""
    files = ("documents", "labels", "pairs", "filters")
    return {name: [tuple(row.values()) for row in pq.read_table(corpus.folder / f"{name}.parquet").to_pylist()]
            for name in files}  # fmt: skip


def empty_workspace(root: Path) -> Workspace:
    """Return a workspace without any dataset."""
    artifacts.write_file(root / "params.yaml", "# kept\ndatasets: {}\nexperiments: {}\n")
    return Workspace(root)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder with its content; not the files that are only locked."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
