"""``xc ingest``: what it makes, says and refuses."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.cli.conftest import TOY, Ended, Xc
from tests.conftest import ToyWorld
from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.cli.ingest import ingest as ingest_command
from xc_core.data.ingest import IngestConfig


def ingest(xc: Xc, folder: Path, name: str = "new", *more: str) -> Ended:
    return xc("ingest", folder, "--dataset", name, *more)


def test_ingest_makes_a_dataset_and_says_what_is_next(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    source = ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")
    ended = ingest(xc, source)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "new: 54 train, 6 validation, 10 test documents, 10 labels",
        "next: xc train --dataset new --recipe words",
        "      then, with an encoder: --recipe ngame",
    ]
    assert fresh.params.datasets() == ["new", "toy"]
    assert "Reload definitions" not in ended.err, "nobody uses Dagster here"
    assert artifacts.read_made(fresh.folder("corpus", "new")).facts["rows"]["train"] == 54
    again = xc("run", "corpus", "--dataset", "new")
    assert again.out == f"corpus: up to date, {fresh.folder('corpus', 'new')}\n"


def test_ingest_counts_every_document_that_it_read(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    ended = ingest(xc, ToyWorld.make(60, 10).write(tmp_path / "drop"), "new", "--acceptance-fraction", "0.2")
    rows = artifacts.read_made(fresh.folder("corpus", "new")).facts["rows"]
    assert rows["acceptance"] and sum(rows.values()) == 70
    train, validation, accepted = (rows[split] for split in ("train", "validation", "acceptance"))
    line = f"new: {train} train, {validation} validation, 10 test, {accepted} acceptance documents, 10 labels"
    assert ended.out.splitlines()[0] == line


def test_ingest_says_that_test_texts_stand_in_train(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=10)
    for known, test in zip(world.train[:3], world.test[:3], strict=True):
        test["title"], test["content"] = known["title"], known["content"]
    source = world.write(tmp_path / "drop")
    assert "3 of 10 test texts (30%) also appear in train or validation, word for word" in ingest(xc, source).err
    assert "also appear in train" not in ingest(xc, source, "allowed", "--allow", "shared-texts").err
    clean = ToyWorld.make(60, 100)
    clean.test[0] |= {name: clean.train[0][name] for name in ("title", "content")}
    ended = ingest(xc, clean.write(tmp_path / "clean"), "clean")
    assert (ended.code, "also appear in train" in ended.err) == (0, False), "1 % is not many"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_ingest_says_when_dagster_shows_the_schedules_of_a_new_dataset(
    xc: Xc, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    source = ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")
    if elsewhere:
        monkeypatch.setenv("XC_STATE_DIR", str(tmp_path / "dagster"))
    (tmp_path / "dagster" if elsewhere else fresh.state / "dagster").mkdir(parents=True)
    message = "Dagster shows new by itself, and its schedules after Deployment > Reload definitions"
    assert message in ingest(xc, source).err
    assert "Reload definitions" not in ingest(xc, source, "new", "--replace").err


def test_ingest_says_that_labels_look_like_lists(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    rows = [f"text {i},a{i % 3}|b{i % 2}" for i in range(60)]
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "train.csv").write_text("\n".join(["text,labels", *rows]) + "\n", "utf-8")
    message = ingest(xc, tmp_path / "drop").err
    assert "most labels contain '|', for instance 'a0|b0'" in message
    assert "--label-separator '|'" in message
    right = ingest(xc, tmp_path / "drop", "right", "--label-separator", "|")
    assert "most labels contain" not in right.err
    assert "5 labels" in right.out


def test_ingest_proposes_no_separator_for_lists(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    """Names with commas are common, and a separator does not divide the names of a list."""
    labels = [[f"dog, type {i % 3}", f"cat, type {i % 2}"] for i in range(60)]
    table = pl.DataFrame({"text": [f"text {i}" for i in range(60)], "labels": labels})
    (tmp_path / "drop").mkdir()
    table.write_parquet(tmp_path / "drop" / "train.parquet")
    assert "--label-separator" not in ingest(xc, tmp_path / "drop").err
    table.with_columns(pl.col("labels").list.join(";")).write_parquet(tmp_path / "drop" / "train.parquet")
    assert "--label-separator ','" in ingest(xc, tmp_path / "drop", "text").err


@pytest.mark.parametrize("options", [(), ("--label-separator", ",")])
def test_ingest_names_lists_that_were_written_as_text(
    xc: Xc, fresh: Workspace, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """As pandas writes a column of lists. A separator would leave brackets and quotes in the labels."""
    rows = [f"text {i},\"['a{i % 3}', 'b{i % 2}', 'c']\"" for i in range(60)]
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "train.csv").write_text("\n".join(["text,labels", *rows]) + "\n", "utf-8")
    message = ingest(xc, tmp_path / "drop", "mine", *options).err
    assert "most labels look like lists that were written as text, for instance" in message
    assert "the table as Parquet with lists" in message
    assert "if it separates labels" not in message


@pytest.mark.parametrize("name", ["../x", "a/b", "UPPER", "", ".", "raw", "corpus", "a..b", "-x", "x" * 65, "ü"])
def test_ingest_refuses_a_name_that_is_no_name(xc: Xc, fresh: Workspace, name: str) -> None:
    before = sorted(fresh.root.rglob("*"))
    ingest(xc, fresh.raw("toy"), name).refused(64, f"the dataset name {name!r}", "choose another name")
    assert sorted(fresh.root.rglob("*")) == before


def test_ingest_leaves_a_dataset_of_that_name_alone_unless_told(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    source = ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")
    ingest(xc, source, "toy").refused(64, "a dataset 'toy' at", "--replace")
    assert ingest(xc, source, "toy", "--replace", "--allow-loss", "1").code == 0
    assert artifacts.read_made(fresh.folder("corpus", "toy")).facts["rows"]["test"] == 10


def test_ingest_names_file_and_line_and_writes_nothing(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=10)
    world.train[6] |= {"target_ind": [99], "target_rel": [1.0]}
    source = world.write(tmp_path / "drop")
    before = {p: p.read_bytes() for p in fresh.data.rglob("*") if p.is_file()}
    ended = ingest(xc, source)
    ended.refused(65, "99")
    assert ended.err.startswith("xc: trn.json.gz, line 7: found ")
    assert {p: p.read_bytes() for p in fresh.data.rglob("*") if p.is_file()} == before
    assert fresh.params.datasets() == ["toy"]


@pytest.mark.parametrize(
    ("make", "code", "found"),
    [
        (lambda path: None, 66, "no folder"),
        (lambda path: path.mkdir(), 66, "no known layout"),
        (lambda path: path.write_text("a"), 66, "a file"),
    ],
)
def test_ingest_refuses_what_is_no_dataset(
    xc: Xc, fresh: Workspace, tmp_path: Path, make: Any, code: int, found: str
) -> None:
    make(tmp_path / "drop")
    ingest(xc, tmp_path / "drop").refused(code, found)


def test_every_setting_of_an_ingest_has_an_option_with_its_default(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    """Else a dataset with that setting could not be taken in again from its inbox."""
    options = {option.name: option for option in ingest_command.params}
    default = IngestConfig()
    shown = {name: "auto" if name == "split" else value for name, value in vars(default).items() if value != ()}
    assert {name: options[name].default for name in shown} == shown, "the help shows it"
    assert ingest(xc, ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")).code == 0
    assert fresh.params.dataset("new").corpus == default
    assert fresh.params.read()["datasets"]["new"]["corpus"] == {}
    changes = {
        "validation_fraction": 0.3, "filters": "none", "propensity": "amazon", "allow": ("clean-text",),
        "max_line_bytes": 9999, "fields": ("content",), "label_separator": "#", "test_fraction": 0.4,
        "layout": "xc-json", "split": "family", "acceptance_fraction": 0.1,
    }  # fmt: skip
    assert set(changes) == {f.name for f in fields(IngestConfig)}
    plain = {name: value[0] if isinstance(value, tuple) else value for name, value in changes.items()}
    settings = [part for name, value in plain.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    ended = ingest(xc, tmp_path / "drop", "new", "--replace", *settings)
    assert ended.code == 0
    assert fresh.params.dataset("new").corpus == IngestConfig(**changes)
    assert "corpus: accepted by the setting allow: no row (clean-text)\n" in ended.err


@pytest.mark.parametrize("path", ["/", "..", "."])
def test_a_folder_that_holds_the_project_is_refused_at_once(xc: Xc, fresh: Workspace, path: str) -> None:
    folder = path if path == "/" else fresh.root / path
    xc("ingest", folder, "--dataset", "new").refused(64, "which holds the project itself", "pass that folder")


def test_the_files_of_two_layouts_in_a_dataset_are_to_be_taken_away(xc: Xc, fresh: Workspace) -> None:
    """The advice was an option, which xc run and xc train do not have."""
    (fresh.raw("toy") / "train.csv").write_text("text,labels\na,river\n")
    xc("run", "corpus", *TOY).refused(65, "files of 2 layouts", "take the files of the others away")
