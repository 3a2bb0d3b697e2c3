"""The acceptance set: drawn once, judged by uid, and measured in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.cli.conftest import spoil
from tests.conftest import TOPICS, ToyWorld, make_workspace
from tests.data.test_corpus_digest import moved
from xc_core.ann import Hnsw
from xc_core.chain import Workspace, run_stage
from xc_core.data import acceptance, document_file
from xc_core.data import corpus as corpora
from xc_core.data.acceptance import AcceptanceSet, draw, take
from xc_core.data.checks import Allowed
from xc_core.data.corpus import Corpus
from xc_core.data.formats import ReadOptions
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST
from xc_core.environment import DEVICE
from xc_core.errors import DataError, MissingError, RefusedError, StorageError, UsageError
from xc_core.infer import acceptance as accepting
from xc_core.infer.acceptance import Measured, answered, measured, searched
from xc_core.infer.predictor import Predictor
from xc_core.manifests import Manifest
from xc_core.metrics.ranking import per_document, without
from xc_core.scores import Query
from xc_core.scores.vectors import VectorScore


@pytest.fixture(scope="module")
def present(trained: Workspace) -> Corpus:
    return Corpus.open(trained.folder("corpus", "toy"))


@pytest.fixture(scope="module")
def drawn(present: Corpus, tmp_path_factory: pytest.TempPathFactory) -> AcceptanceSet:
    return draw(present, "toy", tmp_path_factory.mktemp("acceptance") / "set")


@pytest.fixture(scope="module")
def model(trained: Workspace) -> Path:
    return trained.folder("model", "toy", "ngame")


def corpus(root: Path, world: ToyWorld, config: IngestConfig | None = None) -> Corpus:
    made = make_workspace(root, world)
    made.params.declare_dataset("toy", config or IngestConfig())
    run_stage(made, "corpus", "toy")
    return Corpus.open(made.folder("corpus", "toy"))


# what is in it


def test_without_held_out_documents_it_is_drawn_from_test(drawn: AcceptanceSet, present: Corpus) -> None:
    assert (drawn.facts.source, drawn.facts.version, len(drawn)) == ("test documents", 1, 40)
    rows = present.rows("test")
    assert drawn.documents["uid"].to_list() == present.uids(rows)
    assert drawn.texts == present.texts_of("documents", rows)
    assert np.array_equal(drawn.truth.indices, present.labels.rows(rows).indices)
    assert drawn.weights_L == pytest.approx(present.weights())


def test_documents_without_labels_are_not_drawn(tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=20)
    for row in world.test[::4]:
        row["target_ind"] = row["target_rel"] = []
    found = corpus(tmp_path, world, IngestConfig(allow=("empty-labels", "unseen-labels")))
    own = draw(found, "toy", tmp_path / "set")
    assert len(own) == 15
    assert len(own.today(found, tmp_path / "today")) == 15, "nothing is left out, as the corpus has not changed"


def test_documents_that_ingest_held_out_are_preferred(toy: ToyWorld, tmp_path: Path) -> None:
    found = corpus(tmp_path, toy, IngestConfig(acceptance_fraction=0.2))
    own = draw(found, "toy", tmp_path / "set")
    assert own.facts.source == "held out"
    assert own.documents["uid"].to_list() == found.uids(found.rows("acceptance"))


def test_held_out_documents_without_labels_are_no_reason_not_to_draw_from_test(tmp_path: Path) -> None:
    config = IngestConfig(acceptance_fraction=0.2, allow=("empty-labels", "unseen-labels"))
    world = ToyWorld.make(documents=60, tests=20)
    found = corpus(tmp_path / "whole", world, config)
    held = found.uids(found.rows("acceptance"))
    for row in world.train:
        if row["uid"] in held:
            row["target_ind"] = row["target_rel"] = []
    found = corpus(tmp_path / "bare", world, config)
    assert found.uids(found.rows("acceptance")) == held
    own = draw(found, "toy", tmp_path / "set")
    assert (own.facts.source, len(own)) == ("test documents", 20)


def test_a_large_set_is_cut_by_a_hash(present: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "LIMIT", 7)
    own = draw(present, "toy", tmp_path / "set")
    assert own.documents["uid"].to_list() == present.uids(present.drawn(present.rows("test"), 7))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_given_file_becomes_the_next_version(present: Corpus, tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"text": ["castle0", "falcon1 falcon2"], "labels": [["L1"], ["L5", "L0"]]})
    file = tmp_path / f"own{suffix}"
    frame.write_parquet(file) if suffix == ".parquet" else frame.write_ndjson(file)
    draw(present, "toy", tmp_path / "set")
    own = take(file, present, "toy", tmp_path / "set")
    assert (own.facts.source, own.facts.version) == ("given", 2)
    assert [own.truth.row(0).tolist(), own.truth.row(1).tolist()] == [[1], [0, 5]]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"text": "a", "labels": ["L99"]}', r"own.jsonl, line 1: found the label 'L99' \(nearest: 'L9'\)"),
        ('{"words": "a", "labels": ["L1"]}', "the columns 'labels', 'words'"),
        ("not json", "a line that is not JSON"),
        ("", "no rows"),
        ("[1]", r"\[1\] instead of an object"),
        ('{"text": "a", "labels": 3}', "the labels 3"),
        ('{"text": null, "labels": ["L1"]}', "an empty text"),
        ('{"text": "", "labels": ["L1"]}', "an empty text"),
        ('{"text": "\\u200b", "labels": ["L1"]}', "a text of invisible characters"),
        ('{"text": "\\u001b[31m", "labels": ["L1"]}', r"the character '\\x1b' in a text"),
        ('{"text": "\\ud83d", "labels": ["L1"]}', "half of a surrogate pair"),
        ('{"text": "a", "labels": null}', "a document without labels"),
        ('{"text": "a", "labels": []}', "a document without labels"),
        ('{"text": "a", "labels": [null]}', r"the labels \[null\]"),
        ('{"text": "a", "labels": [["L1"]]}', "the labels "),
        ('{"text": "a", "labels": ["L0", "L0"]}', "the label 'L0' twice"),
        ('{"uid": null, "text": "a", "labels": ["L0"]}', "the uid null"),
        ('{"uid": "", "text": "a", "labels": ["L0"]}', "the uid ''"),
        ('{"uid": "A", "text": "a", "labels": ["L0"]}\n' * 2, "line 2: found the uid 'A' again"),
        ('{"uid": "A", "text": "a", "labels": ["L0"]}\n{"text": "b", "labels": ["L0"]}', "line 2: found the uid null"),
        ('{"text": "b", "labels": ["L0"]}\n{"uid": "A", "text": "a", "labels": ["L0"]}', "line 2: found a uid, but"),
    ],
)
def test_a_wrong_file_is_refused(present: Corpus, tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "own.jsonl").write_text(content)
    with pytest.raises(DataError, match=found) as caught:
        take(tmp_path / "own.jsonl", present, "toy", tmp_path / "set")
    assert "--allow" not in caught.value.do, "the command has no such option"
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"text": [None], "labels": [["L1"]]}, "an empty text"),
        ({"text": ["a"], "labels": [None]}, "a document without labels"),
        ({"text": ["a"], "labels": [[None]]}, "the labels "),
        ({"text": ["a"], "labels": [["L1"]], "uid": [None]}, "the uid null"),
        ({"text": ["a"] * 2, "labels": [["L1"]] * 2, "uid": ["A"] * 2}, "row 2: found the uid 'A' again"),
        ({"text": [1], "labels": [["L1"]]}, "text 1"),
        ({"word": ["a"], "labels": [["L1"]]}, "the columns 'word', 'labels'"),
    ],
)
def test_a_wrong_table_is_refused(present: Corpus, tmp_path: Path, columns: dict[str, Any], found: str) -> None:
    pl.DataFrame(columns).write_parquet(tmp_path / "own.parquet")
    with pytest.raises(DataError, match=found):
        take(tmp_path / "own.parquet", present, "toy", tmp_path / "set")


def test_what_is_no_file_or_too_large_is_refused(
    present: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "own.xlsx").touch()
    for name, kind, found in (
        ("pipe.jsonl", MissingError, "a named pipe"),
        ("folder.parquet", MissingError, "a folder"),
        ("none.jsonl", MissingError, "no file"),
        ("own.xlsx", UsageError, "own.xlsx"),
    ):
        with pytest.raises(kind, match=found):
            take(tmp_path / name, present, "toy", tmp_path / "set")
    file = tmp_path / "own.jsonl"
    file.write_text('{"text": "castle", "labels": ["L1"]}\n' * 3)
    monkeypatch.setattr(document_file, "MOST_DOCUMENTS", 2)
    with pytest.raises(DataError, match="3 documents of 18 characters, or more"):
        take(file, present, "toy", tmp_path / "set")
    monkeypatch.setattr(document_file, "MOST_BYTES", 20)
    with pytest.raises(DataError, match="111 bytes"):
        take(file, present, "toy", tmp_path / "set")


def test_levels_near_the_limit_of_recursion_are_refused(present: Corpus, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    for depth in range(850, 1010):
        file.write_text(f'{{"text": {"[" * depth}{"]" * depth}, "labels": []}}')
        with pytest.raises(DataError):
            take(file, present, "toy", tmp_path / "set")


def test_kinds_that_the_dataset_allows_are_repaired(present: Corpus, tmp_path: Path) -> None:
    """But not an empty text or a document without labels, on which nothing can be measured."""
    file, every = tmp_path / "own.jsonl", Allowed.parse(tuple(Allowed.kinds()))
    file.write_text('{"uid": 7, "text": "castle\\u0007wall", "labels": ["L1", "L0", "L1"]}')
    own = take(file, present, "toy", tmp_path / "set", allowed=every)
    assert own.documents.rows() == [("7", "castle wall", ["L1", "L0"], [])]
    for row in ('{"text": "", "labels": ["L1"]}', '{"text": "a", "labels": []}'):
        file.write_text(row)
        with pytest.raises(DataError):
            take(file, present, "toy", tmp_path / "set", allowed=every)


@pytest.mark.parametrize(("fields", "expected"), [
    (("title",), ["a title", "only content"]),
    (("content", "title"), ["its content a title", "only content"]),
])  # fmt: skip
def test_a_text_is_formed_as_those_of_the_corpus(
    toy: ToyWorld, tmp_path: Path, fields: tuple[str, ...], expected: list[str]
) -> None:
    """Otherwise a model is judged on texts of another kind, and documents that it has learnt are not recognised."""
    toy.train.append({**toy.train[0], "uid": "given", "title": "a title", "content": "its content"})
    now = corpus(tmp_path, toy, IngestConfig(fields=fields))
    (tmp_path / "own.csv").write_text("title,content,labels\na title,its content,L1\n,only content,L1\n")
    own = take(tmp_path / "own.csv", now, "toy", tmp_path / "set")
    assert own.texts == expected
    assert own.today(now, tmp_path / "today").texts == expected[1:]


def test_a_document_of_very_many_labels_is_read_in_a_short_time(tmp_path: Path) -> None:
    file, ids = tmp_path / "own.jsonl", {f"L{number}": number for number in range(60_000)}
    file.write_text(json.dumps({"text": "castle", "labels": list(ids)}))
    started = time.process_time()
    found = document_file.read_documents(file, ReadOptions(), Allowed(), ids)
    assert found["labels"].to_list() == [list(ids)]
    assert time.process_time() - started < 5, "a second at most; each label was compared with all before it"


def test_deleted_documents_and_labels_are_nowhere_in_the_files(present: Corpus, tmp_path: Path) -> None:
    own = draw(present, "toy", tmp_path / "set")
    uid = own.documents["uid"][3]
    fewer = own.without([uid], ["L5"])
    assert fewer.facts.version == 2 and fewer.digest != own.digest
    others = own.documents.filter(pl.col("uid") != uid)
    assert fewer.documents["uid"].to_list() == others["uid"].to_list()
    assert fewer.documents["labels"].to_list() == [
        [label for label in row if label != "L5"] for row in others["labels"].to_list()
    ]
    assert fewer.labels["uid"].to_list() == [label for label in own.labels["uid"].to_list() if label != "L5"]
    assert len(own.without([], [f"L{i}" for i in range(10)])) == 0


def test_a_set_without_the_documents_and_labels_that_are_deleted_keeps_its_version(
    present: Corpus, tmp_path: Path
) -> None:
    """The best champions so far count on this version alone. A removal that was killed is given twice."""
    own = draw(present, "toy", tmp_path / "set").without([], ["L5"])
    again = own.without(["nobody"], ["L5"], ["no text"])
    assert (again.digest, again.facts.version) == (own.digest, 2)
    assert AcceptanceSet.open(own.folder).digest == own.digest


# another day


def test_documents_that_are_trained_on_today_are_left_out(drawn: AcceptanceSet, toy: ToyWorld, tmp_path: Path) -> None:
    """Two test documents have become train documents: one by its uid, one by its text."""
    same_text = {**toy.test[1], "uid": "another"}
    now = corpus(tmp_path, ToyWorld([*toy.train, toy.test[0], same_text], toy.test[2:], toy.labels))
    today = drawn.today(now, tmp_path / "today")
    gone = {toy.test[0]["uid"], toy.test[1]["uid"]}
    assert set(drawn.documents["uid"]) - set(today.documents["uid"]) == gone
    assert today.facts == drawn.facts


def test_documents_of_a_given_file_are_known_by_their_texts_alone(present: Corpus, tmp_path: Path) -> None:
    """Whoever wrote the file knows nothing of the uids of the corpus."""
    rows = present.published_rows()
    uid, text = present.uids(rows)[0], present.texts_of("documents", rows)[1]
    given = [{"uid": uid, "text": "castle0", "labels": ["L1"]}, {"uid": "own", "text": text, "labels": ["L1"]}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, given)))
    own = take(tmp_path / "own.jsonl", present, "toy", tmp_path / "set")
    assert own.today(present, tmp_path / "today").documents["uid"].to_list() == [uid]


@pytest.mark.parametrize(("one", "other"), [("\u00f6", "o\u0308"), ("o\u0308", "\u00f6")])
def test_the_unicode_form_of_a_text_does_not_matter(toy: ToyWorld, tmp_path: Path, one: str, other: str) -> None:
    toy.train[0]["content"] += f" y{one}"
    now = corpus(tmp_path, toy)
    text = f"{toy.train[0]['title']} {toy.train[0]['content']}".replace(one, other)
    given = [{"text": text, "labels": ["L1"]}, {"text": "another", "labels": ["L1"]}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, given)))
    own = take(tmp_path / "own.jsonl", now, "toy", tmp_path / "set")
    assert own.today(now, tmp_path / "today").texts == ["another"]
    assert own.without([], [], [text.replace(other, one)]).texts == ["another"]


def test_texts_of_today_are_compared_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = ToyWorld.make(documents=60, tests=20)
    for number, document in enumerate(world.train):
        document["content"] = f"{number} " * 20_000
    now = corpus(tmp_path, world)
    own = draw(now, "toy", tmp_path / "set")
    monkeypatch.setattr(corpora, "_ROWS_AT_ONCE", 4)
    tracemalloc.start()
    try:
        assert len(own.today(now, tmp_path / "today")) == 20
        assert tracemalloc.get_traced_memory()[1] < 30 * 40_000, "less than the texts of half the corpus"
    finally:
        tracemalloc.stop()


def test_labels_that_are_gone_today_are_no_longer_asked_for(
    drawn: AcceptanceSet, model: Path, toy: ToyWorld, tmp_path: Path
) -> None:
    toy.labels[0] = {**toy.labels[0], "uid": "another"}
    today = drawn.today(corpus(tmp_path, toy), tmp_path / "today")
    assert "L0" not in today.labels["uid"].to_list()
    assert not any("L0" in row for row in today.documents["labels"].to_list())
    assert all(today.documents["labels"].list.len() > 0)


# figures


def test_the_figures_are_those_of_an_evaluation_of_the_same_documents(
    drawn: AcceptanceSet, present: Corpus, predictor: Predictor
) -> None:
    rows = present.rows(TEST)
    ranked = without(predictor.shortlist(present.texts_of("documents", rows), 100), present.filters.rows(rows))
    expected = per_document(ranked, present.labels.rows(rows), present.weights()).total()
    found = answered(predictor, drawn).total()
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_labels_are_found_by_uid_wherever_they_are_now(
    drawn: AcceptanceSet, predictor: Predictor, toy: ToyWorld, tmp_path: Path
) -> None:
    turned = corpus(tmp_path, moved(toy, [*range(3, len(TOPICS)), 0, 1, 2]))
    found = answered(predictor, draw(turned, "toy", tmp_path / "set")).total()
    assert found == pytest.approx(answered(predictor, drawn).total(), nan_ok=True)


def test_a_label_that_the_model_does_not_know_is_a_miss(
    drawn: AcceptanceSet, predictor: Predictor, toy: ToyWorld, tmp_path: Path
) -> None:
    toy.labels[0] = {**toy.labels[0], "uid": "another"}
    renamed = answered(predictor, draw(corpus(tmp_path, toy), "toy", tmp_path / "set")).total()["R_at_10"]
    with_it = sum(0 in row["target_ind"] for row in toy.test) / len(toy.test)
    assert renamed < answered(predictor, drawn).total()["R_at_10"] - 5 * with_it


def test_filtered_pairs_are_left_out(predictor: Predictor, toy: ToyWorld, tmp_path: Path) -> None:
    filtered = make_workspace(tmp_path, toy)
    pairs = [f"{number} {label}" for number, row in enumerate(toy.test) for label in row["target_ind"]]
    (filtered.raw("toy") / "filter_labels_test.txt").write_text("\n".join(pairs) + "\n")
    run_stage(filtered, "corpus", "toy")
    today = draw(Corpus.open(filtered.folder("corpus", "toy")), "toy", tmp_path / "set")
    assert answered(predictor, today).total()["R_at_10"] == 0.0


def test_the_recall_of_a_bin_counts_its_labels_alone(drawn: AcceptanceSet, predictor: Predictor) -> None:
    """Label 0 is made rare; what is left of head, torso and tail is counted naively."""
    drawn.labels[0, "frequency"] = 2
    figures, k = answered(predictor, drawn), 5
    ids = {uid: i for i, uid in enumerate(predictor.uids)}
    for name, chosen in (("tail", {0}), ("head", set(range(1, 10))), ("torso", set())):
        hits = positives = 0
        for text, labels in zip(drawn.texts, drawn.documents["labels"].to_list(), strict=True):
            true = {ids[uid] for uid in labels} & chosen
            answer = {one.label for one in predictor.predict([text], k)[0]}
            hits, positives = hits + len(true & answer), positives + len(true)
        recall = figures.num[f"{name}_recall_at_5"].sum(), figures.den[f"{name}_recall_at_5"].sum()
        assert recall == (hits, positives), name
    drawn.labels[0, "frequency"] = 50


def test_a_label_that_the_set_does_not_know_takes_no_rank(drawn: AcceptanceSet, predictor: Predictor) -> None:
    """Nobody has judged it: it is neither right nor wrong."""
    few = drawn.documents.with_columns(labels=pl.col("labels").list.eval(pl.element().filter(pl.element() == "L5")))
    few = few.filter(pl.col("labels").list.len() > 0)
    folder = drawn.folder.with_name("few")
    acceptance.write_set(folder, drawn.facts, few, drawn.labels.filter(pl.col("uid") == "L5"))
    assert answered(predictor, AcceptanceSet.open(folder)).total()["P_at_1"] == 100.0


# a clean process


@pytest.mark.usefixtures("starting")
def test_a_clean_process_returns_the_same_figures_and_the_costs(
    drawn: AcceptanceSet, model: Path, predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not see the folder in which the command runs: files there may stand in for packages of the model."""
    (tmp_path / "numpy.py").write_text("raise ImportError\n")
    monkeypatch.chdir(tmp_path)
    found = measured(model, drawn)
    assert found.figures.total() == pytest.approx(answered(predictor, drawn).total(), nan_ok=True)
    assert found.costs.latency_p50_ms > 0
    files = [path for path in model.rglob("*") if path.is_file() and path.name not in ("manifest.json", "made.json")]
    size = sum(path.stat().st_size for path in files)
    assert found.costs.megabytes == pytest.approx(size / 1e6)


def test_the_recall_is_that_of_the_index_in_the_model(
    drawn: AcceptanceSet, model: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured(model, drawn).recalls == {"label_text": 1.0, "classifier": 1.0}
    random = np.random.default_rng(0)
    vectors_LD = random.standard_normal((2000, predictor.embed(["a"]).shape[1])).astype(np.float32)
    weak = VectorScore.build(vectors_LD, Hnsw(links=2, build_effort=4, search_effort=1))
    asked: list[list[str]] = []

    def counted(self: VectorScore, query: Query) -> dict[str, float]:
        asked.append(query.texts)
        return figures(self, query)

    figures = VectorScore.figures
    monkeypatch.setattr(VectorScore, "figures", counted)
    other = replace(predictor, ranker=replace(predictor.ranker, scores={"classifier": weak}))
    assert searched(other, drawn.texts)["classifier"] < 0.5
    monkeypatch.setattr(accepting, "_PRODUCTS", 35 * vectors_LD.size)
    searched(other, drawn.texts)
    monkeypatch.setattr(accepting, "_PRODUCTS", vectors_LD.size)
    searched(other, drawn.texts)
    assert [len(texts) for texts in asked] == [40, 35, 30], "fewer texts among many labels"
    assert all((texts[0], texts[-1]) == (drawn.texts[0], drawn.texts[-1]) for texts in asked), "spread over the set"


def test_the_recall_of_a_model_is_the_lowest_of_its_indexes_and_1_without_any() -> None:
    of: Any = None
    assert Measured(of, of, {"label_text": 0.9, "classifier": 0.8}).recall == 0.8
    assert Measured(of, of).recall == 1.0


def test_a_clean_process_uses_the_device_of_this_one(
    drawn: AcceptanceSet, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE, "cuda:99")
    with pytest.raises(RefusedError, match="device 'cuda:99'"):
        measured(model, drawn)


@pytest.mark.parametrize(
    ("name", "own", "there"),
    [
        pytest.param("CUDA_VISIBLE_DEVICES", "1", "1", id="no card that is hidden here"),
        pytest.param("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "PCI_BUS_ID", id="cards under the same numbers"),
        pytest.param("PYTHONPATH", "plugins:/other", f"{Path.cwd()}/plugins:/other", id="the same plug-ins"),
    ],
)
def test_a_clean_process_sees_what_this_one_sees(
    drawn: AcceptanceSet, model: Path, monkeypatch: pytest.MonkeyPatch, name: str, own: str, there: str
) -> None:
    seen: dict[str, str] = {}

    def run(*_: object, env: dict[str, str], **__: object) -> None:
        seen.update(env)
        raise subprocess.TimeoutExpired("", 0)

    monkeypatch.setenv(name, own)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RefusedError):
        measured(model, drawn)
    assert seen[name] == there


def test_a_model_that_never_answers_there_is_refused(
    drawn: AcceptanceSet, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xc_core.infer.acceptance._SECONDS", 0.01)
    with pytest.raises(RefusedError, match=r"\(no answer within 0 s\)"):
        measured(model, drawn)


def test_a_full_disk_of_temporary_files_is_no_fault_of_the_model(
    drawn: AcceptanceSet, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to pack the model again."""
    full = subprocess.CompletedProcess([], 1, "", "Traceback:\nOSError: [Errno 28] No space left on device\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: full)
    with pytest.raises(StorageError, match=f"a full disk .* while writing {tempfile.gettempdir()}/"):
        measured(model, drawn)


def test_the_last_line_of_the_process_decides_whether_its_disk_is_full(
    drawn: AcceptanceSet, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = "OSError: [Errno 28] No space left on device\n\nThen:\nValueError: a broken model\n"
    failed = subprocess.CompletedProcess([], 1, "", handled)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RefusedError, match="ValueError: a broken model"):
        measured(model, drawn)


def test_a_model_that_does_not_open_there_is_refused(drawn: AcceptanceSet, copied: Workspace) -> None:
    spoil(copied)
    with pytest.raises(
        RefusedError,
        match=r"does not open or answer in a clean process \(.*encoder.safetensors, whose content has changed",
    ):
        measured(copied.folder("model", "toy", "ngame"), drawn)


def test_a_model_without_a_file_is_refused(drawn: AcceptanceSet, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    del manifest["files"]["fusion.json"]
    manifest["digest"] = Manifest(manifest["kind"], manifest["files"]).digest()
    (tmp_path / "model" / "fusion.json").unlink()
    (tmp_path / "model" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RefusedError, match=r"clean process \(.*fusion"):
        measured(tmp_path / "model", drawn)
