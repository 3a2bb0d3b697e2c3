"""``xc add-labels``: new labels get vectors, rows and index entries; all else stays as it was, bit for bit."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.chain.toy import Edit, set_older
from tests.conftest import ToyWorld, make_workspace
from tests.data.worlds import LAYOUTS, files_of
from tests.stages.halves import open_corpus, open_embeddings, open_scores, open_tables
from xc_core import artifacts, manifests
from xc_core.chain import Workspace, changelog, run_stage
from xc_core.chain.registry import STAGES
from xc_core.chain.status import Status, states
from xc_core.classifiers import foreseen_rows
from xc_core.data.ingest import IngestConfig
from xc_core.data.tokens import Tokenised, write_tokens
from xc_core.errors import DataError, MissingError, MovedError
from xc_core.infer.bundle import open_predictor
from xc_core.lifecycle import add_labels as module
from xc_core.lifecycle.add_labels import add_labels, check_model
from xc_core.lifecycle.delete import delete
from xc_core.lifecycle.update import update
from xc_core.recipes import RECIPES
from xc_core.scores import NewLabels
from xc_core.stages import scores as scores_stage

NEW = [("N1", "meadow", "grass flowers"), ("N2", "tunnel", "dark rails")]
EXTENDED = tuple(name for name, stage in STAGES.items() if stage.scope == "experiment" and name != "encoder")
OWN = ("data/toy/", "params")


def label_file(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    lines = [json.dumps(dict(zip(("uid", "title", "content"), row, strict=True))) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return label_file(tmp_path / "new.jsonl", NEW)


@pytest.fixture(scope="module")
def extended(trained: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The trained workspace with both labels; tests only read it."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(trained.root, root, dirs_exist_ok=True)
    assert add_labels(Workspace(root), label_file(root / "new.jsonl", NEW), "toy").labels == 2
    return Workspace(root)


def digests(workspace: Workspace) -> dict[str, str]:
    return {stage: workspace.digest(stage, "toy", "ngame") for stage in EXTENDED}


def test_a_model_that_is_deleted_meanwhile_is_left_out_and_the_others_are_extended(
    copied: Workspace, new: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """The labels were in the corpus, and the command ended with advice to fix the name of an experiment."""
    shutil.copytree(copied.home("toy") / "ngame", copied.home("toy") / "zzz")
    _, changes = copied.params.declared("toy", "ngame") or ("", {})
    copied.params.declare_experiment("toy", "zzz", "ngame", changes)
    added = module._add_to_corpus

    def deleted_then(*arguments: Any) -> int:
        delete(copied, "toy", ["ngame"])
        return added(*arguments)

    monkeypatch.setattr(module, "_add_to_corpus", deleted_then)
    found = add_labels(copied, new, "toy")
    assert (found.labels, found.recipes) == (2, ["zzz"])
    assert "add-labels: ngame is left out: it was deleted meanwhile" in lines


def test_all_that_was_there_stays_bit_for_bit_and_new_labels_come_last(trained: Workspace, extended: Workspace) -> None:
    before, after = open_embeddings(trained), open_embeddings(extended)
    assert after.documents_ND.tobytes() == before.documents_ND.tobytes()
    assert after.labels_LD[:10].tobytes() == before.labels_LD.tobytes()
    assert after.labels_LD.shape == (12, 32)
    tables, grown = open_tables(trained), open_tables(extended)
    for fold in tables.folds:
        old_LD, rows_LD = tables.rows(fold.name), grown.rows(fold.name)
        assert rows_LD[:10].tobytes() == old_LD.tobytes()
        wanted = foreseen_rows(after.starts_LD[10:], after.starts_LD[:10], old_LD, unit=tables.unit)
        np.testing.assert_array_equal(rows_LD[10:], wanted)
    assert grown.foreseen == {10, 11}
    uids = open_corpus(extended).table("labels")["uid"].to_list()
    assert uids == [*open_corpus(trained).table("labels")["uid"].to_list(), "N1", "N2"]
    for stage in ("encoder", "clusters", "negatives", "evaluation", "audit"):
        assert extended.digest(stage, "toy", "ngame") == trained.digest(stage, "toy", "ngame"), stage


def test_figures_of_validation_documents_stay(trained: Workspace, extended: Workspace) -> None:
    old, new = (workspace.folder("fusion", "toy", "ngame") / "validation.npz" for workspace in (trained, extended))
    assert old.read_bytes() == new.read_bytes()
    assert "validation.npz" in artifacts.verify(new.parent, kind="fusion").files


def test_a_new_label_is_first_for_its_own_text_and_scores_of_other_labels_stay(
    trained: Workspace, extended: Workspace
) -> None:
    before, after = (open_predictor(one.folder("model", "toy", "ngame")) for one in (trained, extended))
    for uid, title, content in NEW:
        assert after.predict([f"{title} {content}"])[0][0].uid == uid
    corpus = open_corpus(trained)
    texts = corpus.texts_of("documents", corpus.rows("test"))
    for old, now in zip(before.predict(texts, 10), after.predict(texts, 12), strict=True):
        scores = {one.uid: one.score for one in now}
        known = {one.uid: one.score for one in old if one.uid in scores}
        assert len(known) >= 4
        assert {uid: scores[uid] for uid in known} == known


def test_vectors_of_new_labels_are_those_of_a_full_encoding(extended: Workspace, tmp_path: Path) -> None:
    shutil.copytree(extended.root, tmp_path / "full")
    full, quick = Workspace(tmp_path / "full"), open_embeddings(extended)
    assert not run_stage(full, "embeddings", "toy", "ngame", refresh=True).skipped
    np.testing.assert_allclose(open_embeddings(full).labels_LD, quick.labels_LD, atol=1e-6)
    assert {name: found["recall"] for name, found in open_scores(extended).figures.items()} == {
        "label_text": 1.0, "classifier": 1.0}  # fmt: skip


def test_corpus_and_tokens_are_those_of_a_rebuild(trained: Workspace, extended: Workspace, tmp_path: Path) -> None:
    """Byte for byte; the vocabulary stays, and whatever has not changed is linked."""
    workspace = Workspace(tmp_path / "full")
    shutil.copytree(extended.root, workspace.root)
    assert not run_stage(workspace, "corpus", "toy", force=True).skipped
    assert workspace.digest("corpus", "toy") == extended.digest("corpus", "toy")
    records = [artifacts.read_made(one.folder("corpus", "toy")) for one in (workspace, extended)]
    assert records[0] == records[1]
    corpus, store = open_corpus(extended), extended.folder("tokens", "toy") / "wordpiece"
    tokens = Tokenised.open(store)
    sides = {"documents": (corpus.num_documents, corpus.texts("documents")), "labels": (12, corpus.texts("labels"))}
    with artifacts.building(tmp_path / "tokens", kind=Tokenised.kind) as build:
        write_tokens(build, tokens.tokenizer, sides, tokens.max_tokens)
    assert manifests.read_manifest(tmp_path / "tokens" / "wordpiece") == manifests.read_manifest(store)
    assert tokens.tokenizer.same_as(Tokenised.open(trained.folder("tokens", "toy") / "wordpiece").tokenizer)


def test_status_says_what_is_kept_and_a_refresh_rebuilds_it(extended: Workspace, tmp_path: Path) -> None:
    shutil.copytree(extended.root, tmp_path / "again")
    workspace = Workspace(tmp_path / "again")
    found = states(workspace, workspace.params.experiment("toy", "ngame"))
    kept = {name for name, state in found.items() if state.status is Status.KEPT}
    assert {name for name, state in found.items() if state.status is Status.FRESH} == {"corpus", "model"}
    assert kept == found.keys() - {"corpus", "model"}
    assert found["scores"].why == "labels were added without a rebuild; a refresh rebuilds it"
    before = workspace.digest("tokens", "toy")
    assert not run_stage(workspace, "tokens", "toy").skipped
    assert workspace.digest("tokens", "toy") != before, "another vocabulary"
    found = states(workspace, workspace.params.experiment("toy", "ngame"))
    assert {name for name, state in found.items() if state.status is Status.KEPT} == kept - {"tokens"}
    for stage in EXTENDED:
        read = {dep: workspace.digest(dep, "toy", "ngame") for dep in STAGES["classifier"].deps[1:]}
        ran = run_stage(workspace, stage, "toy", "ngame", refresh=True)
        # Vectors of a full encoding may have the same bytes; then the predicted rows are those of a refresh already.
        same = all(digest == extended.digest(dep, "toy", "ngame") for dep, digest in read.items())
        assert ran.skipped is (stage == "classifier" and same), stage
    found = states(workspace, workspace.params.experiment("toy", "ngame"))
    assert {name for name, state in found.items() if state.status is not Status.FRESH} == {"encoder", "classifier"}
    assert open_tables(workspace).foreseen == {10, 11}


def test_labels_that_come_one_after_the_other_get_the_rows_that_they_get_together(
    copied: Workspace, extended: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[frozenset[int]] = []
    monkeypatch.setattr(scores_stage, "NewLabels", lambda *given: told.append(given[-1]) or NewLabels(*given))
    for number, row in enumerate(NEW):
        add_labels(copied, label_file(tmp_path / f"{number}.jsonl", [row]), "toy")
    assert (told[0], told[-1]) == ({10}, {10, 11}), "scores with rows of their own leave these out of their map too"
    np.testing.assert_allclose(open_tables(copied).rows(), open_tables(extended).rows(), atol=1e-6)
    assert open_tables(copied).foreseen == {10, 11}
    assert [entry["what"] for entry in changelog.entries(copied, "toy")] == ["labels", "labels"]


@pytest.mark.parametrize(
    "killed_at", ["scores", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tokens", "embeddings", "model"))]
)
def test_a_command_that_was_killed_can_be_given_again(
    killed_at: str, copied: Workspace, extended: Workspace, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(workspace: Workspace, name: str, *arguments: Any, **options: Any) -> Any:
        if name == killed_at:
            raise KeyboardInterrupt
        return run_stage(workspace, name, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_stage", killed)
        with pytest.raises(KeyboardInterrupt):
            add_labels(copied, new, "toy")
    again = add_labels(copied, new, "toy", "ngame")
    assert (again.labels, again.recipes) == (0, ["ngame"])
    assert digests(copied) == digests(extended)
    assert len(changelog.entries(copied, "toy")) == 1


# what is refused


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([("N1", "a", ""), ("N1", "b", "")], "the uid 'N1' again, which is also the uid of new.jsonl, line 1"),
        ([("N1", "", " ")], "an empty text"),
        ([("L3", "violin", "violin0 violin1"), ("L4", "another", "text")], "1 label that toy has with another text"),
        ([("N1", "a\u0007", "")], "the character"),
    ],
)
def test_wrong_labels_change_nothing(
    rows: list[tuple[str, str, str]], found: str, copied: Workspace, tmp_path: Path
) -> None:
    before = {name: data for name, data in files_of(copied.root).items() if name.startswith(OWN)}
    with pytest.raises(DataError) as refused:
        add_labels(copied, label_file(tmp_path / "new.jsonl", rows), "toy")
    assert found in refused.value.found
    assert {name: data for name, data in files_of(copied.root).items() if name.startswith(OWN)} == before


def test_a_model_that_is_out_of_date_is_left_out_or_refused(
    copied: Workspace, new: Path, tmp_path: Path, lines: list[str]
) -> None:
    world = ToyWorld([{"uid": "D9", "title": "river0", "content": "", "target_ind": [0]}], [],
                     [{"uid": "L0", "title": "river", "content": "river0 river1"}])  # fmt: skip
    update(copied, world.write(tmp_path / "more"), "toy")
    with pytest.raises(MovedError, match="encoder of toy/ngame out of date: corpus changed since it was made"):
        add_labels(copied, new, "toy", "ngame")
    assert open_corpus(copied).num_labels == 10
    added = add_labels(copied, new, "toy")
    assert (added.labels, added.recipes) == (2, [])
    assert any("add-labels: ngame is left out: encoder of toy/ngame out of date: corpus" in line for line in lines)


def test_a_model_without_its_audit_can_be_extended_and_one_without_another_stage_cannot(copied: Workspace) -> None:
    shutil.rmtree(copied.folder("audit", "toy", "ngame"))
    check_model(copied, "toy", "ngame")
    shutil.rmtree(copied.folder("scores", "toy", "ngame"))
    with pytest.raises(MissingError, match="no scores of toy/ngame"):
        check_model(copied, "toy", "ngame")


def test_other_settings_or_code_are_refused_by_every_stage(copied: Workspace, new: Path) -> None:
    set_older(copied.folder("scores", "toy", "ngame"), "code")
    with pytest.raises(MovedError, match="scores of toy/ngame out of date: code changed"):
        add_labels(copied, new, "toy", "ngame")
    assert open_corpus(copied).num_labels == 10


@pytest.mark.parametrize("ran", [True, False])
def test_a_model_of_other_tokens_is_refused(copied: Workspace, new: Path, edit: Edit, ran: bool) -> None:
    """Whether or not the texts have been tokenised again since."""
    edit(copied, {"datasets/toy/tokens/max_tokens": 2})
    if ran:
        run_stage(copied, "tokens", "toy")
    with pytest.raises(MovedError, match="tokens"):
        add_labels(copied, new, "toy", "ngame")
    assert open_corpus(copied).num_labels == 10


def test_an_extended_artefact_is_out_of_date_if_texts_are_cut_elsewhere(
    extended: Workspace, edit: Edit, tmp_path: Path
) -> None:
    """As one that was not extended is."""
    shutil.copytree(extended.root, tmp_path / "again")
    workspace = Workspace(tmp_path / "again")
    edit(workspace, {"datasets/toy/tokens/max_tokens": 2})
    run_stage(workspace, "tokens", "toy")
    found = states(workspace, workspace.params.experiment("toy", "ngame"))
    assert (found["embeddings"].status, found["embeddings"].why) == (Status.STALE, "tokens changed")
    assert found["model"].status is Status.STALE


def test_an_artefact_is_not_extended_if_its_input_was_built_again(extended: Workspace, tmp_path: Path) -> None:
    shutil.copytree(extended.root, tmp_path / "again")
    workspace = Workspace(tmp_path / "again")
    run_stage(workspace, "embeddings", "toy", "ngame", refresh=True)
    set_older(workspace.folder("clusters", "toy", "ngame"), "embeddings")
    with pytest.raises(MovedError, match="out of date: embeddings changed"):
        run_stage(workspace, "clusters", "toy", "ngame", extend=True)


def test_a_score_over_other_labels_is_refused_before_anything_changes(workspace: Workspace, new: Path) -> None:
    score = RECIPES["adversarial"].scores["noise"]
    with pytest.raises(MovedError, match="the score 'noise', which has to be fitted again"):
        score.check_extended()


@pytest.mark.parametrize(
    ("base", "changes", "refused"),
    [
        ("freq-ns", {"scores": {"noise": None}}, "whose negatives were drawn from a distribution over its labels"),
        ("freq-ns", {}, "the score 'noise', which has to be fitted again"),
        ("nce", {}, ""),
        ("uniform-ns", {}, ""),
        ("freq-ns", {"scores": {"noise": None}, "classifier": {"epochs": 0}}, ""),
    ],
)
def test_a_classifier_biased_by_its_negatives_cannot_rank_new_labels(
    base: str, changes: dict[str, Any], refused: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCE has no bias, uniform negatives have the same for all labels, and rows that are not trained have none."""
    workspace.params.declare_experiment("toy", "mine", base, changes)
    monkeypatch.setattr(module, "states", lambda *_: dict.fromkeys(STAGES, SimpleNamespace(status=Status.FRESH)))
    with pytest.raises(MovedError, match=refused) if refused else nullcontext():
        check_model(workspace, "toy", "mine")


# layouts and kinds of files


@pytest.mark.parametrize("table", [True, False])
def test_a_tabular_dataset_gets_a_table_of_labels(table: bool, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "project")
    raw = workspace.raw("toy")
    shutil.rmtree(raw)
    raw.mkdir()
    for stem, first in (("train", 0), ("test", 50)):
        with (raw / f"{stem}.csv").open("w", newline="") as stream:
            rows = [[f"D{first + i}", f"words of number {first + i}", f"b{i % 3};a"] for i in range(30)]
            csv.writer(stream).writerows([["uid", "text", "labels"], *rows])
    if table:
        (raw / "labels.csv").write_text("uid,text\nb0,zero\nb1,one\nb2,two\na,all\n")
    run_stage(workspace, "corpus", "toy")
    before = open_corpus(workspace)
    documents = (before.folder / "documents.parquet").stat().st_ino
    frame = pl.DataFrame({"uid": ["c"], "text": ["something new"]})
    frame.write_parquet(tmp_path / "new.parquet")
    assert add_labels(workspace, tmp_path / "new.parquet", "toy").labels == 1
    after = open_corpus(workspace)
    assert (after.folder / "documents.parquet").stat().st_ino == documents, "linked: no document is read again"
    assert after.table("labels")["title"].to_list() == (
        ["zero", "one", "two", "all", "something new"] if table else ["a", "b0", "b1", "b2", "something new"]
    )
    assert sorted(path.name for path in raw.iterdir()) == ["labels.parquet", "test.csv", "train.csv"]
    assert after.labels.indices.tolist() == before.labels.indices.tolist()
    assert workspace.params.dataset("toy").corpus.allow == ("unseen-labels",)
    assert (changelog.version(workspace, "toy", 1) / "labels.csv").is_file() is table


@pytest.mark.parametrize("new", ["50", "300", "x"])
def test_labels_that_are_whole_numbers_stay_whole_numbers(new: str, tmp_path: Path) -> None:
    """Otherwise a number in the column labels could be a uid or a row. A name beside them is refused for that."""
    workspace = make_workspace(tmp_path / "project")
    raw = workspace.raw("toy")
    shutil.rmtree(raw)
    raw.mkdir()
    numbers_of_a_byte = pl.Series([30, 10, 20], dtype=pl.UInt8)
    pl.DataFrame({"uid": numbers_of_a_byte, "text": ["c", "a", "b"]}).write_parquet(raw / "labels.parquet")
    for stem, first in (("train", 0), ("test", 50)):
        numbers = range(first, first + 30)
        texts, labels = [f"words of number {i}" for i in numbers], [[10 + 10 * (i % 3)] for i in numbers]
        columns = {"uid": [f"D{i}" for i in numbers], "text": texts, "labels": labels}
        pl.DataFrame(columns).write_parquet(raw / f"{stem}.parquet")
    run_stage(workspace, "corpus", "toy")
    before = open_corpus(workspace)
    pl.DataFrame({"uid": [new], "text": ["something new"]}).write_parquet(tmp_path / "new.parquet")
    if new == "x":
        with pytest.raises(DataError, match="the uid 'x' beside uids of labels that are whole numbers"):
            add_labels(workspace, tmp_path / "new.parquet", "toy")
        return
    assert add_labels(workspace, tmp_path / "new.parquet", "toy").labels == 1
    after = open_corpus(workspace)
    assert after.table("labels")["uid"].to_list() == ["30", "10", "20", new]
    assert after.labels.indices.tolist() == before.labels.indices.tolist()


@pytest.mark.parametrize("side", ["labels", "documents"])
def test_a_text_of_a_table_that_is_longer_than_a_line_may_be_comes_in(side: str, tmp_path: Path) -> None:
    """It is written as a line of JSON, so the setting becomes large enough to read it again."""
    workspace = make_workspace(tmp_path / "project")
    workspace.params.declare_dataset("toy", IngestConfig(max_line_bytes=2_000))
    run_stage(workspace, "corpus", "toy")
    frame = pl.DataFrame({"uid": ["N1"], "text": ["é" * 3_000]})
    (tmp_path / "new").mkdir()
    if side == "labels":
        frame.write_parquet(tmp_path / "new.parquet")
        assert add_labels(workspace, tmp_path / "new.parquet", "toy").labels == 1
    else:
        label = open_corpus(workspace).table("labels")["uid"][0]
        frame.with_columns(labels=pl.Series([[label]])).write_parquet(tmp_path / "new" / "train.parquet")
        update(workspace, tmp_path / "new", "toy")
    run_stage(workspace, "corpus", "toy", force=True)
    table = open_corpus(workspace).table(side)
    assert table.filter(pl.col("uid") == "N1")["title"].to_list() == ["é" * 3_000]


def test_a_layout_without_uids_is_refused(tmp_path: Path, new: Path) -> None:
    workspace = make_workspace(tmp_path / "project")
    shutil.rmtree(workspace.raw("toy"))
    workspace.raw("toy").mkdir()
    LAYOUTS["xc-text"](ToyWorld.make(documents=60, tests=10), workspace.raw("toy"))
    run_stage(workspace, "corpus", "toy")
    with pytest.raises(DataError, match="layout xc-text, in which labels have no uids"):
        add_labels(workspace, new, "toy")
