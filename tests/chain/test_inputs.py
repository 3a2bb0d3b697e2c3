"""Inputs in a fingerprint: by their content, whatever is recorded beside it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.chain.toy import (
    NAMES,
    STAGES_OF,
    Edit,
    changed,
    folder_of,
    partition_of,
    print_of,
    prints,
    readers,
    set_content,
    set_fact,
    set_made,
    statuses,
)
from tests.encoders.conftest import save_tokenizer
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace, fingerprints, run_stage
from xc_core.errors import ConfigError, MissingError


def read_place(workspace: Workspace, name: str) -> Path:
    """Return the folder that the readers of a stage read; of the tokens, those of the recipe's tokenizer."""
    folder = folder_of(workspace, name)
    return folder / "wordpiece" if name == "tokens" else folder


@pytest.mark.parametrize("name", NAMES)
def test_the_content_of_an_artefact_changes_the_stages_that_read_it_and_no_other(name: str, copied: Workspace) -> None:
    before = prints(copied)
    set_content(read_place(copied, name))
    assert changed(before, prints(copied)) == readers(name)


@pytest.mark.parametrize("name", NAMES)
def test_how_an_artefact_was_made_changes_nothing(name: str, copied: Workspace) -> None:
    """A new default in the settings of one stage must not retrain the next, if the files are the same."""
    before, seen = prints(copied), statuses(copied)
    place = read_place(copied, name)
    set_fact(place, "another", "figure")
    made = artifacts.read_made(place)
    settings = {**made.settings, "new": 7} if isinstance(made.settings, dict) else {"new": 7}
    set_made(place, settings=settings)
    assert prints(copied) == before
    assert statuses(copied) == seen
    (place / artifacts.MADE).unlink()
    assert prints(copied) == before


def test_an_input_counts_by_the_hashes_of_its_files_and_not_by_the_look_of_its_manifest(copied: Workspace) -> None:
    manifest = folder_of(copied, "clusters") / manifests.MANIFEST
    text = manifest.read_text()
    content = json.loads(text)
    content["files"]["order.npy"]["sha256"] = "0" * 64
    content["digest"] = manifests.Manifest(content["kind"], content["files"]).digest()
    before = print_of(copied, "classifier")
    manifest.write_text(json.dumps(content))
    assert print_of(copied, "classifier") != before
    manifest.write_text(json.dumps(json.loads(text), indent=7))
    assert print_of(copied, "classifier") == before, "spaces are no content"


def test_only_the_tokens_of_the_recipes_tokenizer_count(copied: Workspace) -> None:
    """Tokens of another tokenizer, which another recipe asked for, make nothing stale."""
    before = prints(copied)
    set_content(folder_of(copied, "tokens"))
    assert changed(before, prints(copied)) == set()
    set_content(folder_of(copied, "tokens") / "wordpiece")
    assert changed(before, prints(copied)) == readers("tokens")


def test_an_encoder_whose_tokenizer_the_dataset_does_not_list_says_where_to_add_it(
    copied: Workspace, edit: Edit
) -> None:
    """Making tokens again would not help: params.yaml does not ask for these."""
    edit(copied, {"datasets/toy/tokens": {}})
    with pytest.raises(ConfigError, match="an encoder whose tokenizer is 'wordpiece'") as caught:
        print_of(copied, "encoder")
    assert "datasets.toy.tokens.tokenizers: minilm" in caught.value.expected
    assert caught.value.do == "add 'wordpiece' there in params.yaml, then: xc run tokens --dataset toy"


def test_an_encoder_that_the_stage_tokens_left_out_is_not_sent_back_to_it(
    copied: Workspace, edit: Edit, tmp_path: Path
) -> None:
    """``xc run tokens`` would say "up to date"."""
    save_tokenizer(tmp_path)  # which knows no word of the toy world
    edit(copied, {
        "datasets/toy/tokens": {"tokenizers": ["wordpiece", str(tmp_path)]},
        "experiments/toy_ngame/stages/encoder/encoder": {"name": str(tmp_path)},
    })  # fmt: skip
    with pytest.raises(MissingError, match="no artefact at") as caught:
        print_of(copied, "encoder")
    assert caught.value.do == "make it first: xc run tokens --dataset toy"
    run_stage(copied, "tokens", "toy")
    with pytest.raises(MissingError, match="which the stage tokens left out") as caught:
        print_of(copied, "encoder")
    assert "see why: xc run tokens --dataset toy --force" in caught.value.do


def test_a_missing_input_has_no_fingerprint(copied: Workspace) -> None:
    shutil.rmtree(folder_of(copied, "fusion"))
    with pytest.raises(MissingError, match="no artefact at"):
        print_of(copied, "model")


# source files


def test_a_source_file_counts_by_its_content_and_its_name(copied: Workspace) -> None:
    seen = {print_of(copied, "corpus")}
    raw = copied.raw("toy")
    os.utime(raw / "trn.json.gz", (1, 1))
    assert print_of(copied, "corpus") in seen, "a date is no content"
    (raw / "filter_labels_test.txt").write_text("0 0\n")
    seen.add(print_of(copied, "corpus"))
    (raw / "filter_labels_test.txt").rename(raw / "other.txt")
    seen.add(print_of(copied, "corpus"))
    assert len(seen) == 3


def test_the_source_is_of_the_corpus_alone_and_counts_files_in_folders(copied: Workspace) -> None:
    before, raw = prints(copied), copied.raw("toy")
    (raw / "inner").mkdir()
    assert changed(before, prints(copied)) == set(), "an empty folder is no file"
    (raw / "inner" / "notes.txt").write_text("a")
    first = print_of(copied, "corpus")
    assert changed(before, prints(copied)) == {"corpus"}
    (raw / "inner").rename(raw / "innes")
    assert print_of(copied, "corpus") not in (first, before["corpus"]), "the folder's name counts too"
    (raw / "innes" / "notes.txt").unlink()
    assert prints(copied) == before


def test_source_files_are_hashed_once_until_one_of_them_changes(
    copied: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, plain, hashed = print_of(copied, "corpus"), artifacts.sha256_file, []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return plain(path)

    monkeypatch.setattr(artifacts, "sha256_file", counted)
    assert print_of(copied, "corpus") == before
    hashed.clear()
    assert print_of(copied, "corpus") == before
    assert hashed == []
    test = copied.raw("toy") / "tst.json.gz"
    facts = test.stat()
    test.write_bytes(test.read_bytes()[::-1])  # the same size
    os.utime(test, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    changed = print_of(copied, "corpus")
    assert changed != before
    assert "tst.json.gz" in hashed
    other = tmp_path / "other"
    other.write_bytes(test.read_bytes()[::-1])
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    other.replace(test)
    assert print_of(copied, "corpus") == before != changed, "size and date are those of the file that it replaces"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"facts": {}}'])
def test_a_cache_of_hashes_that_cannot_be_used_is_made_again(content: str, copied: Workspace) -> None:
    before = print_of(copied, "corpus")
    cache = copied.state / "source" / "toy.json"
    cache.write_text(content)
    assert print_of(copied, "corpus") == before
    assert json.loads(cache.read_text())["facts"].keys() >= {"trn.json.gz"}


def test_a_cache_of_hashes_that_cannot_be_written_is_done_without(copied: Workspace) -> None:
    """`xc status` and `xc predict --recipe` of a project that was copied to a read-only disk."""
    before = print_of(copied, "corpus")
    folder = copied.state / "source"
    shutil.rmtree(folder)
    folder.write_text("a file where the folder should be")
    assert print_of(copied, "corpus") == before


# everything else


def test_nothing_else_changes_any_fingerprint(copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prints(copied)
    text = (copied.root / "params.yaml").read_text()
    (copied.root / "params.yaml").write_text("# a comment\n" + text)
    entry = STAGES_OF.removesuffix("/stages")
    edit(copied, {"datasets/second": {"corpus": {}, "tokens": {}}, f"{entry}/source": "elsewhere.yaml"})
    copied.params.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}})
    shutil.rmtree(copied.state)
    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "1")
    moved = copied.root.with_name("moved")
    copied.root.rename(moved)
    assert prints(Workspace(moved)) == before


def test_the_leaderboard_depends_on_the_evaluation_of_every_recipe(copied: Workspace) -> None:
    seen = [print_of(copied, "leaderboard")]
    copied.params.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"encoder": {"name": "bag"}}})
    seen.append(print_of(copied, "leaderboard"))
    second = copied.folder("evaluation", "toy", "ngame-short")
    shutil.copytree(folder_of(copied, "evaluation"), second)
    seen.append(print_of(copied, "leaderboard"))
    set_content(second)
    seen.append(print_of(copied, "leaderboard"))
    assert len(set(seen)) == 4
    set_fact(second, "another", "figure")
    assert print_of(copied, "leaderboard") == seen[-1]


def test_a_stage_without_readers_is_in_no_fingerprint(copied: Workspace) -> None:
    leaves = [name for name in NAMES if not readers(name) and name not in STAGES["leaderboard"].deps]
    assert leaves == ["negatives", "audit", "model"], "the recipe's M4 trains on no stored hard negatives"
    before = prints(copied), print_of(copied, "leaderboard")
    for name in leaves:
        shutil.rmtree(folder_of(copied, name))
    assert (prints(copied), print_of(copied, "leaderboard")) == before


@pytest.mark.parametrize("order", ["random", "clustered"])
def test_a_classifier_without_stored_parts_depends_neither_on_clusters_nor_on_negatives(
    order: str, copied: Workspace, edit: Edit
) -> None:
    size = {"size": 4} if order == "clustered" else {}
    edit(copied, {f"{STAGES_OF}/classifier/order": {"kind": order, "batch_size": 32, **size}})
    run_stage(copied, "classifier", "toy", "ngame")
    edit(copied, {f"{STAGES_OF}/clusters/size": 5, f"{STAGES_OF}/negatives/k": 3})
    assert statuses(copied)["classifier"] == "FRESH"
    shutil.rmtree(folder_of(copied, "negatives"))
    assert run_stage(copied, "classifier", "toy", "ngame").skipped


def test_a_classifier_of_stored_negatives_depends_on_them(copied: Workspace, edit: Edit) -> None:
    stored = {"kind": "stored", "positives": 1}
    edit(copied, {f"{STAGES_OF}/classifier/negatives": stored, f"{STAGES_OF}/negatives/k": 3})
    for name in ("negatives", "classifier"):
        run_stage(copied, name, "toy", "ngame")
    edit(copied, {f"{STAGES_OF}/negatives/k": 4})
    assert statuses(copied)["classifier"] == "STALE"


def test_without_epochs_no_setting_of_the_training_enters_a_fingerprint(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/classifier/epochs": 0.0, f"{STAGES_OF}/encoder/epochs": 0.0})
    before = resolved(copied, "classifier"), resolved(copied, "encoder")
    changes = {"classifier/table/lr": 0.7, "classifier/table/decay": 0.5, "classifier/seed": 4, "clusters/size": 5}
    edit(copied, {f"{STAGES_OF}/{name}": value for name, value in changes.items()})
    edit(copied, {f"{STAGES_OF}/encoder/encoder/frozen_layers": 1})
    assert (resolved(copied, "classifier"), resolved(copied, "encoder")) == before
    edit(copied, {f"{STAGES_OF}/classifier/table/unit": False})
    assert resolved(copied, "classifier") != before[0], "it decides how the rows are served"


def resolved(workspace: Workspace, name: str) -> str:
    return fingerprints.resolved(workspace, STAGES[name], partition_of(workspace, name))
