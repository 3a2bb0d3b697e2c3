"""Settings files: the settings in use and the code version of each stage, for DVC, which must see what xc sees."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chain.toy import NAMES, STAGES_OF, Edit, changed, folder_of, partition_of, parts_of, read_json, recipe_of
from xc_core.canonical import canonical
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.fingerprints import resolved, write_settings
from xc_core.chain.status import states
from xc_core.params import in_use


def path_of(workspace: Workspace, name: str) -> Path:
    return workspace.settings_file(name, "toy", recipe_of(name))


def settings_of(workspace: Workspace, name: str) -> Any:
    """Return the settings in a stage's file."""
    return read_json(path_of(workspace, name))["settings"]


def rewritten(workspace: Workspace) -> dict[str, str]:
    """Return all settings files after they are written for both partitions."""
    for name in ("corpus", "encoder"):
        write_settings(workspace, partition_of(workspace, name))
    return {name: path_of(workspace, name).read_text() for name in NAMES}


def digests(workspace: Workspace) -> dict[str, str]:
    """Return what a fingerprint has of the settings and code of each stage."""
    parts = {name: parts_of(workspace, name) for name in NAMES}
    return {name: part["settings"] + part["code"] for name, part in parts.items()}


def test_a_file_that_is_deleted_while_it_is_compared_is_written_again(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``xc delete`` does beside ``xc status``, which ended with 70."""
    before, read, path = rewritten(copied), Path.read_text, path_of(copied, "encoder")

    def deleting(file: Path, *arguments: Any) -> str:
        if file == path:
            file.unlink()
        return read(file, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", deleting)
        write_settings(copied, partition_of(copied, "encoder"))
    assert path.read_text() == before["encoder"]


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_has_a_file_with_its_settings_in_use_and_its_code_version(name: str, trained: Workspace) -> None:
    settings = in_use(partition_of(trained, name).settings(name))
    text = path_of(trained, name).read_text()
    assert text == canonical({"code_version": STAGES[name].code_version, "settings": settings})
    assert json.loads(text) == {"code_version": STAGES[name].code_version, "settings": settings}


def test_a_result_that_is_not_versioned_has_no_file(trained: Workspace) -> None:
    found = {path.relative_to(trained.data).as_posix() for path in trained.data.glob("**/settings/*")}
    dataset, recipe = ("toy/settings/corpus.json", "toy/settings/tokens.json"), NAMES[2:]
    assert found == {*dataset, *(f"toy/ngame/settings/{name}.json" for name in recipe)}


def test_running_a_stage_writes_the_files_of_all_stages_of_its_partition(workspace: Workspace) -> None:
    """DVC reads them all before it decides which stage to run."""
    run_stage(workspace, "corpus", "toy")
    assert sorted(path.name for path in workspace.data.glob("**/settings/*")) == ["corpus.json", "tokens.json"]
    run_stage(workspace, "tokens", "toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xc_core.stages.encoder.run", lambda context: None)
        run_stage(workspace, "encoder", "toy", "ngame")
    assert sorted(path.stem for path in workspace.data.glob("**/settings/*")) == sorted(NAMES)


def test_files_that_dvc_put_back_while_a_stage_ran_are_written_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dvc checkout --force` of another commit; DVC recorded its settings with the artefact of the present ones."""
    own = path_of(workspace, "corpus")
    monkeypatch.setattr("xc_core.stages.corpus.run", lambda context: own.write_text("of another commit"))
    run_stage(workspace, "corpus", "toy")
    assert settings_of(workspace, "corpus") == in_use(partition_of(workspace, "corpus").settings("corpus"))


def test_settings_of_other_stages_that_changed_while_a_stage_ran_are_not_put_back(
    workspace: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those of the stage itself must stay the same."""

    def run(context: Any) -> None:
        edit(workspace, {"datasets/toy/tokens/max_tokens": 2})
        write_settings(workspace, partition_of(workspace, "tokens"))

    monkeypatch.setattr("xc_core.stages.corpus.run", run)
    run_stage(workspace, "corpus", "toy")
    assert settings_of(workspace, "tokens")["max_tokens"] == 2


@pytest.mark.parametrize(
    ("setting", "value", "stages"),
    [
        ("encoder/loss", {"margin": 0.5}, {"encoder"}),
        ("encoder/loss", "supcon", {"encoder"}),
        ("encoder/optim", {"lr": 0.3}, {"encoder"}),
        ("classifier/order", {"kind": "random", "batch_size": 32}, {"classifier"}),
        ("scores", ["label_text", "classifier"], {"scores"}),
        ("scores", {"neighbours": {}}, {"scores"}),
        ("fusion/rule", {"depth": 3}, {"fusion"}),
        ("negatives/index", "exact", set()),
        ("embeddings", {}, set()),
    ],
)
def test_a_file_changes_if_and_only_if_the_fingerprint_of_its_stage_does(
    setting: str, value: Any, stages: set[str], copied: Workspace, edit: Edit
) -> None:
    files, prints = rewritten(copied), digests(copied)
    edit(copied, {f"{STAGES_OF}/{setting}": value})
    assert changed(files, rewritten(copied)) == changed(prints, digests(copied)) == stages


def test_a_code_version_changes_the_file(trained: Workspace) -> None:
    partition, stage = partition_of(trained, "fusion"), STAGES["fusion"]
    other = dataclasses.replace(stage, code_version="99")
    before, after = (json.loads(resolved(trained, own, partition)) for own in (stage, other))
    assert (after["code_version"], after["settings"]) == ("99", before["settings"])


def test_a_file_that_is_right_is_not_written_again_and_one_that_is_not_is(copied: Workspace) -> None:
    before = rewritten(copied)
    times = {name: path_of(copied, name).stat().st_mtime_ns for name in NAMES}
    path_of(copied, "fusion").write_text("{}")
    path_of(copied, "scores").unlink()
    assert rewritten(copied) == before
    after = {name: path_of(copied, name).stat().st_mtime_ns for name in NAMES}
    assert {name for name in NAMES if after[name] != times[name]} == {"fusion", "scores"}


# what enters


def test_a_part_enters_with_its_kind_and_its_own_settings(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/encoder/loss": "supcon"})
    rewritten(copied)
    found = settings_of(copied, "encoder")
    assert found["loss"].keys() == {"kind", "temperature", "forward"}
    assert found["loss"]["kind"] == "supcon"
    assert found["order"].keys() == {
        "kind", "batch_size", "size", "double_every", "refresh_every", "warmup_epochs"}  # fmt: skip
    assert settings_of(copied, "classifier")["order"] == {"kind": "stored-clusters", "batch_size": 32}


def test_scores_enter_with_their_order_because_a_tie_of_the_fusion_depends_on_it(trained: Workspace) -> None:
    assert [name for name, _ in settings_of(trained, "scores")] == ["label_text", "classifier", "frequency"]


def test_settings_that_nothing_uses_do_not_enter(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/encoder/epochs": 0.0, f"{STAGES_OF}/classifier/refit": False})
    rewritten(copied)
    assert settings_of(copied, "encoder").keys() == {"encoder", "epochs", "seed"}
    assert "enough" not in settings_of(copied, "classifier")
    assert settings_of(copied, "negatives") == {"k": 0}
    edit(copied, {f"{STAGES_OF}/classifier/refit": True, f"{STAGES_OF}/negatives/k": 2})
    rewritten(copied)
    assert settings_of(copied, "classifier")["enough"] == 10_000
    assert settings_of(copied, "negatives") == {"k": 2, "index": {"kind": "auto"}}


def test_the_files_are_no_artefacts_and_no_state_of_one_depends_on_them(copied: Workspace) -> None:
    before = states(copied, partition_of(copied, "encoder"))
    for path in copied.data.glob("**/settings/*"):
        path.unlink()
    assert states(copied, partition_of(copied, "encoder")) == before
    assert folder_of(copied, "fusion").parent == path_of(copied, "fusion").parents[1]


WRITE = """
import sys
from pathlib import Path
from xc_core.chain import Workspace
workspace = Workspace(Path(sys.argv[1]))
for number in range(150):
    workspace.write(workspace.data / "toy" / "settings" / "corpus.json", sys.argv[2] * 50)
"""


def test_several_processes_may_write_the_same_file(bare: Workspace) -> None:
    """Stages of a partition that run at the same time, and a status, each write the settings files."""
    running = [subprocess.Popen([sys.executable, "-c", WRITE, str(bare.root), str(i)]) for i in range(3)]
    assert [process.wait() for process in running] == [0] * 3
    folder = bare.data / "toy" / "settings"
    assert [path.name for path in folder.iterdir()] == ["corpus.json"]
    assert (folder / "corpus.json").read_text() in {str(i) * 50 for i in range(3)}
