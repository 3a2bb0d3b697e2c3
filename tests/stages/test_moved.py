"""When a stage refuses: inputs of another corpus, and whatever its fingerprint is of that changes while it runs."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xc_core import artifacts
from xc_core.errors import MovedError
from xc_core.stages import STAGES, Workspace, run_stage
from xc_core.stages.runner import Context

Edit = Callable[[Workspace, dict[str, Any]], None]
EXPERIMENT = "experiments/toy_ngame/stages"
READERS = [stage for stage in STAGES.values() if "corpus" in stage.deps]
PAIRS = [(stage.name, dep) for stage in READERS for dep in stage.deps if dep not in ("corpus", "encoder")]


def set_corpus(folder: Path, digest: str | None) -> None:
    """Let an artefact say that it was made from the corpus ``digest``, or nothing of a corpus, as older ones do."""
    manifest = artifacts.read_manifest(folder)
    facts = {name: value for name, value in manifest.facts.items() if name != "corpus"}
    facts |= {} if digest is None else {"corpus": digest}
    (folder / artifacts.MANIFEST).write_text(dataclasses.replace(manifest, facts=facts).to_json())


# inputs of another corpus


@pytest.mark.parametrize(("name", "dep"), PAIRS)
def test_an_input_of_another_corpus_is_refused_by_name(name: str, dep: str, copied: Workspace) -> None:
    set_corpus(copied.folder(dep, "toy", "ngame"), "another")
    kept = artifacts.read_manifest(copied.folder(name, "toy", "ngame"))
    with pytest.raises(MovedError, match=f"found {dep} of toy.* made from another corpus") as caught:
        run_stage(copied, name, "toy", "ngame", force=True)
    assert caught.value.do.startswith(f"run the stages from {dep} on")
    assert artifacts.verify(copied.folder(name, "toy", "ngame")) == kept


@pytest.mark.parametrize("name", [stage.name for stage in READERS if "encoder" in stage.deps])
def test_an_encoder_of_another_corpus_is_let_in(name: str, copied: Workspace) -> None:
    """A refresh embeds new documents with the encoder that there is."""
    set_corpus(copied.folder("encoder", "toy", "ngame"), "another")
    assert not run_stage(copied, name, "toy", "ngame").skipped


@pytest.mark.parametrize("dep", ["embeddings", "clusters", "negatives"])
def test_a_refresh_minds_the_vectors_and_not_what_trainings_read(dep: str, copied: Workspace) -> None:
    set_corpus(copied.folder(dep, "toy", "ngame"), "another")
    if dep in ("clusters", "negatives"):
        assert not run_stage(copied, "classifier", "toy", "ngame", refresh=True).skipped
        with pytest.raises(MovedError, match=dep):
            run_stage(copied, "classifier", "toy", "ngame")
    else:
        with pytest.raises(MovedError, match=dep):
            run_stage(copied, "classifier", "toy", "ngame", refresh=True)


def test_inputs_that_do_not_say_which_corpus_they_are_of_are_let_in(copied: Workspace) -> None:
    for dep in ("embeddings", "clusters"):
        set_corpus(copied.folder(dep, "toy", "ngame"), None)
    assert not run_stage(copied, "negatives", "toy", "ngame").skipped


def test_an_artefact_says_which_corpus_it_was_made_from(trained: Workspace) -> None:
    digest = trained.corpus_digest("toy")
    for stage in READERS:
        assert artifacts.read_manifest(trained.folder(stage.name, "toy", "ngame")).facts["corpus"] == digest


# what changes meanwhile


def running(name: str, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch, function: str = "run") -> None:
    """Let ``change`` happen at the end of the stage's own code."""
    module = importlib.import_module(f"xc_core.stages.{name}")
    plain = getattr(module, function)

    def changing(context: Context) -> None:
        plain(context)
        change()

    monkeypatch.setattr(module, function, changing)


@dataclasses.dataclass(frozen=True)
class Change:
    """Something that changes while a stage runs."""

    stage: str
    apply: Callable[[Workspace, Edit], object]
    refresh: bool = False


def setting(name: str, value: Any) -> Callable[[Workspace, Edit], None]:
    return lambda workspace, edit: edit(workspace, {f"{EXPERIMENT}/{name}": value})


def source_file(workspace: Workspace, edit: Edit) -> None:
    (workspace.raw("toy") / "another.txt").write_text("1")


def own_tokens(workspace: Workspace, edit: Edit) -> None:
    set_corpus(workspace.folder("tokens", "toy") / "wordpiece", "another")


def evaluation(workspace: Workspace, edit: Edit) -> None:
    set_corpus(workspace.folder("evaluation", "toy", "ngame"), None)


MOVED = {
    "a setting of its own": Change("clusters", setting("clusters/size", 5)),
    "a setting of another stage that it reads": Change("classifier", setting("fusion/rows", 3)),
    "a setting while it is refreshed": Change("classifier", setting("classifier/dropout", 0.1), refresh=True),
    "a source file": Change("corpus", source_file),
    "the tokens of its tokenizer": Change("encoder", own_tokens),
    "an evaluation": Change("leaderboard", evaluation),
}
UNMOVED = {
    "a setting of another stage": Change("clusters", setting("fusion/depth", 3)),
    "another experiment": Change(
        "clusters", lambda workspace, edit: workspace.declare_experiment("toy", "b", "dpr", {})
    ),
    "a source file of the corpus before": Change("clusters", source_file),
    "an artefact that needs this one": Change("clusters", evaluation),
    "nothing, while it is refreshed": Change("classifier", lambda workspace, edit: None, refresh=True),
}


@pytest.mark.parametrize("name", [*MOVED, *UNMOVED])
def test_what_a_fingerprint_is_of_may_not_change_while_the_stage_runs_and_all_else_may(
    name: str, copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = MOVED.get(name) or UNMOVED[name]
    folder = copied.folder(change.stage, "toy", "ngame")
    before = artifacts.read_manifest(folder)
    running(change.stage, lambda: change.apply(copied, edit), monkeypatch, "refresh" if change.refresh else "run")
    if name in UNMOVED:
        assert not run_stage(copied, change.stage, "toy", "ngame", force=True, refresh=change.refresh).skipped
        return
    with pytest.raises(MovedError, match=f"other parameters or inputs of {change.stage} than when it started"):
        run_stage(copied, change.stage, "toy", "ngame", force=True, refresh=change.refresh)
    assert artifacts.read_manifest(folder) == before
