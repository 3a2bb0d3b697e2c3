"""A refresh: the encoder and the trained rows are kept, everything else is made from the new data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chain.toy import (
    NAMES,
    STAGES_OF,
    Edit,
    folder_of,
    print_of,
    set_older,
    states_of,
    statuses,
)
from tests.conftest import ToyWorld, open_corpus
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.kept import untrained
from xc_core.chain.status import Status
from xc_core.classifiers import LabelTables
from xc_core.cli.ingest import place
from xc_core.data.ingest import IngestConfig
from xc_core.errors import MissingError, MovedError

pytestmark = pytest.mark.chain

TRAIN = "train: xc run classifier --dataset toy --recipe ngame, without --refresh"
NEW = {"uid": "L10", "title": "meadow", "content": "river0 river1 castle0"}


def add_label(workspace: Workspace) -> None:
    """Let the source files have a label and a document more."""
    world = ToyWorld.make()
    world.labels.append(NEW)
    world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [10], "target_rel": [1.0]})
    world.write(workspace.raw("toy"))


@pytest.mark.parametrize("name", [stage.name for stage in STAGES.values() if "encoder" in stage.deps])
def test_a_refresh_reads_an_encoder_that_is_older_than_its_inputs(name: str, copied: Workspace) -> None:
    set_older(folder_of(copied, "encoder"), "corpus")
    with pytest.raises(MovedError, match="encoder out of date: corpus changed"):
        run_stage(copied, name, "toy", "ngame", force=True)
    assert not run_stage(copied, name, "toy", "ngame", force=True, refresh=True).skipped


def test_a_refresh_does_not_read_an_encoder_of_other_settings(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/encoder/epochs": 2.0})
    with pytest.raises(MovedError, match=r"encoder out of date: settings \(epochs\) changed"):
        run_stage(copied, "embeddings", "toy", "ngame", refresh=True)


@pytest.mark.parametrize("dep", ["embeddings", "clusters"])
def test_a_refresh_of_the_classifier_reads_no_other_stale_input(dep: str, copied: Workspace) -> None:
    set_older(folder_of(copied, dep), "corpus")
    with pytest.raises(MovedError, match=f"{dep} out of date"):
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"classifier/dropout": 0.5}, "rows that were trained with other settings: classifier.dropout"),
        ({"classifier/refit": False, "classifier/seed": 3},
         "rows that were trained with other settings: classifier.refit, classifier.seed"),
        ({"classifier/epochs": 0.0}, "rows that were trained with other settings: classifier.epochs"),
    ],
)  # fmt: skip
def test_a_refresh_does_not_keep_rows_of_other_settings(
    changes: dict[str, Any], found: str, copied: Workspace, edit: Edit
) -> None:
    """Otherwise they would be recorded as trained with the settings of now."""
    before = artifacts.read_made(folder_of(copied, "classifier"))
    edit(copied, {f"{STAGES_OF}/{name}": value for name, value in changes.items()})
    with pytest.raises(MovedError) as caught:
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)
    assert (caught.value.found, caught.value.do) == (found, f"{TRAIN}, or set the settings back")
    assert artifacts.read_made(folder_of(copied, "classifier")) == before
    assert not run_stage(copied, "classifier", "toy", "ngame").skipped


def test_a_refresh_does_not_keep_rows_of_other_code_and_has_nothing_to_keep_without_rows(copied: Workspace) -> None:
    set_older(folder_of(copied, "classifier"), "code")
    with pytest.raises(MovedError, match="rows that were trained with other code\n") as caught:
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)
    assert caught.value.do == TRAIN  # there is no setting to set back
    shutil.rmtree(folder_of(copied, "classifier"))
    with pytest.raises(MissingError, match="no classifier of toy/ngame that a refresh could keep"):
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)


def test_a_damaged_artefact_was_trained(copied: Workspace) -> None:
    (folder_of(copied, "encoder") / "manifest.json").write_text("{")
    assert untrained(copied, "toy", "ngame") is None
    shutil.rmtree(folder_of(copied, "classifier"))
    assert untrained(copied, "toy", "ngame") == "classifier"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("what", ["settings", "file"])
def test_a_refresh_never_trains_another_encoder(what: str, force: bool, copied: Workspace, edit: Edit) -> None:
    """The rows would no longer fit it."""
    before = copied.digest("encoder", "toy", "ngame")
    if what == "settings":
        edit(copied, {f"{STAGES_OF}/encoder/epochs": 2.0})
    else:
        (folder_of(copied, "encoder") / "encoder.safetensors").write_bytes(b"damaged")
    with pytest.raises(MovedError, match="encoder of toy/ngame with other settings or code, or damaged"):
        run_stage(copied, "encoder", "toy", "ngame", refresh=True, force=force)
    assert copied.digest("encoder", "toy", "ngame") == before


def test_the_advice_to_keep_an_encoder_is_given_if_that_works(copied: Workspace, edit: Edit) -> None:
    set_older(folder_of(copied, "encoder"), "corpus")
    with pytest.raises(MovedError, match="or add --refresh"):
        run_stage(copied, "embeddings", "toy", "ngame", force=True)
    edit(copied, {f"{STAGES_OF}/encoder/epochs": 2.0})
    with pytest.raises(MovedError) as caught:
        run_stage(copied, "embeddings", "toy", "ngame", force=True)
    assert caught.value.do is not None
    assert "--refresh" not in caught.value.do


def test_a_refresh_never_trains_an_encoder(copied: Workspace) -> None:
    shutil.rmtree(folder_of(copied, "encoder"))
    with pytest.raises(MissingError, match="no encoder of toy/ngame") as caught:
        run_stage(copied, "encoder", "toy", "ngame", refresh=True)
    assert caught.value.do is not None
    assert "xc train --dataset toy --recipe ngame" in caught.value.do
    assert not folder_of(copied, "encoder").exists()


def test_what_was_trained_is_not_what_was_refreshed(copied: Workspace) -> None:
    """A trained classifier needs no refresh; a refreshed one is kept by a refresh and trained again without one."""
    assert print_of(copied, "classifier", refresh=True) != print_of(copied, "classifier")
    steps = [(False, False), (True, False), (True, True), (True, False), (False, False), (False, False)]
    runs = [
        run_stage(copied, "classifier", "toy", "ngame", refresh=refresh, force=force).skipped
        for refresh, force in steps
    ]
    assert runs == [True, True, False, True, False, True]


def test_a_refresh_keeps_the_encoder_and_a_run_without_it_trains_again(copied: Workspace, lines: list[str]) -> None:
    set_older(folder_of(copied, "encoder"), "corpus")
    assert run_stage(copied, "encoder", "toy", "ngame", refresh=True).skipped
    assert lines[-1] == "encoder: kept, trained on older data"
    assert not run_stage(copied, "encoder", "toy", "ngame").skipped
    assert run_stage(copied, "encoder", "toy", "ngame", refresh=True).skipped
    assert lines[-1] == "encoder: up to date"


def moved(world: ToyWorld, uid: str) -> ToyWorld:
    """Return the world with a document in test instead of train, or the other way round."""
    train, test = ([row for row in rows if row["uid"] == uid] for rows in (world.train, world.test))
    rest, asked = ([row for row in rows if row["uid"] != uid] for rows in (world.train, world.test))
    return ToyWorld(rest + test, asked + train, world.labels)


def test_a_refresh_keeps_nothing_that_learnt_from_a_test_document(
    copied: Workspace, tmp_path: Path, lines: list[str]
) -> None:
    world = ToyWorld.make()
    into, out_of = world.train[3]["uid"], world.test[0]["uid"]
    place(copied, moved(world, out_of).write(tmp_path / "out"), "toy", IngestConfig(), replace=True)
    assert lines[-1].endswith("; 1 document moved into test, or out of it")
    for name in NAMES[1:]:
        run_stage(copied, name, "toy", "ngame", refresh=True)

    both = moved(moved(world, out_of), into)
    place(copied, both.write(tmp_path / "both"), "toy", IngestConfig(), replace=True)
    for name in NAMES[1 : NAMES.index("classifier") + 1]:
        if name not in ("encoder", "classifier"):
            run_stage(copied, name, "toy", "ngame", refresh=True)
            continue
        kept = artifacts.verify(folder_of(copied, name))
        with pytest.raises(MovedError) as caught:
            run_stage(copied, name, "toy", "ngame", refresh=True)
        assert caught.value.found == f"1 test document that the kept rows learnt from (the first: {into})"
        assert artifacts.verify(folder_of(copied, name)) == kept

    place(copied, moved(world, out_of).write(tmp_path / "back"), "toy", IngestConfig(), replace=True)
    for name in NAMES[1:]:
        run_stage(copied, name, "toy", "ngame", refresh=True)
    place(copied, both.write(tmp_path / "again"), "toy", IngestConfig(), replace=True)
    for name in NAMES[1:]:
        run_stage(copied, name, "toy", "ngame")


UID = "D0003"


def refreshed_without(workspace: Workspace, folder: Path, uid: str) -> ToyWorld:
    """Replace the data by the same without a train document, and refresh; return the data before."""
    world = ToyWorld.make()
    without = ToyWorld([row for row in world.train if row["uid"] != uid], world.test, world.labels)
    place(workspace, without.write(folder / "without"), "toy", IngestConfig(), replace=True)
    for name in NAMES[1:]:
        run_stage(workspace, name, "toy", "ngame", refresh=True)
    return world


def come_back_as_test(workspace: Workspace, folder: Path, world: ToyWorld, uid: str) -> None:
    """Let the train document that is gone be a test document, up to the tokens."""
    place(workspace, moved(world, uid).write(folder / "back"), "toy", IngestConfig(), replace=True)
    run_stage(workspace, "tokens", "toy")


def test_a_document_that_left_and_came_back_as_a_test_document_is_still_known(
    copied: Workspace, tmp_path: Path
) -> None:
    """Two versions of the data in turn show it as removed, then as new."""
    world = refreshed_without(copied, tmp_path, UID)
    come_back_as_test(copied, tmp_path, world, UID)
    with pytest.raises(MovedError, match=rf"1 test document that the kept rows learnt from \(the first: {UID}\)"):
        run_stage(copied, "encoder", "toy", "ngame", refresh=True)


def test_rows_that_are_trained_again_on_a_kept_encoder_know_what_it_learnt_from(
    copied: Workspace, tmp_path: Path
) -> None:
    world = refreshed_without(copied, tmp_path, UID)
    assert not run_stage(copied, "classifier", "toy", "ngame", force=True).skipped
    come_back_as_test(copied, tmp_path, world, UID)
    with pytest.raises(MovedError, match="1 test document that the kept rows learnt from"):
        run_stage(copied, "encoder", "toy", "ngame", refresh=True)


def test_rows_on_an_encoder_that_was_never_trained_know_what_they_learnt_from_alone(
    copied: Workspace, tmp_path: Path, edit: Edit
) -> None:
    """Such an encoder is the same for all data. Otherwise no training would end what a refresh refuses."""
    edit(copied, {f"{STAGES_OF}/encoder/epochs": 0.0, "datasets/toy/tokens/vocabulary": 1})  # letters alone
    until = NAMES[: NAMES.index("classifier") + 1]
    for name in until:
        run_stage(copied, name, "toy", "ngame")
    before = copied.digest("encoder", "toy", "ngame")
    come_back_as_test(copied, tmp_path, ToyWorld.make(), UID)
    for name in until:
        run_stage(copied, name, "toy", "ngame")
    assert copied.digest("encoder", "toy", "ngame") == before
    LabelTables.open(folder_of(copied, "classifier")).check_unseen(open_corpus(copied))  # a refresh would keep them


def test_a_refresh_refuses_rows_that_learnt_from_validation_documents(copied: Workspace, tmp_path: Path) -> None:
    wider = IngestConfig(validation_fraction=0.5)
    place(copied, ToyWorld.make().write(tmp_path / "wider"), "toy", wider, replace=True)
    run_stage(copied, "tokens", "toy")
    with pytest.raises(MovedError, match=r"\d+ held-out documents of \d+ that the kept rows learnt from"):
        run_stage(copied, "encoder", "toy", "ngame", refresh=True)
    assert not run_stage(copied, "encoder", "toy", "ngame").skipped


def test_a_refresh_does_not_keep_rows_of_another_encoder(copied: Workspace, tmp_path: Path) -> None:
    """A training that was stopped between encoder and classifier leaves such rows."""
    add_label(copied)
    for name in NAMES[: NAMES.index("classifier")]:
        run_stage(copied, name, "toy", "ngame")
    with pytest.raises(MovedError, match="rows that were trained on the vectors of another encoder"):
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)
    assert not run_stage(copied, "classifier", "toy", "ngame").skipped


def test_new_data_is_refreshed_stage_by_stage_and_trained_by_a_run_without_refresh(copied: Workspace) -> None:
    add_label(copied)
    for name in ("corpus", "tokens"):
        run_stage(copied, name, "toy")
    assert states_of(copied)["model"].root == "encoder"
    with pytest.raises(MovedError, match="or add --refresh to keep the trained encoder"):
        run_stage(copied, "embeddings", "toy", "ngame")
    trained, rows = artifacts.verify(folder_of(copied, "encoder")), copied.digest("classifier", "toy", "ngame")
    for name in NAMES[2:]:
        assert run_stage(copied, name, "toy", "ngame", refresh=True).skipped == (name == "encoder")
        kept_from = artifacts.read_made(folder_of(copied, name)).facts.get("refreshed_from")
        assert kept_from == (rows if name == "classifier" else None)
    assert artifacts.verify(folder_of(copied, "encoder")) == trained
    found = states_of(copied)
    kept = {name: state.why for name, state in found.items() if state.status is Status.KEPT}
    assert kept == {
        "encoder": "trained on older data: corpus and tokens changed",
        "classifier": "trained on older data",
    }
    assert {state.status for name, state in found.items() if name not in kept} == {Status.FRESH}
    assert artifacts.read_made(folder_of(copied, "classifier")).refreshed
    assert run_stage(copied, "evaluation", "toy", "ngame").skipped, "nothing after a refresh asks for --refresh"

    for name in NAMES:
        ran = run_stage(copied, name, "toy", "ngame")
        assert ran.skipped == (name in ("corpus", "tokens")), name
    assert set(statuses(copied).values()) == {"FRESH"}
    assert not artifacts.read_made(folder_of(copied, "classifier")).refreshed
