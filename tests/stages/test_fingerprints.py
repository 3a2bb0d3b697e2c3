"""What makes an artefact stale: all settings of its stage, those of others that it names, code, inputs, a refresh."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xc_core import artifacts
from xc_core.errors import ConfigError, MissingError
from xc_core.stages import STAGES, Workspace, outdated, run_stage
from xc_core.stages.runner import fingerprint

Edit = Callable[[Workspace, dict[str, Any]], None]
EXPERIMENT = "experiments/toy_ngame/stages"
NAMES = [name for name in STAGES if name != "leaderboard"]
CONFIGURED = [name for name in NAMES if name not in ("corpus", "embeddings")]


def print_of(workspace: Workspace, name: str, **how: Any) -> str:
    stage = STAGES[name]
    return fingerprint(workspace, stage, "toy", "ngame" if stage.scope == "experiment" else None, **how)


def prints(workspace: Workspace) -> dict[str, str]:
    return {name: print_of(workspace, name) for name in NAMES}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def set_fact(folder: Path, name: str, value: Any) -> None:
    """Write another fact into a manifest; the files are as they were."""
    manifest = artifacts.read_manifest(folder)
    facts = {**manifest.facts, name: value}
    (folder / artifacts.MANIFEST).write_text(dataclasses.replace(manifest, facts=facts).to_json())


# settings


def another(value: Any) -> Any:
    """Return another value of the same kind, a little more or the opposite."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value * 0.5 + 0.01
    return (*value, value[0]) if isinstance(value, tuple) else value


def variants(config: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the config with one number, switch or list changed, for each of them that may change alone."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{place}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from (
                (inner, dataclasses.replace(config, **{field.name: own})) for inner, own in variants(value, f"{name}.")
            )
        elif another(value) != value:
            try:
                yield name, dataclasses.replace(config, **{field.name: another(value)})
            except ConfigError:
                continue  # not alone


@pytest.mark.parametrize("name", CONFIGURED)
def test_every_setting_of_a_stage_is_in_its_fingerprint(
    name: str, trained: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, experiment = print_of(trained, name), trained.experiment("toy", "ngame")
    seen = {before: "none"}
    for setting, config in variants(experiment.config(name)):
        if name == "tokens":
            other = dataclasses.replace(experiment, tokens=config, recipe=None)
        else:
            other = dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, **{name: config}))
        with monkeypatch.context() as patch:
            patch.setattr(Workspace, "experiment", lambda *place, other=other: other)
            found = print_of(trained, name)
        assert found not in seen, f"{setting} as {seen.get(found)}"
        seen[found] = setting
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("setting", "value", "stages"),
    [
        ("classifier/refit", False, {"classifier", "clusters"}),
        ("classifier/order/kind", "random", {"classifier", "clusters", "negatives"}),
        ("classifier/order/cluster_size", 2, {"classifier", "negatives"}),
        ("classifier/dropout", 0.1, {"classifier"}),
        ("fusion/rows", 3, {"fusion", "classifier"}),
        ("encoder/order/batch_size", 16, {"encoder"}),
        ("index/joined", True, {"index"}),
    ],
)
def test_a_setting_makes_those_stages_stale_that_read_it(
    setting: str, value: Any, stages: set[str], copied: Workspace, edit: Edit
) -> None:
    before = prints(copied)
    edit(copied, {f"{EXPERIMENT}/{setting}": value})
    assert changed(before, prints(copied)) == stages


@pytest.mark.parametrize("name", list(STAGES))
def test_the_code_version_and_the_name_of_a_stage_are_in_its_fingerprint(name: str, trained: Workspace) -> None:
    stage = STAGES[name]
    recipe = "ngame" if stage.scope == "experiment" else None
    versions = [stage, dataclasses.replace(stage, code_version=f"{stage.code_version}0")]
    assert len({fingerprint(trained, own, "toy", recipe) for own in versions}) == 2


# inputs


def test_of_the_tokens_those_of_the_own_tokenizer_count(copied: Workspace, edit: Edit) -> None:
    """Tokens of another tokenizer, which another recipe asked for, make nothing stale."""
    before = prints(copied)
    set_fact(copied.folder("tokens", "toy"), "another", "content")
    assert changed(before, prints(copied)) == set()
    set_fact(copied.folder("tokens", "toy") / "wordpiece", "another", "content")
    assert changed(before, prints(copied)) == {name for name in NAMES if "tokens" in STAGES[name].deps}


def test_an_input_counts_by_its_files_and_its_facts(copied: Workspace) -> None:
    folder = copied.folder("clusters", "toy", "ngame")
    text = (folder / artifacts.MANIFEST).read_text()
    content = json.loads(text)
    content["files"]["order.npy"]["sha256"] = "0" * 64
    seen = {print_of(copied, "negatives")}
    (folder / artifacts.MANIFEST).write_text(json.dumps(content))
    seen.add(print_of(copied, "negatives"))
    (folder / artifacts.MANIFEST).write_text(json.dumps(json.loads(text), indent=7))
    assert print_of(copied, "negatives") in seen, "how it is written is no content"
    assert len(seen) == 2


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


# a refresh


def test_what_was_trained_is_not_what_was_refreshed(copied: Workspace) -> None:
    """Either is skipped where it is there already, and made where the other one is."""
    assert print_of(copied, "classifier", refresh=True) != print_of(copied, "classifier")
    runs = [
        run_stage(copied, "classifier", "toy", "ngame", refresh=refresh).skipped
        for refresh in (False, True, True, False, False)
    ]
    assert runs == [True, False, True, False, True]


# outdated


def test_a_model_is_outdated_by_its_settings_its_inputs_and_its_corpus(copied: Workspace, edit: Edit) -> None:
    assert not outdated(copied, "model", "toy", "ngame")
    edit(copied, {f"{EXPERIMENT}/model/min_P_at_1": 1.0})
    assert outdated(copied, "model", "toy", "ngame")
    edit(copied, {f"{EXPERIMENT}/model/min_P_at_1": 0.0})
    assert not outdated(copied, "model", "toy", "ngame")
    facts = artifacts.read_manifest(copied.folder("fusion", "toy", "ngame")).facts
    set_fact(copied.folder("fusion", "toy", "ngame"), "another", "content")
    assert outdated(copied, "model", "toy", "ngame")
    assert not outdated(copied, "classifier", "toy", "ngame")
    assert "another" not in facts


@pytest.mark.parametrize("name", ["encoder", "classifier", "model"])
def test_every_artefact_of_another_corpus_is_outdated(name: str, copied: Workspace) -> None:
    set_fact(copied.folder(name, "toy", "ngame"), "corpus", "another")
    assert outdated(copied, name, "toy", "ngame")


def test_what_cannot_be_compared_is_not_called_outdated(copied: Workspace) -> None:
    """A machine that only serves has the model, and nothing that it was made of."""
    copied.folder("fusion", "toy", "ngame").rename(copied.root / "elsewhere")
    assert not outdated(copied, "model", "toy", "ngame")
    copied.folder("model", "toy", "ngame").rename(copied.root / "served")
    assert not outdated(copied, "model", "toy", "ngame")
    with pytest.raises(MissingError):
        print_of(copied, "model")
