"""The state of every artefact and why: up to date, kept, out of date, missing, damaged, or unknown."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chain.toy import (
    NAMES,
    STAGES_OF,
    Edit,
    downstream,
    folder_of,
    reads,
    set_content,
    set_made,
    states_of,
    statuses,
)
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace, fingerprints
from xc_core.chain.status import State, Status, states
from xc_core.errors import MissingError

AFTER = {name: [stage for stage in downstream(name) if stage != "leaderboard"] for name in NAMES}


def with_status(workspace: Workspace, status: Status) -> list[str]:
    return [name for name, state in states_of(workspace).items() if state.status is status]


# up to date


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_of_a_trained_chain_is_up_to_date(name: str, trained: Workspace) -> None:
    assert states_of(trained)[name] == State(name, Status.FRESH)
    assert artifacts.verify(folder_of(trained, name), kind=name)


def test_states_are_in_the_order_of_the_pipeline_and_a_dataset_has_those_of_its_own_stages(trained: Workspace) -> None:
    whole, dataset = states_of(trained), states(trained, trained.params.dataset("toy"))
    assert list(whole) == NAMES
    assert list(dataset) == ["corpus", "tokens"]


# out of date


@pytest.mark.parametrize(
    ("stage", "setting", "value"),
    [
        ("corpus", "datasets/toy/corpus/validation_fraction", 0.2),
        ("tokens", "datasets/toy/tokens/vocabulary", 500),
        ("encoder", f"{STAGES_OF}/encoder/epochs", 3.0),
        ("clusters", f"{STAGES_OF}/clusters/size", 5),
        ("negatives", f"{STAGES_OF}/negatives/k", 3),
        ("classifier", f"{STAGES_OF}/classifier/dropout", 0.1),
        ("scores", f"{STAGES_OF}/scores", {"classifier": {"joined": True}}),
        ("fusion", f"{STAGES_OF}/fusion/rows", 3),
        ("evaluation", f"{STAGES_OF}/evaluation/examples", 2),
        ("audit", f"{STAGES_OF}/audit/k", 5),
        ("model", f"{STAGES_OF}/model/min_P_at_1", 1.0),
    ],
)
def test_a_changed_setting_makes_its_stage_stale_and_all_that_read_it(
    stage: str, setting: str, value: object, copied: Workspace, edit: Edit
) -> None:
    edit(copied, {setting: value})
    found = states_of(copied)
    name = "classifier.joined" if stage == "scores" else setting.rpartition("/")[2]
    assert found[stage] == State(stage, Status.STALE, f"settings ({name}) changed", stage)
    assert with_status(copied, Status.STALE) == [stage, *AFTER[stage]]
    for name in AFTER[stage]:
        first = next(dep for dep in STAGES[name].deps if found[dep].status is Status.STALE)
        assert found[name] == State(name, Status.STALE, f"{first} is out of date", stage)


def test_two_changed_settings_name_the_first_stage_as_the_root(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/clusters/size": 5, f"{STAGES_OF}/fusion/rows": 3})
    found = states_of(copied)
    assert (found["fusion"].why, found["fusion"].root) == ("scores is out of date", "clusters")
    assert (found["model"].why, found["model"].root) == ("scores is out of date", "clusters")
    edit(copied, {f"{STAGES_OF}/clusters/size": 4})
    found = states_of(copied)
    assert found["scores"].status is Status.FRESH
    assert found["fusion"] == State("fusion", Status.STALE, "settings (rows) changed", "fusion")


def test_a_changed_code_version_of_a_part_is_not_called_a_changed_setting(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(copied.params.experiment("toy", "ngame").settings("fusion").rule), "code_version", "99")
    assert states_of(copied)["fusion"].why == "code or order of parts changed"


def test_at_most_three_changed_settings_are_named(copied: Workspace, edit: Edit) -> None:
    changes = {"epochs": 9, "seed": 9, "optim/lr": 0.1, "optim/clip": 9}
    edit(copied, {f"{STAGES_OF}/encoder/{name}": value for name, value in changes.items()})
    found = states_of(copied)["encoder"].why
    assert found.endswith(", 1 more) changed")
    assert sum(name.replace("/", ".") in found for name in changes) == 3


def test_a_setting_that_the_record_lacks_is_not_called_a_changed_one(copied: Workspace) -> None:
    """It is new, and may have its default."""
    folder = folder_of(copied, "fusion")
    settings = {name: value for name, value in artifacts.read_made(folder).settings.items() if name != "rows"}
    set_made(folder, fingerprint="x", settings=settings, depends={"settings": "another"})
    assert states_of(copied)["fusion"].why.startswith("settings and ")


def test_a_changed_code_version_makes_a_stage_stale(trained: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "scores", dataclasses.replace(STAGES["scores"], code_version="99"))
    now = [stage for stage in STAGES.values() if stage.versioned]
    monkeypatch.setattr("xc_core.chain.status.versioned_stages", lambda scope: [s for s in now if s.scope == scope])
    found = states_of(trained)
    assert found["scores"] == State("scores", Status.STALE, "code changed", "scores")
    assert [name for name in NAMES if found[name].status is Status.STALE] == ["scores", *AFTER["scores"]]


def test_changed_source_files_make_the_corpus_stale_and_everything_after_it(copied: Workspace) -> None:
    (copied.raw("toy") / "another.txt").write_text("1")
    found = states_of(copied)
    assert found["corpus"] == State("corpus", Status.STALE, "source files changed", "corpus")
    assert with_status(copied, Status.STALE) == NAMES
    assert {state.root for state in found.values()} == {"corpus"}


def test_another_content_of_an_input_makes_its_readers_stale_by_name(copied: Workspace) -> None:
    set_content(folder_of(copied, "embeddings"))
    found = states_of(copied)
    assert found["embeddings"].status is Status.FRESH
    assert found["clusters"] == State("clusters", Status.STALE, "embeddings changed", "clusters")
    assert found["classifier"] == State("classifier", Status.STALE, "clusters is out of date", "clusters")
    set_content(folder_of(copied, "corpus"))
    assert states_of(copied)["audit"].root == "tokens"


def test_several_changes_are_all_named(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/fusion/rows": 3})
    set_content(folder_of(copied, "scores"))
    assert states_of(copied)["fusion"].why == "settings (rows) and scores changed"


def test_a_lost_record_of_how_it_was_made_makes_an_artefact_stale(copied: Workspace) -> None:
    set_made(folder_of(copied, "model"), fingerprint="another")
    assert states_of(copied)["model"] == State("model", Status.STALE, "its record changed", "model")
    (folder_of(copied, "model") / artifacts.MADE).unlink()
    assert states_of(copied)["model"].status is Status.STALE


# kept


def test_a_refresh_keeps_an_encoder_whose_inputs_changed(copied: Workspace) -> None:
    set_content(folder_of(copied, "corpus"))
    set_content(folder_of(copied, "tokens") / "wordpiece")
    found = states_of(copied, refresh=True)
    assert found["encoder"] == State("encoder", Status.KEPT, "trained on older data: corpus and tokens changed")
    assert states_of(copied)["encoder"].status is Status.STALE
    assert found["embeddings"].status is Status.STALE


@pytest.mark.parametrize("refreshed", [False, True])
def test_after_a_refresh_an_older_encoder_is_kept_and_a_trained_one_is_stale(
    refreshed: bool, copied: Workspace
) -> None:
    set_made(folder_of(copied, "classifier"), refreshed=refreshed)
    made = artifacts.read_made(folder_of(copied, "encoder"))
    set_made(folder_of(copied, "encoder"), fingerprint="x", depends={**made.depends, "corpus": "older"})
    expected = Status.KEPT if refreshed else Status.STALE
    assert states_of(copied)["encoder"].status is expected


@pytest.mark.parametrize(("part", "name"), [("settings", "code or order of parts"), ("code", "code")])
def test_a_refresh_does_not_keep_an_encoder_of_other_settings_or_code(part: str, name: str, copied: Workspace) -> None:
    made = artifacts.read_made(folder_of(copied, "encoder"))
    older = {**made.depends, "corpus": "older", part: "another"}
    set_made(folder_of(copied, "encoder"), fingerprint="x", depends=older)
    found = states_of(copied, refresh=True)["encoder"]
    assert (found.status, found.why) == (Status.STALE, f"{name} and corpus changed")


def test_a_refresh_keeps_no_other_stage(copied: Workspace) -> None:
    set_content(folder_of(copied, "embeddings"))
    assert statuses(copied, refresh=True)["clusters"] == "STALE"


# missing, damaged, unknown


@pytest.mark.parametrize("name", NAMES)
def test_an_artefact_that_is_not_there_is_missing_and_its_readers_are_unknown(name: str, copied: Workspace) -> None:
    shutil.rmtree(folder_of(copied, name))
    found = states_of(copied)
    assert found[name] == State(name, Status.MISSING)
    unknown = [stage.name for stage in STAGES.values() if name in reads(stage) and stage.name in NAMES]
    assert with_status(copied, Status.UNKNOWN) == unknown
    for reader in unknown:
        assert found[reader].why.startswith("no artefact at ")
        assert f"/{name}" in found[reader].why


def test_nothing_is_known_of_a_chain_that_never_ran(workspace: Workspace) -> None:
    assert set(statuses(workspace).values()) == {"MISSING"}


def test_a_machine_that_only_serves_has_a_model_that_is_not_called_stale(copied: Workspace) -> None:
    """It has the model, and nothing that the model was made of."""
    for name in NAMES:
        if name != "model":
            shutil.rmtree(folder_of(copied, name))
    found = states_of(copied)["model"]
    assert (found.status, found.root) == (Status.UNKNOWN, "")


def test_a_corpus_whose_source_files_are_gone_is_unknown_and_what_was_made_of_it_is_not(copied: Workspace) -> None:
    shutil.rmtree(copied.raw("toy"))
    found = states_of(copied)
    assert found["corpus"] == State("corpus", Status.UNKNOWN, f"no folder {copied.raw('toy')}")
    assert with_status(copied, Status.UNKNOWN) == ["corpus"]


DAMAGES = {
    "a file is gone": lambda folder: (folder / "order.npy").unlink(),
    "a file is cut": lambda folder: os.truncate(folder / "order.npy", 10),
    "the manifest is broken": lambda folder: (folder / "manifest.json").write_text("{"),
    "the manifest is of another format": lambda folder: (folder / "manifest.json").write_text(
        '{"kind": "clusters", "format": 1, "files": {}}'
    ),
}
FOUND = {
    "a file is gone": "no file {folder}/order.npy",
    "a file is cut": "{folder}/order.npy of 10 bytes",
    "the manifest is broken": "an unreadable {folder}/manifest.json",
    "the manifest is of another format": "format 1 in {folder}/manifest.json",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_artefact_whose_damage_shows_is_damaged(damage: str, copied: Workspace) -> None:
    folder: Path = folder_of(copied, "clusters")
    DAMAGES[damage](folder)
    found = states_of(copied)["clusters"]
    assert (found.status, found.root) == (Status.DAMAGED, "clusters")
    assert found.why.startswith(FOUND[damage].format(folder=folder))


@pytest.mark.parametrize("damage", ["none", "a file is gone", "the stage"])
def test_comparisons_read_what_is_neither_missing_nor_damaged(damage: str, copied: Workspace) -> None:
    """The leaderboard is made of evaluations; clusters stand for one here."""
    if damage == "the stage":
        shutil.rmtree(folder_of(copied, "clusters"))
    elif damage in DAMAGES:
        DAMAGES[damage](folder_of(copied, "clusters"))
    assert states(copied, copied.params.experiment("toy", "ngame"))["clusters"].status.usable is (damage == "none")


@pytest.mark.parametrize("damage", ["the manifest is broken", "the manifest is of another format"])
def test_the_readers_of_an_artefact_without_a_manifest_are_unknown(damage: str, copied: Workspace) -> None:
    DAMAGES[damage](folder_of(copied, "clusters"))
    found = states_of(copied)
    assert with_status(copied, Status.UNKNOWN) == ["classifier", "audit"]
    assert found["classifier"].why == found["clusters"].why
    assert found["scores"].status is Status.FRESH


def test_an_artefact_that_is_replaced_while_it_is_looked_at_is_not_damaged(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the one and the files of the other do not fit."""
    folder, read = folder_of(copied, "clusters"), manifests.read_manifest

    def replaced(place: Path, kind: str = "") -> manifests.Manifest:
        found = read(place, kind)
        if kind == "clusters" and place == folder:
            monkeypatch.setattr(manifests, "read_manifest", read)
            new, files = folder.with_name("new"), {**found.files}
            shutil.copytree(folder, new)
            (new / "order.npy").unlink()
            del files["order.npy"]
            (new / manifests.MANIFEST).write_text(manifests.Manifest("clusters", files).to_file())
            artifacts.install(new, folder)
        return found

    monkeypatch.setattr(manifests, "read_manifest", replaced)
    assert states_of(copied)["clusters"].status is Status.FRESH


def test_raw_files_that_are_replaced_while_they_are_read_are_read_again(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, digest = copied.raw("toy"), fingerprints._files_digest

    def replaced(*arguments: Any) -> str:
        monkeypatch.setattr(fingerprints, "_files_digest", digest)
        raw.rename(raw.with_name("aside"))
        raw.mkdir()
        (raw / "new.json").touch()
        return digest(*arguments)

    monkeypatch.setattr(fingerprints, "_files_digest", replaced)
    assert states_of(copied)["corpus"].why == "source files changed"


def test_a_source_file_that_is_deleted_while_it_is_read_is_named(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training whose dataset somebody deleted ended as a fault of this software (70)."""
    file = sorted(path for path in copied.raw("toy").iterdir())[-1]

    def gone(_: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))

    file.write_bytes(file.read_bytes())
    monkeypatch.setattr(artifacts, "sha256_file", gone)
    with pytest.raises(MissingError, match=f"no file {file} any more"):
        fingerprints.source_digest(copied, "toy")
