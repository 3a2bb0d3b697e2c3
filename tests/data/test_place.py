"""``xc ingest``: a dataset is installed completely or not at all; a failure keeps the old one; gaps are reported."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.spoil import put_json
from tests.data.worlds import contents, empty_workspace, facts_of, files_of, read_world, small_world, write_world
from xc_core import artifacts, progress
from xc_core.chain import Workspace, run_stage
from xc_core.cli import ingest as ingest_command
from xc_core.cli.ingest import place
from xc_core.data.corpus import Corpus
from xc_core.data.formats import ReadOptions, open_source
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TRAIN
from xc_core.errors import ConfigError, DataError, MissingError, StorageError, UsageError


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return empty_workspace(tmp_path / "project")


@pytest.fixture
def reported() -> Iterator[list[str]]:
    """Every line that is reported."""
    lines: list[str] = []
    progress.listen(lines.append)
    yield lines
    progress.silence()


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world")


def test_ingest_makes_the_raw_folder_the_corpus_and_the_entry(workspace: Workspace, world: Path) -> None:
    (world / "README.md").write_text("where it comes from")
    (world / "LICENSE-DATA.txt").write_text("who may use it")
    (world / "notes.txt").write_text("not a part of the dataset")
    before = files_of(world)
    ran = place(workspace, world, "toy", IngestConfig(validation_fraction=0.2), replace=False)
    assert files_of(workspace.raw("toy")) == {k: v for k, v in before.items() if k != "notes.txt"}
    assert contents(Corpus.open(ran.folder)) == contents(read_world(world, validation_fraction=0.2))
    assert workspace.params.dataset("toy").corpus == IngestConfig(validation_fraction=0.2)
    assert (workspace.root / "params.yaml").read_text().startswith("# kept\n")
    assert files_of(world) == before


@pytest.mark.parametrize("name", ["README.txt", "README \udcfcber.txt"])
def test_the_stage_corpus_has_nothing_to_do_after_an_ingest(workspace: Workspace, world: Path, name: str) -> None:
    """A name that is not UTF-8 is one of an older system."""
    (world / name).write_text("where it comes from")
    place(workspace, world, "toy", IngestConfig(), replace=False)
    assert run_stage(workspace, "corpus", "toy").skipped


def test_the_dataset_does_not_need_its_source_any_more(workspace: Workspace, world: Path) -> None:
    (world / "lbl2").mkdir()
    (world / "lbl.json").rename(world / "lbl2" / "labels")
    (world / "lbl.json").symlink_to(Path("lbl2") / "labels")  # a link inside the folder is as good as a file
    place(workspace, world, "toy", IngestConfig(), replace=False)
    shutil.rmtree(world)
    assert not (workspace.raw("toy") / "lbl.json").is_symlink()
    assert run_stage(workspace, "corpus", "toy", force=True).facts["labels"] == 10


def test_replace_puts_the_new_dataset_in_the_place_of_the_old(
    workspace: Workspace, world: Path, tmp_path: Path
) -> None:
    place(workspace, world, "toy", IngestConfig(), replace=False)
    other = write_world(tmp_path / "other", "xc-text", small_world(30, 5))
    place(workspace, other, "toy", IngestConfig(filters="none"), replace=True, allow_loss=1)
    assert Corpus.open(workspace.folder("corpus", "toy")).num_documents == 35
    assert sorted(path.name for path in workspace.raw("toy").iterdir()) == sorted(path.name for path in other.iterdir())
    assert workspace.params.dataset("toy").corpus == IngestConfig(filters="none")


def spoil(folder: Path) -> None:
    put_json(folder / "tst.json", 12, target_ind=[99], target_rel=[1.0])


def test_a_failing_replacement_leaves_the_dataset_untouched(workspace: Workspace, world: Path) -> None:
    place(workspace, world, "toy", IngestConfig(), replace=False)
    before = files_of(workspace.root)
    spoil(world)
    with pytest.raises(DataError):
        place(workspace, world, "toy", IngestConfig(filters="none"), replace=True)
    assert files_of(workspace.root) == before


def test_an_existing_dataset_is_replaced_only_on_request(workspace: Workspace, world: Path) -> None:
    place(workspace, world, "toy", IngestConfig(), replace=False)
    before = files_of(workspace.root)
    with pytest.raises(UsageError, match=r"(?s)a dataset 'toy'.*--replace"):
        place(workspace, world, "toy", IngestConfig(), replace=False)
    assert files_of(workspace.root) == before


def test_its_own_raw_folder_can_be_ingested_again_with_other_settings(workspace: Workspace, world: Path) -> None:
    place(workspace, world, "toy", IngestConfig(), replace=False)
    raw = files_of(workspace.raw("toy"))
    place(workspace, workspace.raw("toy"), "toy", IngestConfig(validation_fraction=0.5), replace=False)
    assert facts_of(Corpus.open(workspace.folder("corpus", "toy")))["validation_fraction"] == 0.5
    assert files_of(workspace.raw("toy")) == raw
    assert run_stage(workspace, "corpus", "toy").skipped


def test_a_failing_ingest_of_its_own_raw_folder_changes_nothing(workspace: Workspace, world: Path) -> None:
    place(workspace, world, "toy", IngestConfig(), replace=False)
    spoil(workspace.raw("toy"))
    before = files_of(workspace.root)
    with pytest.raises(DataError):
        place(workspace, workspace.raw("toy"), "toy", IngestConfig(validation_fraction=0.5), replace=False)
    assert files_of(workspace.root) == before


@pytest.mark.parametrize("text", ["datasets: [\n", "datasets: 3\n", "- a\n"])
def test_a_broken_params_file_is_reported_and_nothing_written(workspace: Workspace, world: Path, text: str) -> None:
    (workspace.root / "params.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        place(workspace, world, "toy", IngestConfig(), replace=False)
    assert files_of(workspace.root) == {"params.yaml": text.encode()}


def given(root: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the command in a project."""
    monkeypatch.setenv("XC_ROOT", str(root))
    ingest_command.ingest.main([str(world), "--dataset", "toy"], standalone_mode=False)


def test_a_workspace_without_params_file_is_left_empty(
    tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingError, match=r"params\.yaml"):
        given(tmp_path / "nowhere", world, monkeypatch)
    assert not (tmp_path / "nowhere").exists()


def test_leftovers_of_a_killed_ingest_are_deleted_and_a_running_one_is_kept(
    workspace: Workspace, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    killed, running = (workspace.state / f"ingest-{pid}-abc" for pid in (done.pid, 1))
    for folder in (killed, running):
        folder.mkdir(parents=True)
        (folder / "half").write_text("a half-copied file")
    given(workspace.root, world, monkeypatch)
    assert not killed.exists() and running.exists()


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    workspace: Workspace, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ingest_command, "_copy", full)
    with pytest.raises(StorageError, match="a full disk"):
        place(workspace, world, "toy", IngestConfig(), replace=False)
    assert list(files_of(workspace.root)) == ["params.yaml"]


def test_an_error_that_is_not_about_the_disk_keeps_its_type(
    workspace: Workspace, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise FileNotFoundError("a fault of the code")

    monkeypatch.setattr(ingest_command, "_copy", fault)
    with pytest.raises(FileNotFoundError):
        place(workspace, world, "toy", IngestConfig(), replace=False)


def test_missing_filter_files_are_reported(workspace: Workspace, world: Path, reported: list[str]) -> None:
    for path in world.glob("filter_labels_*"):
        path.unlink()
    place(workspace, world, "toy", IngestConfig(), replace=False)
    assert any("no filter files" in line and "nothing is filtered" in line for line in reported), reported


def test_unused_columns_are_reported_once(workspace: Workspace, tmp_path: Path, reported: list[str]) -> None:
    folder = write_world(tmp_path / "tables", "csv")
    lines = (folder / "train.csv").read_text().splitlines()
    (folder / "train.csv").write_text("\n".join(f"{line},{'2020' if i else 'year'}" for i, line in enumerate(lines)))
    place(workspace, folder, "toy", IngestConfig(), replace=False)
    assert [line for line in reported if "ignored" in line] == ["train.csv: ignored columns: 'year'"]


@pytest.mark.parametrize(
    ("header", "renamed"),
    [
        ("Text,Labels", "'Text' to 'text', 'Labels' to 'labels'"),
        ("text, LABELS ", "' LABELS ' to 'labels'"),
        ("Title,labels", "'Title' to 'title'"),
    ],
)
def test_columns_in_another_case_are_renamed_not_ignored(
    workspace: Workspace, tmp_path: Path, reported: list[str], header: str, renamed: str
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "train.csv").write_text(f"{header}\none two,a\n")
    with pytest.raises(DataError, match=re.escape(f"rename {renamed}; in CSV")) as caught:
        place(workspace, folder, "toy", IngestConfig(), replace=False)
    assert reported == [] and "nearest" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "found", "do"),
    [
        ("body,Labels,labels", "'labels'", "rename the columns; in CSV"),
        ("Uid,labels,txt", "'txt' (nearest: 'txt')", "rename the columns; in CSV"),
        ("title,content,text,labels,Time", "'Time'", "rename the columns; in CSV"),
        ("tekst,Labels", "'Labels' (nearest: 'tekst')", "rename 'Labels' to 'labels'; in CSV"),
    ],
)
def test_a_column_is_renamed_only_if_that_helps(
    workspace: Workspace, tmp_path: Path, header: str, found: str, do: str
) -> None:
    """The advice was to rename Labels beside labels, or Uid where a column text was missing."""
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "train.csv").write_text(f"{header}\n{','.join('a' * len(header.split(',')))}\n")
    with pytest.raises(DataError) as caught:
        place(workspace, folder, "toy", IngestConfig(), replace=False)
    assert caught.value.found.endswith(found) and caught.value.do.startswith(do)


def test_files_that_are_not_read_are_reported(workspace: Workspace, world: Path, reported: list[str]) -> None:
    """A validation file with another name would be missed, and validation documents held out of train instead."""
    for name in ("valid.json", "filter_labels_tst.txt", "README.md", "LICENSE.txt", ".hidden"):
        (world / name).write_text("a\n", "utf-8")
    (world / "more").mkdir()
    place(workspace, world, "toy", IngestConfig(), replace=False)
    unread = "files that are not read: 'filter_labels_tst.txt', 'valid.json'"
    assert [line for line in reported if "not read" in line] == [unread]
    reported.clear()
    place(workspace, workspace.raw("toy"), "toy", IngestConfig(split="family"), replace=False)
    assert not [line for line in reported if "not read" in line]


def test_unused_fields_are_reported_once(workspace: Workspace, world: Path, reported: list[str]) -> None:
    """A field with a misspelt name would be lost without a word, as texts under "contents" are."""
    rows = [json.loads(line) for line in (world / "trn.json").read_text("utf-8").splitlines()]
    (world / "trn.json").write_text("".join(json.dumps(row | {"contents": "a"}) + "\n" for row in rows), "utf-8")
    place(workspace, world, "toy", IngestConfig(), replace=False)
    assert [line for line in reported if "ignored" in line] == ["trn.json: ignored fields: 'contents'"]
    reported.clear()
    _, source = open_source(world, "auto", ReadOptions(block_bytes=500))
    assert len(list(source.documents(TRAIN))) > 1
    assert reported == ["trn.json: ignored fields: 'contents'"], "once for all blocks"


@pytest.mark.parametrize("value", ["[" * 5_000 + "]" * 5_000, "1" * 5_000], ids=["deep", "digits"])
def test_an_unused_field_that_python_cannot_read_is_no_error(workspace: Workspace, world: Path, value: str) -> None:
    first, rest = (world / "trn.json").read_text("utf-8").split("\n", 1)
    (world / "trn.json").write_text(f'{first[:-1]}, "more": {value}}}\n{rest}', "utf-8")
    assert place(workspace, world, "toy", IngestConfig(), replace=False).facts["labels"] == 10


def test_the_artefact_can_be_verified(workspace: Workspace, world: Path) -> None:
    ran = place(workspace, world, "toy", IngestConfig(), replace=False)
    manifest = artifacts.verify(ran.folder, kind="corpus")
    tables = [f"{name}.parquet" for name in ("documents", "filters", "labels", "pairs")]
    assert sorted(manifest.files) == ["corpus.json", *tables]
