"""The graph is true: a stage opens the artefacts that it declares and no others, and every declared edge is used.

Each stage runs with only its declared inputs in place, and an audit hook reports which of their files it opens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from xc_core.chain import STAGES, Workspace, run_stage, runner
from xc_core.chain.registry import Stage
from xc_core.chain.status import states

pytestmark = pytest.mark.timeout(600)

RECIPES: dict[str, dict[str, Any]] = {
    "ngame": {},
    "ance": {"negatives": {"k": 4}},
    "unidec": {},
    "adversarial": {"encoder": {"epochs": 0.0}, "classifier": {"negatives": {"width": 2}}},
    "house": {},
}
"""Clusters; mined negatives; rows trained with the encoder; noise; every score and folds."""


@dataclass
class Watch:
    """Paths opened in this process while ``on``."""

    on: bool = False
    seen: set[str] = field(default_factory=set)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        opens = self.on and event in ("open", "os.scandir", "os.listdir")
        if opens and isinstance(arguments[0], str | bytes | os.PathLike):
            self.seen.add(os.fsdecode(arguments[0]))

    def deaf(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` without what it opens being noted."""

        def call(*arguments: Any, **options: Any) -> Any:
            before, self.on = self.on, False
            try:
                return function(*arguments, **options)
            finally:
                self.on = before

        return call


WATCH = Watch()
sys.addaudithook(WATCH.hear)


@dataclass
class Graph:
    """Runs stages and notes the edges that they use."""

    workspace: Workspace
    used: set[tuple[str, str]] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    def train(self, recipe: str) -> None:
        """Run every stage of a recipe, once."""
        if recipe in self.done:
            return
        self.done.add(recipe)
        own = RECIPES[recipe]
        changes = {name: {**TOY_CHANGES.get(name, {}), **own.get(name, {})} for name in {*TOY_CHANGES, *own}}
        self.workspace.params.declare_experiment("toy", recipe, recipe, changes)
        for name in STAGES:
            run_stage(self.workspace, name, "toy", recipe)

    def refresh(self) -> None:
        """Refresh the first recipe for a new label, once."""
        self.train("ngame")
        if "refresh" in self.done:
            return
        self.done.add("refresh")
        world = ToyWorld.make()
        world.labels.append({"uid": "L10", "title": "comet", "content": "river0 comet"})
        world.train.append({"uid": "N1", "title": "comet", "content": "comet", "target_ind": [10], "target_rel": [1.0]})
        world.write(self.workspace.raw("toy"))
        for name in STAGES:
            if name != "encoder":
                run_stage(self.workspace, name, "toy", "ngame", refresh=True)

    @contextmanager
    def watched(self, stage: Stage, recipe: str) -> Iterator[None]:
        """Hide every artefact that ``stage`` does not declare; afterwards compare what it opened with the registry."""
        others = [name for name in STAGES if name not in (*stage.deps, stage.name)]
        hidden = [folder for name in others if (folder := self.folder(name, recipe)).is_dir()]
        hidden += [] if stage.needs_source else [self.workspace.raw("toy")]
        for folder in hidden:
            folder.rename(folder.with_name(f"{folder.name}-hidden"))
        WATCH.seen.clear()
        WATCH.on = True
        try:
            yield
        finally:
            WATCH.on = False
            for folder in hidden:
                folder.with_name(f"{folder.name}-hidden").rename(folder)
        self.check(stage, recipe)

    def check(self, stage: Stage, recipe: str) -> None:
        opened = {self.owner(Path(path), recipe) for path in WATCH.seen} - {None, stage.name}
        assert opened <= {*stage.deps, *(["raw"] if stage.needs_source else [])}, stage.name
        self.used |= {(str(name), stage.name) for name in opened}

    def folder(self, name: str, recipe: str) -> Path:
        return self.workspace.folder(name, "toy", recipe if STAGES[name].scope == "experiment" else None)

    def owner(self, path: Path, recipe: str) -> str | None:
        """Return the stage whose artefact has the file, "raw" for a source file, None for one outside ``data``."""
        for name in STAGES:
            if path.is_relative_to(self.folder(name, recipe)):
                return name
        return "raw" if path.is_relative_to(self.workspace.raw("toy")) else None


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    found = Graph(make_workspace(tmp_path_factory.mktemp("graph")))
    original = runner.code

    def code(stage: Stage, name: str) -> Any:
        run = original(stage, name)

        def watched(context: Any) -> None:
            recipe = context.run.recipe or "ngame"
            with found.watched(stage, recipe):
                run(context)

        return watched

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "code", code)
        patch.setattr(runner, "states", WATCH.deaf(states))  # the leaderboard asks which evaluations are stale
        yield found


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stage_opens_what_it_declares_and_nothing_else(graph: Graph, recipe: str) -> None:
    graph.train(recipe)


def test_a_refresh_opens_what_the_stage_declares_and_nothing_else(graph: Graph) -> None:
    graph.refresh()


def test_every_declared_edge_is_used(graph: Graph) -> None:
    for recipe in RECIPES:
        graph.train(recipe)
    graph.refresh()
    declared = {(dep, stage.name) for stage in STAGES.values() for dep in stage.deps}
    assert graph.used - {("raw", "corpus")} == declared


def test_an_undeclared_input_would_be_seen(graph: Graph) -> None:
    """Else the tests above would pass whatever a stage opens."""
    graph.train("ngame")
    stage = STAGES["clusters"]
    with pytest.raises(FileNotFoundError), graph.watched(stage, "ngame"):
        (graph.folder("encoder", "ngame") / "manifest.json").read_bytes()
    WATCH.on = True
    (graph.folder("encoder", "ngame") / "manifest.json").read_bytes()
    WATCH.on = False
    with pytest.raises(AssertionError, match="clusters"):
        graph.check(stage, "ngame")
