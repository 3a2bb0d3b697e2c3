"""The boundaries: each takes bytes, and may do nothing but accept them or raise an error with a message."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from tests.data.worlds import FILTERS, small_world, write_filters, write_world
from tests.fuzz import mutate, served
from xc_core import artifacts, manifests
from xc_core.data.checks import Allowed, check_block
from xc_core.data.document_file import read_documents
from xc_core.data.filters import given_pairs
from xc_core.data.formats import ReadOptions, open_source
from xc_core.data.formats.texts import blocks_of
from xc_core.data.formats.times import moments
from xc_core.data.label_file import read_labels
from xc_core.data.tokenizer import TextTokenizer
from xc_core.serve.limits import Limits
from xc_core.serve.questions import parsed, question
from xc_core.tune.space import Space
from xc_core.visible import CONTROL, INK

ALL = Allowed(empty_labels=True, unseen_labels=True)


@dataclass(frozen=True)
class Target:
    """A boundary with good inputs, from which cases are made."""

    name: str
    group: str
    seeds: tuple[bytes, ...]
    mutate: mutate.Mutate
    run: Callable[[bytes], object]
    weight: int = 10
    """Share of the cases."""


def read_all(folder: Path, layout: str) -> None:
    """Read a folder as the ingest does, and check what was accepted by other means."""
    _, source = open_source(folder, layout, ReadOptions())
    labels = 0
    for block in source.labels():
        check_block(block, ALL, num_labels=None)
        labels += len(block)
    for split in source.splits:
        for block in source.documents(split):
            check_block(block, ALL, num_labels=labels)
            assert len(block.uids) == len(block.titles) == len(block.contents) == len(block.label_counts)
            assert int(block.label_counts.sum()) == len(block.label_ids)
            assert not len(block.label_ids) or 0 <= block.label_ids.min() <= block.label_ids.max() < labels
            for title, content in zip(block.titles, block.contents, strict=True):
                assert INK.search(title + content) and not CONTROL.search(title + content)
                (title + content).encode()
            assert block.relevance is None or np.isfinite(block.relevance).all()


def in_file(folder: Path, name: str, run: Callable[[], object]) -> Callable[[bytes], object]:
    """Return a function that puts bytes into a file and runs ``run``."""

    def call(data: bytes) -> object:
        (folder / name).write_bytes(data)
        return run()

    return call


def _layout(root: Path, layout: str, file: str, change: mutate.Mutate, weight: int = 10, kind: str = "") -> Target:
    name = f"{layout} {file}"
    folder = write_world(root / name.replace(" ", "-"), layout, small_world(12, 4))
    run = in_file(folder, file, lambda: read_all(folder, kind or layout))
    return Target(name, "layouts", ((folder / file).read_bytes(),), change, run, weight)


QUESTION = {"text": "a", "texts": None, "k": 2, "tail": 0.5, "exclude": ["L1"], "only": ["L0", "L2"], "why": True}


TIMES = (b"2026-11-30", b"2026-11-30T08:15:00.25+02:00", b"-17.5e3", b"2026-W49-1")


def _time(data: bytes) -> None:
    (moment,) = moments(["a"], [data.decode("utf-8", "replace")])
    assert np.isfinite(moment)


def _served() -> Any:
    uids = ["L0", "L1", "L2"]
    return SimpleNamespace(
        predictor=SimpleNamespace(uids=uids), ids={uid: i for i, uid in enumerate(uids)}, version="1", has_dial=True
    )


def targets(root: Path, client: served.Client) -> list[Target]:
    """Return all boundaries, with their files under ``root``."""
    found = [
        _layout(root, "xc-json", "trn.json", mutate.json_changed),
        _layout(root, "xc-json", "lbl.json", mutate.json_changed, 5),
        _layout(root, "xc-json.gz", "trn.json.gz", mutate.bytes_changed, 5, "xc-json"),
        _layout(root, "xc-text", "trn_X_Y.txt", mutate.bytes_changed),
        _layout(root, "xc-text", "trn_X.txt", mutate.bytes_changed, 5),
        _layout(root, "pecos", "Y.trn.npz", mutate.forged),
        _layout(root, "pecos", "X.trn.txt", mutate.bytes_changed, 5),
        _layout(root, "pecos", "output-items.txt", mutate.bytes_changed, 5),
        _layout(root, "parquet", "train.parquet", mutate.columns_changed, 10, "tabular"),
        _layout(root, "csv", "train.csv", mutate.bytes_changed, 10, "tabular"),
        _layout(root, "tsv", "train.tsv", mutate.bytes_changed, 5, "tabular"),
        _layout(root, "jsonl", "train.jsonl", mutate.json_changed, 10, "tabular"),
        Target("times", "layouts", TIMES, mutate.bytes_changed, _time),
    ]
    project, filters = root / "project", root / "filters"
    for folder in (project, filters):
        folder.mkdir()
    write_filters(filters, FILTERS)
    pairs = filters / "filter_labels_train.txt"
    read_pairs = in_file(
        filters, pairs.name, lambda: given_pairs(pairs, first_row=0, rows=12, labels=10, options=ReadOptions())
    )
    found.append(Target("filters", "layouts", (pairs.read_bytes(),), mutate.bytes_changed, read_pairs, 5))
    asked, limits = _served(), Limits()
    space = project / "space.yaml"
    spaces = (b'{"encoder.loss.margin": [0.1, 0.2], "classifier.table.lr": {"log": [0.001, 0.1]}}',)
    found += [
        Target("space of a study", "YAML", spaces, mutate.document_changed,
               in_file(project, space.name, lambda: Space.read(space)), 5),
        Target("questions", "server", (json.dumps(QUESTION).encode(), b'{"text": "a", "k": 3}'),
               mutate.document_changed, lambda data: question(parsed(data), asked, limits)),
    ]  # fmt: skip
    found += [
        Target(name, "server", served.SEEDS, served.request_changed, run, weight)
        for name, run, weight in served.boundaries(client)
    ]
    from tests.fuzz.models import targets as models
    from tests.fuzz.names import targets as names
    from tests.fuzz.settings import targets as settings
    from tests.fuzz.trees import targets as trees

    found += [*settings(root / "settings"), *names(root / "names"), *_artefacts(root), *models(root / "models")]
    found += trees(root / "trees")
    return [*found, *_files_of_texts(root), *_files_of_rows(root)]


def _artefacts(root: Path) -> list[Target]:
    with artifacts.building(root / "thing", kind="thing") as build:
        (build.path / "a.txt").write_text("a")
    manifest = (root / "thing" / manifests.MANIFEST).read_bytes()
    run = in_file(root / "thing", manifests.MANIFEST, lambda: artifacts.verify(root / "thing"))
    from tests.encoders.conftest import save_tokenizer

    save_tokenizer(root)
    tokenizer = root / "tokenizer.json"
    load = in_file(root, tokenizer.name, lambda: TextTokenizer.from_file("a", tokenizer).encode(["the old river", ""]))
    return [
        Target("manifest", "artefacts", (manifest,), mutate.document_changed, run),
        Target("tokenizer.json", "models", (tokenizer.read_bytes(),), mutate.document_changed, load, 5),
    ]


def _files_of_texts(root: Path) -> list[Target]:
    """The readers of ``xc predict --input``."""
    found = []
    for suffix, source, change in (
        (".jsonl", b'{"text": "a"}\n{"text": "b", "x": 1}\n', mutate.json_changed),
        (".tsv", b'text\tmore\na\t1\n"b\nc"\t2\n', mutate.bytes_changed),
        (".csv", b'text,more\na,1\n"b\nc",2\n', mutate.bytes_changed),
        (".parquet", (root / "parquet-train.parquet" / "train.parquet").read_bytes(), mutate.columns_changed),
    ):
        path = root / f"input{suffix}"

        def run(path: Path = path) -> None:
            with path.open("rb") as stream:
                for texts in blocks_of(stream, path, "text"):
                    assert all(isinstance(text, str) for text in texts)

        found.append(Target(f"predict {suffix}", "texts", (source,), change, in_file(root, path.name, run), 5))
    return found


IDS = {f"L{number}": number for number in range(10)}
DOCUMENTS = {
    "uid": ["A", "B", "C"],
    "text": ["the river", "a hill", "an owl"],
    "labels": [["L1"], ["L0", "L2"], ["L3"]],
}
LABELS = {"uid": ["N1", "N2", "N3"], "text": ["the river", "a hill", "an owl"]}


def _accepted(path: Path) -> None:
    """Read documents as ``xc acceptance --given`` does; any model can be measured on what is accepted."""
    found = read_documents(path, ReadOptions(), Allowed(), IDS)
    assert len(found) and found["uid"].is_unique().all() and not sum(found.null_count().row(0))
    for text, labels in found.select("text", "labels").rows():
        assert INK.search(text) and not CONTROL.search(text) and text.encode()
        assert labels and len(set(labels)) == len(labels) and IDS.keys() >= set(labels)


def _labels(path: Path) -> None:
    """Read labels as ``xc add-labels`` does."""
    found = read_labels(path, ReadOptions(), Allowed())
    assert len(found) and found["uid"].is_unique().all() and not sum(found.null_count().row(0))
    for uid, title, content in found.rows():
        assert INK.search(uid) and INK.search(title + content) and not CONTROL.search(uid + title + content)
        (title + content).encode()


def _files_of_rows(root: Path) -> list[Target]:
    """The readers of ``xc acceptance --given`` and ``xc add-labels``."""
    found = []
    for name, columns, read in (("acceptance", DOCUMENTS, _accepted), ("add-labels", LABELS, _labels)):
        frame = pl.DataFrame({**columns, "group": ["a", "b", "c"]})
        flat = frame.with_columns(pl.col(pl.List(pl.String)).list.join(";"))
        parquet = io.BytesIO()
        frame.write_parquet(parquet)
        for suffix, seed, change in (
            (".jsonl", frame.write_ndjson().encode(), mutate.json_changed),
            (".csv", flat.write_csv().encode(), mutate.bytes_changed),
            (".parquet", parquet.getvalue(), mutate.columns_changed),
        ):
            path = root / f"{name}{suffix}"
            run = in_file(root, path.name, lambda path=path, read=read: read(path))  # type: ignore[misc]
            found.append(Target(f"{name} {suffix}", "rows", (seed,), change, run, 5))
    return found
