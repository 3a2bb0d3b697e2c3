"""``xc forget``: no file of the project holds what was forgotten, before and after training again."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assets.settings import mlflow_settings
from tests.cli.conftest import NGAME, TOY, Xc, entry, offered
from tests.cli.test_update_command import drop, row
from tests.conftest import open_corpus
from tests.data.worlds import empty_workspace, files_of, small_world, write_world
from xc_core import artifacts, leftovers
from xc_core.chain import STAGES, Workspace, changelog, incoming, run_stage
from xc_core.chain.context import Context
from xc_core.chain.names import ACCEPTANCE
from xc_core.chain.reports import write_report
from xc_core.cli.ingest import place
from xc_core.data.acceptance import AcceptanceSet, draw, take
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.data.merge import Tables
from xc_core.errors import BusyError
from xc_core.lifecycle import forget as forget_module
from xc_core.lifecycle.forget import forget
from xc_core.lifecycle.places import GROUP, Place

pytestmark = pytest.mark.chain

UID, TEXT = "FORGET-ME-77", "Zaphod Beeblebrox of Betelgeuse"
PLACES = (
    "inbox/toy/abc",
    "run/encoder@toy_ngame",
    "run/corpus@toy",
    "tune/toy/study",
    "reports/toy",
    "models/toy",
    "drift/toy",
)
DROP = leftovers.drop
LABEL, NAME = "FORGET-LABEL-5", "Slartibartfast"


def holding(root: Path, *words: str) -> list[str]:
    """Return all files that hold one of the words: in their bytes, or, if they are packed, in their content."""
    found = []
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        elif path.suffix == ".parquet":
            content += str(pl.read_parquet(path, glob=False).rows()).encode()
        if any(word.encode() in content or word in str(path) for word in words):
            found.append(path.relative_to(root).as_posix())
    return found


@pytest.fixture(scope="module")
def known_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that needs the project ``known`` leaves a copy for the others."""
    return tmp_path_factory.mktemp("known") / "project"


@pytest.fixture
def known(xc: Xc, own: Workspace, tmp_path: Path, known_once: Path) -> Workspace:
    """A trained project whose dataset has the document and the label that are forgotten, everywhere."""
    if known_once.exists():
        shutil.rmtree(own.root)
        return Workspace(Path(shutil.copytree(known_once, own.root)))
    train = [row(UID, TEXT, [0, 1]), row("STAYS", "a text that stays", [0, 1])]
    update = drop(tmp_path / "new", train, [("L0", "river"), (LABEL, NAME)])
    assert xc("update", update, *TOY).code == 0
    assert (
        xc(
            "update", drop(tmp_path / "more", [row(UID, TEXT + "!", [0, 1])], [("L0", "river"), (LABEL, NAME)]), *TOY
        ).code
        == 0
    )
    for name in STAGES:
        run_stage(own, name, "toy", "ngame")
    write_report(own, "toy", "ngame")
    for folder in PLACES:
        (own.state / folder).mkdir(parents=True, exist_ok=True)
        (own.state / folder / "left").write_text(f"{UID} {TEXT}")
    shutil.copytree(own.root, known_once)
    return own


def test_a_dry_run_shows_what_would_be_deleted_and_changes_nothing(xc: Xc, known: Workspace) -> None:
    """Trained artefacts were deleted unannounced; what is shown first is what is deleted then."""
    draw(known.open(Corpus, "toy"), "toy", known.home("toy") / ACCEPTANCE)
    mlflow_settings(known.root)  # as the first use of MLflow does
    (known.state / "mlflow").mkdir()
    before = {path: path.stat().st_mtime_ns for path in known.root.rglob("*") if "lock" not in path.parts}
    named = ("--document", UID, "--label", LABEL)
    shown = xc("forget", *TOY, *named, "--dry-run")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0] == "toy: would forget 1 document and 1 label"
    assert lines[-1] == "nothing was deleted; without --dry-run the command deletes it"
    now = {path: path.stat().st_mtime_ns for path in known.root.rglob("*") if "lock" not in path.parts}
    assert {path for path in {*before, *now} if before.get(path) != now.get(path)} <= {known.state}
    done = xc("forget", *TOY, *named)
    deleted = [
        line.strip() for line in done.out.splitlines() if line.startswith("  data/") or line.startswith("  .xc/")
    ]
    assert deleted == [line.split(" MB  ")[1] for line in lines if " MB  " in line]
    for part in ("acceptance set: ", "  xc train "):
        assert [line.split(" removed")[0] for line in done.out.splitlines() if line.startswith(part)] == [
            line.split(" would")[0] for line in lines if line.startswith(part)
        ]
    left = done.out.splitlines()[done.out.splitlines().index("may still hold them:") + 1 :]
    assert any("xc delete --dataset toy --version N" in line for line in left), "the place of MLflow"
    assert lines[lines.index("would not be deleted, and may hold them:") + 1 : -1] == left


def test_a_dry_run_names_documents_that_go_with_their_last_label(xc: Xc, own: Workspace) -> None:
    labels_of: dict[str, set[str]] = {}
    for uid, label in Tables.of(own.open(Corpus, "toy")).pairs.select("doc", "label").iter_rows():
        labels_of.setdefault(uid, set()).add(label)
    named = min(labels_of.values(), key=lambda labels: (len(labels), sorted(labels)))
    lost = sum(labels <= named for labels in labels_of.values())
    command = ("forget", *TOY, *(part for label in sorted(named) for part in ("--label", label)), "--dry-run")
    xc(*command).refused(77, f"{lost} documents that would have no label")
    assert f"not named, but without any other label: {lost} documents (" in xc(*command, "--with-documents").out
    assert own.folder("model", "toy", "ngame").is_dir()


def test_nothing_in_the_project_holds_it_any_more(xc: Xc, known: Workspace) -> None:
    words = (UID, TEXT, LABEL, NAME)
    before = holding(known.root, *words)
    places = (
        "data/toy/raw",
        "data/toy/corpus",
        "data/toy/changes",
        "data/toy/ngame/model",
        ".xc/versions",
        ".xc/inbox",
    )
    assert all(any(file.startswith(place) for file in before) for place in places), before
    ended = xc("forget", *TOY, "--document", UID, "--label", LABEL)
    assert ended.code == 0, ended.err
    assert holding(known.root, *words) == []
    assert "forgot 1 document and 1 label\n" in ended.out
    assert "up to date" not in ended.err
    assert "data/toy/ngame/model" in ended.out
    assert "xc train --dataset toy --recipe ngame" in ended.out
    corpus = Corpus.open(known.folder("corpus", "toy"))
    assert (corpus.num_documents, corpus.num_labels) == (281, 10)
    last = changelog.entries(known, "toy")[-1]
    assert (last["what"], last["documents"]["removed"], last["labels"]["removed"]) == (
        "forget",
        ["(forgotten)"],
        ["(forgotten)"],
    )
    for name in STAGES:
        run_stage(known, name, "toy", "ngame")
    assert holding(known.root, *words) == []
    assert xc("predict", *NGAME, "river0 river1").code == 0


def test_the_acceptance_set_stays_without_what_is_forgotten(xc: Xc, known: Workspace, tmp_path: Path) -> None:
    folder, given = known.data / "toy" / ACCEPTANCE, tmp_path / "given.jsonl"
    rows = [("FORGET-ACCEPTED", TEXT, ["L1"]), ("own", "a text", ["L1", LABEL]), ("other", "one more", ["L2"])]
    given.write_text("".join(json.dumps({"uid": u, "text": t, "labels": n}) + "\n" for u, t, n in rows))
    taken = take(given, Corpus.open(known.folder("corpus", "toy")), "toy", folder).without(["FORGET-ACCEPTED"], [])
    assert xc("forget", *TOY, "--label", LABEL).code == 0
    left = AcceptanceSet.open(folder)
    assert (left.facts.version, left.facts.source) == (taken.facts.version + 1, "given")
    assert left.documents["labels"].to_list() == [["L1"], ["L2"]]
    assert holding(known.root, LABEL, NAME, "FORGET-ACCEPTED") == []
    (folder / "labels.parquet").write_bytes(b"damaged")
    assert xc("forget", *TOY, "--document", "STAYS").code == 0
    assert not folder.exists()


def test_a_given_acceptance_set_without_uids_loses_the_text(xc: Xc, own: Workspace, tmp_path: Path) -> None:
    """Its documents are named by the file and the row."""
    documents = [{**row("PAPER", "Vogon poetry", [0]), "content": "Oh freddled gruntbuggly"}]
    assert xc("update", drop(tmp_path / "new", documents, [("L0", "river")]), *TOY).code == 0
    given, folder = tmp_path / "given.jsonl", own.data / "toy" / ACCEPTANCE
    texts = ["Vogon poetry  Oh freddled gruntbuggly", "Vogon poetry", "Oh freddled\tgruntbuggly"]
    texts.append("Oh freddled gruntbuggly Vogon poetry")  # in a dataset with --fields content --fields title
    others = ["Vogon poetry is bad", "another text"]
    given.write_text("".join(json.dumps({"text": text, "labels": ["L1"]}) + "\n" for text in [*texts, *others]))
    take(given, Corpus.open(own.folder("corpus", "toy")), "toy", folder)
    ended = xc("forget", *TOY, "--document", "PAPER")
    assert ended.code == 0, ended.err
    assert AcceptanceSet.open(folder).texts == others
    assert holding(own.root, "freddled") == []
    assert "acceptance set: 4 documents removed" in ended.out
    assert "not forgotten" not in ended.out
    assert "  the acceptance set, if the given file had them" in ended.out


def test_a_document_with_the_same_text_stays_and_is_named(xc: Xc, own: Workspace, tmp_path: Path) -> None:
    documents = [row(UID, TEXT, [0]), {**row("COPY", TEXT.split()[0], [0]), "content": TEXT.partition(" ")[2] + " "}]
    assert xc("update", drop(tmp_path / "new", documents, [("L0", "river")]), *TOY).code == 0
    assert "not forgotten, though the text is the same: 1 document (COPY)" in xc("forget", *TOY, "--document", UID).out
    both = xc("forget", *TOY, "--document", "COPY", "--document", "COPY")
    assert both.code == 0 and "not forgotten" not in both.out
    assert "toy: forgot 1 document and 0 labels\n" in both.out, "a uid that is named twice counts once"


def test_a_copy_of_several_forgotten_documents_is_named_once() -> None:
    rows = [("A", "one", "text"), ("B", "one ", "\ttext"), ("COPY", "one text", ""), ("OTHER", "text", "one"),
            ("EMPTY", "", ""), ("BLANK", " ", ""), ("NFC", "y\u00f6", ""), ("NFD", "", "yo\u0308")]  # fmt: skip
    documents = pl.DataFrame(rows, ["uid", "title", "content"], orient="row")
    tables = Tables(documents, *[pl.DataFrame()] * 3)
    assert tables.copies(["A", "B", "EMPTY"]) == ["COPY"]
    assert tables.copies(["NFC"]) == ["NFD"]


def test_the_splits_of_all_others_stay(xc: Xc, own: Workspace) -> None:
    table = Corpus.open(own.folder("corpus", "toy")).table("documents").select("uid", "split")
    assert xc("forget", *TOY, "--document", "D0003").code == 0
    after = Corpus.open(own.folder("corpus", "toy")).table("documents").select("uid", "split")
    assert dict(after.iter_rows()) == {uid: split for uid, split in table.iter_rows() if uid != "D0003"}


def test_the_last_train_document_of_a_label_can_be_forgotten(xc: Xc, known: Workspace) -> None:
    ended = xc("forget", *TOY, "--document", UID, "--document", "STAYS")
    assert ended.code == 0, ended.err
    assert known.params.dataset("toy").corpus.allow == ("unseen-labels",)


@pytest.mark.parametrize(("split", "allow"), [("train", ()), ("validation", ()), ("test", ("unseen-labels",))])
def test_labels_without_train_documents_are_allowed_only_if_there_are_some(split: str, allow: tuple[str, ...]) -> None:
    documents = pl.DataFrame({"uid": ["A", "B"], "split": ["train", split], "group": ["", ""]})
    pairs, labels = pl.DataFrame({"doc": ["A", "B"], "label": ["L1", "L2"]}), pl.DataFrame({"uid": ["L1", "L2"]})
    remaining = Tables(documents, labels, pairs, pl.DataFrame())
    assert forget_module._config(IngestConfig(), remaining, validation_given=False).allow == allow


def test_a_uid_that_is_also_a_word_of_the_changelog_leaves_the_words(xc: Xc, own: Workspace, tmp_path: Path) -> None:
    labels = [("L0", "river"), ("update", "to update"), ("xc-json", "a layout")]
    assert xc("update", drop(tmp_path / "new", [row("NEW", "a text", [0, 1, 2])], labels), *TOY).code == 0
    (before,) = changelog.entries(own, "toy")
    assert before["labels"]["added"] == ["update", "xc-json"]
    assert xc("forget", *TOY, "--label", "update", "--label", "xc-json").code == 0
    first, _ = changelog.entries(own, "toy")
    assert first == {**before, "labels": {**before["labels"], "added": ["(forgotten)", "(forgotten)"]}}


def test_documents_without_another_label_are_refused_or_go_too(xc: Xc, own: Workspace, tmp_path: Path) -> None:
    update = drop(tmp_path / "new", [row("ONLY", "a text", [0])], [("LONE", "lonely")])
    assert xc("update", update, *TOY).code == 0
    before = {k: v for k, v in files_of(own.root).items() if not k.startswith(".xc")}
    ended = xc("forget", *TOY, "--label", "LONE")
    assert ended.code == 77
    assert "1 document that would have no label (the first: ONLY)" in ended.err
    assert {k: v for k, v in files_of(own.root).items() if not k.startswith(".xc")} == before
    both = xc("forget", *TOY, "--label", "LONE", "--label", "LONE", "--with-documents")
    assert both.code == 0 and " 1 label\n" in both.out, "a uid that is named twice counts once"
    assert holding(own.root, "LONE", "ONLY") == []


def test_documents_that_had_no_label_before_stay(tmp_path: Path) -> None:
    workspace, world = empty_workspace(tmp_path / "project"), small_world()
    bare, gone = world.train[3], world.train[4]
    bare["target_ind"], bare["target_rel"] = [], []
    place(workspace, world.write(tmp_path / "begin"), "toy", IngestConfig(allow=("empty-labels",)), replace=False)
    forget(workspace, "toy", [gone["uid"]], [], with_documents=True)
    uids = Tables.of(open_corpus(workspace)).documents["uid"].to_list()
    assert (bare["uid"] in uids, gone["uid"] in uids) == (True, False)


@pytest.mark.parametrize(
    "name", ["inbox/trn.json", "inbox/.copying/trn.json", "inbox/part/.trn.json.x7", ".inbox.0123456789abcdef/trn.json"]
)
def test_files_in_the_inbox_are_neither_deleted_nor_passed_over(xc: Xc, own: Workspace, name: str) -> None:
    """A copy in progress is hidden; it is data too. A run that was killed may have set the inbox aside."""
    waiting = own.data / "toy" / name
    waiting.parent.mkdir(parents=True)
    (own.data / "toy" / "inbox").mkdir(exist_ok=True)
    last = own.data / "toy" / "inbox" / "tst.json"
    for path in (waiting, last):
        path.write_text(TEXT)
    before = files_of(own.data)
    asked = ("forget", *TOY, "--document", "D0003")
    xc(*asked).refused(
        75, f"files in the inbox of toy that were not ingested yet: 2, the first {waiting}", "wait until"
    )
    assert files_of(own.data) == before
    waiting.unlink()
    last.unlink()
    (own.data / "toy" / "inbox" / ".gitkeep").touch()
    ended = xc(*asked)
    assert ended.code == 0, ended.err
    assert (own.data / "toy" / "inbox" / ".gitkeep").exists() and "toy/inbox\n" not in ended.out


def test_files_that_were_set_aside_beside_the_folder_that_an_inbox_links_to_are_found(tmp_path: Path) -> None:
    """Its name may have characters of patterns."""
    for name in ("drop[1]", ".drop[1].0123456789abcdef", ".drop1.other"):
        (tmp_path / name).mkdir()
    (tmp_path / "inbox").symlink_to("drop[1]")
    (tmp_path / ".drop1.other" / "trn.json").touch()
    forget_module._check_inbox(tmp_path / "inbox", "toy")
    (tmp_path / ".drop[1].0123456789abcdef" / "trn.json").touch()
    with pytest.raises(BusyError, match="files in the inbox of toy"):
        forget_module._check_inbox(tmp_path / "inbox", "toy")


def test_nothing_is_forgotten_while_a_stage_runs(xc: Xc, known: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep what it makes of the rows if it ended between the deletion and the exchange of the corpus."""
    from xc_core.stages import tokens

    run, before = tokens.run, holding(known.root / "data", UID)
    ended = []

    def running(context: Context[Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(forget_module, "present_corpus", None)  # refused before anything is read
            ended.append(xc("forget", *TOY, "--document", UID))
        run(context)

    monkeypatch.setattr(tokens, "run", running)
    run_stage(known, "tokens", "toy", force=True)
    assert ended[0].code == 75
    assert f"a stage, a study or the gate of the dataset toy, which process {os.getpid()} is running" in ended[0].err
    assert holding(known.root / "data", UID) == before
    assert xc("forget", *TOY, "--document", UID).code == 0
    assert holding(known.root / "data", UID) == []


def test_no_stage_runs_while_rows_are_removed(xc: Xc, known: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    redact, refused = changelog.redact, []

    def meanwhile(*given: Any) -> None:
        with pytest.raises(BusyError, match="a removal from the dataset toy, which process"):
            run_stage(known, "tokens", "toy")
        refused.append("tokens")
        redact(*given)

    monkeypatch.setattr(changelog, "redact", meanwhile)
    assert xc("forget", *TOY, "--document", UID).code == 0
    assert refused and not known.folder("tokens", "toy").exists()


def test_an_unknown_uid_is_refused(xc: Xc, own: Workspace) -> None:
    ended = xc("forget", *TOY, "--document", "D9999")
    assert ended.code == 66
    assert "no document 'D9999' in toy (nearest: 'D" in ended.err
    xc("forget", *TOY).refused(64, "nothing to forget", "name at least one")


@pytest.mark.parametrize("where", ["acceptance", "changes"])
def test_a_document_that_left_the_dataset_before_can_be_forgotten(where: str, tmp_path: Path) -> None:
    """Kept files, the acceptance set and models may still hold it."""
    workspace, world = empty_workspace(tmp_path / "project"), small_world()
    world.test[-1]["uid"] = "leaving"  # "test-11" is part of the folder pytest-11, whose name is in locks
    place(workspace, write_world(tmp_path / "old", world=world), "toy", IngestConfig(), replace=False)
    draw(open_corpus(workspace), "toy", workspace.data / "toy" / ACCEPTANCE)
    world.test[-1]["uid"] = "new"
    new = write_world(tmp_path / "new", world=world)
    place(workspace, new, "toy", IngestConfig(), replace=True)
    shutil.rmtree(workspace.data / "toy" / {"acceptance": "changes", "changes": "acceptance"}[where])
    assert holding(workspace.root, "leaving")
    assert forget(workspace, "toy", ["leaving"], []).documents == ["leaving"]
    assert not holding(workspace.root, "leaving")


def test_a_dataset_whose_layout_was_named_can_be_forgotten_from(tmp_path: Path) -> None:
    workspace = empty_workspace(tmp_path / "project")
    place(workspace, write_world(tmp_path / "begin", "csv"), "toy", IngestConfig(layout="tabular"), replace=False)
    uid = Tables.of(open_corpus(workspace)).documents["uid"][0]
    forget(workspace, "toy", [uid], [], with_documents=True)
    assert uid not in Tables.of(open_corpus(workspace)).documents["uid"]


def test_the_last_document_with_a_group_can_be_forgotten(tmp_path: Path) -> None:
    workspace, world = empty_workspace(tmp_path / "project"), small_world()
    world.train[3]["group"] = "series"
    place(workspace, world.write(tmp_path / "begin"), "toy", IngestConfig(split="group"), replace=False)
    before = Tables.of(open_corpus(workspace)).documents.select("uid", "split").rows()
    uid = world.train[3]["uid"]
    forget(workspace, "toy", [uid], [])
    after = Tables.of(open_corpus(workspace)).documents.select("uid", "split").rows()
    assert sorted(after) == sorted(pair for pair in before if pair[0] != uid)
    assert workspace.params.dataset("toy").corpus.split == "uid"


def test_what_was_deleted_is_printed_though_another_package_fails(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(workspace: Workspace, dataset: str) -> list[Place]:
        raise RuntimeError("no server")

    offered(monkeypatch, GROUP, entry("theirs", fails))
    ended = xc("forget", *TOY, "--document", "D0003")
    assert ended.code == 0, ended.err
    assert "forgot 1 document and 0 labels\n" in ended.out
    assert "the places that the package theirs knows: they could not be listed (RuntimeError: no server)" in ended.out


@pytest.mark.parametrize("step", [(incoming.Incoming, "finish"), (forget_module, "places")])
def test_a_command_that_is_given_again_after_a_stop_names_the_places_too(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    """It said that the document is unknown and that there is nothing to do."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    offered(monkeypatch, GROUP, entry("theirs", lambda *_: [Place("a place of theirs", "look there")]))
    with monkeypatch.context() as patch:
        patch.setattr(*step, stopped)
        assert xc("forget", *TOY, "--document", "D0003").code == 130
    ended = xc("forget", *TOY, "--document", "D0003")
    assert ended.code == 0, ended.err
    assert "forgot 1 document and 0 labels\n" in ended.out
    assert "a place of theirs: look there" in ended.out
    assert holding(fresh.state / "ingest", "D0003") == []
    xc("forget", *TOY, "--document", "D0003").refused(66, "no document 'D0003'")
    assert not list(fresh.state.glob("ingest-*"))


def test_what_dvc_keeps_beside_the_raw_files_stays(tmp_path: Path) -> None:
    workspace = empty_workspace(tmp_path / "project")
    place(workspace, write_world(tmp_path / "begin", "csv"), "toy", IngestConfig(), replace=False)
    beside = [workspace.data / "toy" / name for name in (".gitignore", "raw.dvc", "acceptance.dvc")]
    for path in beside:
        path.write_text("of dvc")
    forget(workspace, "toy", [Tables.of(open_corpus(workspace)).documents["uid"][0]], [], with_documents=True)
    assert [path.read_text() for path in beside] == ["of dvc"] * 3


def test_folders_that_the_deleted_ones_were_links_to_are_named(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    """They are on another disk, for want of space, and keep the rows."""
    run_stage(fresh, "corpus", "toy")
    (fresh.data / "toy" / "ngame").mkdir()
    names = ("raw", "corpus", "tokens", "ngame/model")
    for name in names:
        target = tmp_path / "disk" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path = fresh.data / "toy" / name
        path.rename(target) if path.exists() else target.mkdir()
        path.symlink_to(target)
    (fresh.data / "toy" / "tokens").unlink()
    (fresh.data / "toy" / "tokens").symlink_to(tmp_path / "gone")
    ended = xc("forget", *TOY, "--document", "D0003")
    assert ended.code == 0, ended.err
    assert holding(fresh.data, "D0003") == []
    assert [line.strip() for line in ended.out.splitlines() if "was a link" in line] == [
        f"{tmp_path / 'disk' / name}, to which data/toy/{name} was a link: delete it, if nothing else needs it"
        for name in ("raw", "corpus", "ngame/model")
    ]


def test_folders_that_the_deleted_ones_were_links_to_are_named_before_a_kill(
    xc: Xc, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that does the rest finds no link."""
    (tmp_path / "disk").mkdir()
    (fresh.data / "toy" / "tokens").symlink_to(tmp_path / "disk")

    def stopped(*_: object) -> None:
        raise BusyError("stopped", expected="-", do="-")

    monkeypatch.setattr(incoming, "forget", stopped)
    ended = xc("forget", *TOY, "--document", "D0003")
    assert f"forget: {tmp_path / 'disk'}, to which data/toy/tokens was a link: delete it" in ended.err
    assert not (fresh.data / "toy" / "tokens").is_symlink()


@pytest.mark.parametrize("kept", ["ngame", ".raw.old", "ingest-"])
def test_files_that_cannot_be_deleted_are_named_until_they_can_be(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Folders of another user without write permission for the group stayed, with the rows, and nothing was said."""

    def as_permitted(path: Path) -> None:
        if kept not in str(path.relative_to(fresh.root)):
            DROP(path)

    (fresh.data / "toy" / "ngame" / "encoder").mkdir(parents=True)
    with monkeypatch.context() as patch:
        if kept == ".raw.old":  # a folder of another user cannot be exchanged with one in another folder
            patch.setattr(artifacts, "_renameat2_exchange", lambda *_: False)
        for module in (artifacts, forget_module, incoming, leftovers):
            patch.setattr(module, "drop", as_permitted)
        for _ in range(2):
            ended = xc("forget", *TOY, "--document", "D0003")
            assert ended.code == 73
            assert kept in ended.err and "which cannot be deleted\n" in ended.err
    done = xc("forget", *TOY, "--document", "D0003")
    assert done.code == 0, done.err
    assert holding(fresh.root, "D0003") == []
