"""A released model: written and read back it answers the same, holds no pickle, and no change of it goes unseen."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tests.conftest import ToyWorld
from xc_core import artifacts
from xc_core.ann import IndexConfig, build_index
from xc_core.bundle import Parts, open_bundle, write_bundle
from xc_core.errors import CorruptError, MissingError
from xc_core.infer.predictor import Predictor
from xc_core.infer.score import Searchers
from xc_core.stages import Workspace

TEXTS = [f"{row['title']} {row['content']}" for row in ToyWorld.make().test]
FILES = (
    "by_row/index.json", "by_row/index.npy", "by_text/index.json", "by_text/index.npy", "encoder.json",
    "encoder.safetensors", "fusion.json", "labels.parquet", "tokenizer.json", "vectors.safetensors",
)  # fmt: skip
SUFFIXES = {".json", ".safetensors", ".parquet", ".npy", ".faiss"}
INDEXES = {
    "exact": IndexConfig(kind="exact"),
    "hnsw": IndexConfig(kind="hnsw"),
    "ivf": IndexConfig(kind="ivf"),
}


def files(folder: Path) -> dict[str, Path]:
    return {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def folder(trained: Workspace, tmp_path: Path) -> Path:
    """A copy of the toy model, to be spoilt."""
    return Path(shutil.copytree(trained.folder("model", "toy", "ngame"), tmp_path / "bundle"))


def pack(predictor: Predictor, target: Path, config: IndexConfig, **changes: Any) -> Path:
    """Write what ``predictor`` is made of as a bundle; ``changes`` replace parts."""
    names = pl.DataFrame({"uid": predictor.uids, "title": predictor.titles})
    parts = replace(Parts(predictor.encoder, predictor.tokenizer, predictor.scorer, names), **changes)
    with artifacts.building(target, kind="model") as build:
        write_bundle(build, parts, config, {"dataset": "toy"})
    return target


def over(predictor: Predictor, config: IndexConfig) -> Predictor:
    """Return ``predictor`` with indexes of another kind over the same vectors."""
    scorer = predictor.scorer
    rebuilt = Searchers(build_index(scorer.sources.rows_LD, config), build_index(scorer.sources.label_LD, config))
    return replace(predictor, scorer=replace(scorer, searchers=rebuilt))


def is_pickle(data: bytes) -> bool:
    """True where ``data`` is a whole pickle, of any protocol."""
    try:
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(io.BytesIO(data)))
    except Exception:
        return False


def pickled(path: Path) -> str:
    """Return why a file may run code when it is read; an empty string where it may not."""
    data = path.read_bytes()
    if path.suffix not in SUFFIXES:
        return f"suffix {path.suffix}"
    if is_pickle(data) or data.startswith((b"PK\x03\x04", b"\x80")):
        return "a pickle or an archive of torch"
    if path.suffix == ".npy" and np.lib.format.read_magic(io.BytesIO(data)) and b"'|O'" in data[:128]:
        return "an array of objects"
    return ""


@pytest.mark.parametrize("kind", INDEXES)
def test_what_is_written_and_read_back_answers_the_same(folder: Path, kind: str, tmp_path: Path) -> None:
    predictor = over(open_bundle(folder), INDEXES[kind])
    again = open_bundle(pack(predictor, tmp_path / "again", INDEXES[kind]))
    assert again.predict(TEXTS, 5) == predictor.predict(TEXTS, 5)
    assert (again.uids, again.titles) == (predictor.uids, predictor.titles)
    np.testing.assert_array_equal(again.scorer.sources.frequency_L, predictor.scorer.sources.frequency_L)
    assert not {name: why for name, p in files(tmp_path / "again").items() if (why := pickled(p))}


def test_the_same_parts_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    config = IndexConfig(**json.loads((folder / "by_row" / "index.json").read_text())["config"])
    own, again = files(folder), files(pack(open_bundle(folder), tmp_path / "again", config))
    assert set(own) == set(again) == {*FILES, "manifest.json"}
    assert [name for name in FILES if own[name].read_bytes() != again[name].read_bytes()] == []


def test_a_bundle_says_where_it_is_from(folder: Path) -> None:
    facts = artifacts.verify(folder, kind="model").facts
    assert (facts["dataset"], facts["recipe"], facts["labels"], facts["tokenizer"]) == ("toy", "ngame", 10, "wordpiece")
    assert facts["metrics"]["P_at_1"] > 90
    assert set(facts["inputs"]) == {"corpus", "encoder", "embeddings", "classifier", "index", "fusion", "evaluation"}


def test_a_bundle_holds_nothing_that_runs_code_when_read(folder: Path) -> None:
    assert {name: pickled(path) for name, path in files(folder).items()} == dict.fromkeys([*FILES, "manifest.json"], "")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_search_for_pickles_finds_one_of_any_protocol(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(pickle.dumps({"a": [1, 2.5, "b"]}, protocol))
    assert pickled(path)


def test_the_search_for_pickles_finds_what_torch_and_numpy_write(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "new.safetensors")
    torch.save({"a": torch.zeros(2)}, tmp_path / "old.safetensors", _use_new_zipfile_serialization=False)
    np.save(tmp_path / "objects.npy", np.array([{}, None], object), allow_pickle=True)
    (tmp_path / "weights.bin").write_bytes(b"")
    assert {path.name for path in tmp_path.iterdir() if pickled(path)} == {
        "new.safetensors", "old.safetensors", "objects.npy", "weights.bin",
    }  # fmt: skip


def test_opening_and_asking_unpickles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert open_bundle(folder).predict(["falcon"], 1)[0][0].title == "falcon"


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("spoil", "found"), [(flip, "another content than was written"), (cut, "bytes"), (Path.unlink, "no file")]
)
def test_a_changed_short_or_missing_file_is_found_when_opened(
    folder: Path, name: str, spoil: Callable[[Path], None], found: str
) -> None:
    spoil(folder / name)
    with pytest.raises(CorruptError) as caught:
        open_bundle(folder)
    assert found in caught.value.found
    assert str(folder / name) in caught.value.found
    assert "as the manifest says" in caught.value.expected
    assert caught.value.do.startswith("make it anew: xc run model --force")


@pytest.mark.parametrize(
    ("content", "kind", "found"),
    [
        (None, MissingError, "no artefact at"),
        ("", CorruptError, "an unreadable"),
        ("[]", CorruptError, "an unreadable"),
        ('{"kind": "model", "facts": {}, "files": {}, "format": 99}', CorruptError, "format 99"),
        ('{"kind": "encoder", "facts": {}, "files": {}, "format": 1}', CorruptError, "an artefact of kind 'encoder'"),
    ],
)
def test_a_folder_without_the_right_manifest_is_no_bundle(
    folder: Path, content: str | None, kind: type[Exception], found: str
) -> None:
    (folder / "manifest.json").unlink()
    if content is not None:
        (folder / "manifest.json").write_text(content)
    with pytest.raises(kind, match=found):
        open_bundle(folder)


def test_what_the_manifest_does_not_list_is_not_opened(folder: Path, tmp_path: Path) -> None:
    """An index put beside the others is not of this model, whoever put it there."""
    predictor = open_bundle(folder)
    alone = replace(predictor.scorer, searchers=Searchers(predictor.scorer.searchers.by_row, None))
    bundle = pack(replace(predictor, scorer=alone), tmp_path / "rows-only", IndexConfig())
    shutil.copytree(folder / "by_text", bundle / "by_text")
    assert open_bundle(bundle).scorer.searchers.by_text is None


@pytest.mark.parametrize("part", ["labels", "index"])
def test_parts_of_different_models_are_refused(folder: Path, part: str, tmp_path: Path) -> None:
    predictor = open_bundle(folder)
    scorer, sources = predictor.scorer, predictor.scorer.sources
    if part == "labels":
        names = pl.DataFrame({"uid": predictor.uids[:9], "title": predictor.titles[:9]})
        short = replace(scorer, sources=replace(sources, frequency_L=sources.frequency_L[:9]))
        changes: dict[str, Any] = {"labels": names, "scorer": short}
    else:
        index = build_index(np.concatenate([sources.rows_LD, sources.rows_LD[:1]]), IndexConfig(kind="exact"))
        changes = {"scorer": replace(scorer, searchers=replace(scorer.searchers, by_row=index))}
    bundle = pack(predictor, tmp_path / "mixed", IndexConfig(), **changes)
    with pytest.raises(CorruptError, match=r"9 in labels.parquet|11 in by_row") as caught:
        open_bundle(bundle)
    assert "xc run model --force" in caught.value.do


def test_a_label_without_a_title_keeps_its_place(folder: Path, tmp_path: Path) -> None:
    predictor = open_bundle(folder)
    titles = ["", *predictor.titles[1:-1], "naïve – \u202e名"]
    names = pl.DataFrame({"uid": predictor.uids, "title": titles})
    again = open_bundle(pack(predictor, tmp_path / "again", IndexConfig(), labels=names))
    assert again.titles == titles
    assert json.dumps([label.title for label in again.predict(["river"], 1)[0]]) == '[""]'
