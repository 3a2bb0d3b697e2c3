"""A packed model: written and opened it answers the same, holds no pickle, and every change of it is found."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tests.conftest import ToyWorld
from xc_core import __version__, artifacts, manifests
from xc_core.ann import Exact, Hnsw, IndexPart, Ivf
from xc_core.chain import Workspace
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import FINAL, Fold
from xc_core.encoders import TrainedEncoder
from xc_core.errors import CorruptError, MissingError, RefusedError, UsageError
from xc_core.fusion import FittedFusion
from xc_core.infer.bundle import Model, ModelFacts, Parts, open_predictor, write_model
from xc_core.infer.predictor import Predictor
from xc_core.infer.ranker import Ranker
from xc_core.manifests import Manifest
from xc_core.recipes.base import named
from xc_core.scores import Classifier, Frequency, LabelText, Score, ScoreData, Scores, ScoresWriter
from xc_core.scores.vectors import VectorScore

TEXTS = [f"{row['title']} {row['content']}" for row in ToyWorld.make().test]
FILES = (
    "encoder.json", "encoder.safetensors", "fusion.json", "labels.parquet", "log_weights.npy", "model.json",
    "scores/classifier/vectors.json", "scores/classifier/vectors.npy", "scores/frequency/frequency.npy",
    "scores/label_text/vectors.json", "scores/label_text/vectors.npy", "scores/scores.json", "tokenizer.json",
)  # fmt: skip
OUTSIDE = ("made.json", "manifest.json")
SUFFIXES = {".json", ".safetensors", ".parquet", ".npy", ".faiss"}
INDEXES: dict[str, IndexPart] = {"exact": Exact(), "hnsw": Hnsw(), "ivf": Ivf()}
FACTS = ModelFacts(dataset="toy", recipe="ngame", metrics={"P_at_1": 91.5}, test="abc", max_drop=1.0)


def files(folder: Path) -> dict[str, Path]:
    return {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def folder(trained: Workspace, tmp_path: Path) -> Path:
    """A copy of the toy model, to be damaged."""
    return Path(shutil.copytree(trained.folder("model", "toy", "ngame"), tmp_path / "bundle"))


def parts_of(workspace: Workspace) -> Parts:
    """Return what the toy model was packed from."""

    def folder(stage: str) -> Path:
        return workspace.folder(stage, "toy", "ngame")

    labels = Corpus.open(workspace.folder("corpus", "toy")).table("labels")
    trained, scores = TrainedEncoder.open(folder("encoder")), Scores.open(folder("scores"))
    return Parts(trained, scores, FittedFusion.open(folder("fusion")), labels)


def fit(workspace: Workspace, target: Path, index: IndexPart) -> Scores:
    """Return the toy model's scores with indexes of another kind, as an artefact of their own."""
    tables = LabelTables.open(workspace.folder("classifier", "toy", "ngame"))
    embeddings = Embeddings.open(workspace.folder("embeddings", "toy", "ngame"))
    truth = Corpus.open(workspace.folder("corpus", "toy")).published_train()
    data = ScoreData(truth, label_vectors=lambda: embeddings.labels_LD, rows=tables.rows)
    parts = dict(named(LabelText(index=index), Classifier(index=index), Frequency()))
    return stored(target, parts, {name: part.fit(data) for name, part in parts.items()})


def stored(target: Path, parts: dict[str, Score], fitted: Mapping[str, Any]) -> Scores:
    fold = Fold(FINAL, refit=False)
    with artifacts.building(target, kind=Scores.kind) as build:
        writer = ScoresWriter(build, parts)
        for name in parts:
            writer.add(fold, name, fitted[name])
        writer.finish([fold])
    return Scores.open(target)


def pack(parts: Parts, target: Path, facts: ModelFacts = FACTS) -> Path:
    with artifacts.building(target, kind=Model.kind) as build:
        write_model(build, parts, facts)
    return target


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
    is_torch = (
        data.startswith((b"PK\x03\x04", b"\x80")) and data[8:9] != b"{"
    )  # a safetensors header may have 0x80 bytes
    if is_pickle(data) or is_torch:
        return "a pickle or an archive of torch"
    if path.suffix == ".npy" and np.lib.format.read_magic(io.BytesIO(data)) and b"'|O'" in data[:128]:
        return "an array of objects"
    return ""


@pytest.mark.parametrize("kind", INDEXES)
def test_a_model_answers_the_same_before_packing_and_after_opening(
    trained: Workspace, kind: str, tmp_path: Path
) -> None:
    own = parts_of(trained)
    parts = replace(own, scores=fit(trained, tmp_path / "scores", INDEXES[kind]))
    ranker = Ranker(parts.scores.fitted(), parts.fusion)
    uids, titles = (parts.labels[name].to_list() for name in ("uid", "title"))
    predictor = Predictor(parts.encoder.tokenizer, parts.encoder.encoder, ranker, uids, titles)
    again = open_predictor(pack(parts, tmp_path / "again"))
    assert again.predict(TEXTS, 5) == predictor.predict(TEXTS, 5)
    assert (again.uids, again.titles) == (uids, titles)
    assert list(again.ranker.scores) == list(parts.scores.parts)
    assert not {name: why for name, p in files(tmp_path / "again").items() if (why := pickled(p))}


def test_the_same_parts_give_the_same_bytes(trained: Workspace, folder: Path, tmp_path: Path) -> None:
    facts = Model.open(folder).facts
    own, again = files(folder), files(pack(parts_of(trained), tmp_path / "again", facts))
    assert set(own) == set(again) == {*FILES, *OUTSIDE}
    names = [*FILES, "manifest.json"]
    assert [name for name in names if own[name].read_bytes() != again[name].read_bytes()] == []
    assert Model.open(folder).digest == Model.open(tmp_path / "again").digest


def test_a_dial_of_other_labels_is_refused(trained: Workspace, tmp_path: Path) -> None:
    parts = parts_of(trained)
    dial = parts.fusion.dial
    assert dial is not None
    short = replace(parts.fusion, dial=replace(dial, log_weight_L=dial.log_weight_L[1:]))
    with pytest.raises(CorruptError, match="pack the model again"):
        open_predictor(pack(replace(parts, fusion=short), tmp_path / "short"))


def test_a_model_packed_before_there_were_dials_answers(trained: Workspace, tmp_path: Path) -> None:
    parts = parts_of(trained)
    old = open_predictor(pack(replace(parts, fusion=replace(parts.fusion, dial=None)), tmp_path / "old"))
    assert "log_weights.npy" not in files(tmp_path / "old")
    new = open_predictor(pack(parts, tmp_path / "new")).predict(TEXTS, 5, tail=0.0)
    assert old.predict(TEXTS, 5) == [[replace(label, probability=None) for label in labels] for labels in new]
    with pytest.raises(UsageError, match="without a dial"):
        old.predict(TEXTS, 5, tail=0.5)


def test_a_model_says_where_it_is_from(folder: Path) -> None:
    facts, made = Model.open(folder).facts, artifacts.read_made(folder)
    assert (facts.dataset, facts.recipe, facts.max_drop) == ("toy", "ngame", 1.0)
    assert facts.metrics["P_at_1"] > 90
    assert made.facts["labels"] == len(open_predictor(folder).uids) == 10
    assert made.facts["metrics"] == facts.metrics
    assert open_predictor(folder).tokenizer.name == "wordpiece"
    inputs = {"corpus", "encoder", "scores", "fusion", "evaluation"}
    assert set(made.depends) == {*inputs, "code", "settings"}


def test_a_model_holds_nothing_that_runs_code_when_read(folder: Path) -> None:
    assert {name: pickled(path) for name, path in files(folder).items()} == dict.fromkeys([*FILES, *OUTSIDE], "")


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


def test_opening_and_predicting_unpickles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert open_predictor(folder).predict(["falcon"], 1)[0][0].title == "falcon"


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("spoil", "found"), [(flip, "changed since it was written"), (cut, "bytes"), (Path.unlink, "no file")]
)
def test_a_changed_short_or_missing_file_is_found_when_opened(
    folder: Path, name: str, spoil: Callable[[Path], None], found: str
) -> None:
    spoil(folder / name)
    with pytest.raises(CorruptError) as caught:
        open_predictor(folder)
    assert found in caught.value.found
    assert str(folder / name) in caught.value.found
    assert "as the manifest says" in caught.value.expected
    assert caught.value.do.startswith("rebuild it: xc run model --force")


@pytest.mark.parametrize(
    ("content", "kind", "found"),
    [
        (None, MissingError, "no artefact at"),
        ("", CorruptError, "an unreadable"),
        ("[]", CorruptError, "an unreadable"),
        ('{"kind": "model", "files": {}, "format": 99}', CorruptError, "format 99"),
        ('{"kind": "model", "files": {}, "format": 1}', CorruptError, "format 1"),
        ('{"kind": "model", "files": {}, "format": 2}', CorruptError, "no digest in"),
        (Manifest("encoder").to_file(), CorruptError, "an artefact of kind 'encoder'"),
    ],
)
def test_a_folder_without_the_right_manifest_is_no_model(
    folder: Path, content: str | None, kind: type[Exception], found: str
) -> None:
    (folder / "manifest.json").unlink()
    if content is not None:
        (folder / "manifest.json").write_text(content)
    with pytest.raises(kind, match=found):
        open_predictor(folder)


def test_what_the_manifest_does_not_list_is_not_opened(folder: Path) -> None:
    """A score that somebody put beside the others is not part of this model."""
    shutil.copytree(folder / "scores" / "classifier", folder / "scores" / "other")
    assert list(open_predictor(folder).ranker.scores) == ["label_text", "classifier", "frequency"]


def mixed(trained: Workspace, part: str, target: Path) -> Parts:
    """Return the parts of the toy model, one of them of another model."""
    parts = parts_of(trained)
    if part == "labels":
        return replace(parts, labels=parts.labels[:9])
    if part == "fusion":
        return replace(parts, fusion=replace(parts.fusion, names=("label_text", "classifier")))
    fitted = dict(parts.scores.fitted())
    rows_LD = fitted["label_text"].vectors_LD  # type: ignore[attr-defined]
    more_LD = np.concatenate([rows_LD, rows_LD[:1]])
    other = {
        "score": VectorScore.build(more_LD, Exact()),
        "index": replace(VectorScore.build(rows_LD, Exact()), index=Exact().build(more_LD)),
    }
    return replace(parts, scores=stored(target, parts.scores.parts, {**fitted, "classifier": other[part]}))


@pytest.mark.parametrize(
    ("part", "found", "do"),
    [
        ("labels", "9 names, scores of 10 labels", "xc run model --force"),
        ("fusion", "a fusion of label_text, classifier\n", "xc run model --force"),
        ("score", "label_text 10, classifier 11, frequency 10", "run the stage scores again"),
        ("index", "10 vectors and an index of 11", "run the stage scores again"),
    ],
)
def test_parts_of_different_models_are_refused(
    trained: Workspace, part: str, found: str, do: str, tmp_path: Path
) -> None:
    bundle = pack(mixed(trained, part, tmp_path / "scores"), tmp_path / "mixed")
    with pytest.raises(CorruptError, match=found) as caught:
        open_predictor(bundle)
    assert do in caught.value.do


def changed(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a file of a model, and its manifest with it, as another release would have written them."""
    change(content := json.loads((folder / name).read_text()))
    size = (folder / name).write_text(json.dumps(content))
    own = {"bytes": size, "sha256": artifacts.sha256_file(folder / name)}
    manifest = manifests.read_manifest(folder)
    (folder / "manifest.json").write_text(replace(manifest, files={**manifest.files, name: own}).to_file())


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("model.json", lambda content: content.pop("test"), "'test'"),
        ("fusion.json", lambda content: content["rule"].update(bend=1), "fusion.rule.bend"),
        ("fusion.json", lambda content: content.pop("features"), "'features'"),
        ("encoder.json", lambda content: content["config"].update(layers=2), "layers"),
        ("scores/scores.json", lambda content: content["scores"][0][1].update(kind="topics"), "topics"),
    ],
)
def test_a_model_that_another_release_has_packed_is_not_called_damaged(
    folder: Path, name: str, change: Callable[[dict[str, Any]], Any], found: str
) -> None:
    changed(folder, name, change)
    with pytest.raises(RefusedError, match=f"a packed model that xc {__version__} cannot read .*{found}"):
        open_predictor(folder)


def test_facts_of_a_model_that_only_a_later_release_knows_are_left_out(folder: Path) -> None:
    changed(folder, "model.json", lambda content: content.update(colour="red"))
    assert Model.open(folder, "toy").facts.recipe == "ngame"
    assert open_predictor(folder).predict(["river"], 1)


def test_a_label_without_a_title_keeps_its_place(trained: Workspace, tmp_path: Path) -> None:
    parts = parts_of(trained)
    titles = ["", *parts.labels["title"].to_list()[1:-1], "naïve – \u202e名"]
    names = parts.labels.with_columns(pl.Series("title", titles))
    again = open_predictor(pack(replace(parts, labels=names), tmp_path / "again"))
    assert again.titles == titles
    assert json.dumps([label.title for label in again.predict(["river"], 1)[0]]) == '[""]'


def test_a_model_that_is_replaced_while_it_is_opened_is_opened_again(
    trained: Workspace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read sees the old model, whose folder is exchanged for another one before the read ends."""
    parts, opened = parts_of(trained), []
    titles = pl.Series("title", [title.upper() for title in parts.labels["title"]])
    other = pack(replace(parts, labels=parts.labels.with_columns(titles)), tmp_path / "other")
    read = FittedFusion.read

    def exchanged(place: Path) -> FittedFusion:
        opened.append(place)
        if len(opened) == 1:
            shutil.rmtree(folder)
            shutil.copytree(other, folder)
        return read(place)

    monkeypatch.setattr(FittedFusion, "read", exchanged)
    assert open_predictor(folder).titles[0] == "RIVER"
    assert len(opened) == 2
