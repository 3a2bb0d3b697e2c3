"""Running one stage: lock, compare fingerprints, build the artefact, put down what it cost.

Takes: Workspace, names.                                  Gives: Ran; the artefact's folder is replaced.
May import: artifacts, errors, params, progress, stages.registry, .workspace.
Never: leaves half an artefact; knows a stage's insides.

A fingerprint is a hash of the stage's config, its code version and the digests of everything it reads. An artefact
whose manifest has the present fingerprint is not made again. Where parameters or inputs change while a stage runs,
nothing is kept.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.errors import ConfigError, CorruptError, MissingError, MovedError, UsageError, XCError, nearest
from xc_core.params import plain
from xc_core.progress import report
from xc_core.stages.memory import forget_peak_memory, peak_memory_mb
from xc_core.stages.registry import STAGES, Stage
from xc_core.stages.workspace import Experiment, Workspace, store_name


@dataclass(frozen=True)
class Context:
    """What a stage's code is given: its config, where its inputs lie, where to build, where to keep resume state."""

    workspace: Workspace
    stage: Stage
    experiment: Experiment
    recipe: str | None
    build: Build
    fingerprint: str
    costs: dict[str, float]
    """Figures that differ from run to run (seconds, latency); kept outside the artefact."""

    @property
    def config(self) -> Any:
        """The config of this stage."""
        return self.experiment.config(self.stage.name)

    def input(self, stage: str) -> Path:
        """Return the folder of the artefact of ``stage`` that this one reads."""
        if stage not in self.stage.deps:
            raise ConfigError(
                f"{self.stage.name} reading {stage}", expected=f"one of {self.stage.deps}", do="declare it"
            )
        return self.workspace.folder(stage, self.experiment.dataset, self.recipe)

    @property
    def resume_folder(self) -> Path:
        """Where checkpoints of this stage and partition live."""
        return self.workspace.scratch("run", self.stage, self.experiment.dataset, self.recipe)

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds between two checkpoints: XC_CHECKPOINT_SECONDS, 60 by default.

        Of the machine, not of the recipe: no result depends on it. Fewer on a machine that may be taken away.
        """
        text = os.environ.get("XC_CHECKPOINT_SECONDS", "60")
        try:
            return float(text)
        except ValueError as error:
            raise ConfigError(f"XC_CHECKPOINT_SECONDS={text}", expected="a number", do="mend or unset it") from error


@dataclass(frozen=True)
class Ran:
    """What a run of a stage came to."""

    folder: Path
    skipped: bool
    """True where the artefact was there already, made from the same inputs and parameters."""
    seconds: float
    facts: dict[str, Any]
    costs: dict[str, float]


def find_stage(name: str) -> Stage:
    """Return the stage ``name``; raise ConfigError naming the nearest where there is none."""
    if name not in STAGES:
        raise ConfigError(
            f"stage {name!r}{nearest(name, STAGES)}",
            expected=f"one of {', '.join(STAGES)}",
            do="mend the name",
        )
    return STAGES[name]


def run_stage(
    workspace: Workspace,
    name: str,
    dataset: str,
    recipe: str | None = None,
    *,
    force: bool = False,
    refresh: bool = False,
) -> Ran:
    """Run one stage of one partition and return what it made.

    ``refresh`` brings an artefact up to new documents and labels without training, where the stage knows how to.
    Raises BusyError where it runs already, MissingError for absent inputs, MovedError where they changed meanwhile.
    """
    stage = find_stage(name)
    make = code(stage, "refresh" if refresh else "run")
    recipe = recipe if stage.scope == "experiment" else None
    folder = workspace.folder(name, dataset, recipe)
    lock = workspace.scratch("lock", stage, dataset, recipe)
    with artifacts.locked(lock, f"{name} of {dataset}{'/' + recipe if recipe else ''}"):
        before = fingerprint(workspace, stage, dataset, recipe, refresh=refresh)
        if not force and (manifest := _present(folder, before)) is not None:
            report(f"{name}: up to date, nothing to do")
            return Ran(folder, True, 0.0, dict(manifest.facts), read_costs(workspace, stage, dataset, recipe))
        place = Place(stage, dataset, recipe, before, refresh)
        _check_same_corpus(workspace, place)
        return _make(workspace, make, place)


@dataclass(frozen=True)
class Place:
    """A stage of a partition, the fingerprint it is made for, and whether it is only brought up to date."""

    stage: Stage
    dataset: str
    recipe: str | None
    fingerprint: str
    refresh: bool


def _make(workspace: Workspace, make: Callable[[Context], None], place: Place) -> Ran:
    stage, dataset, recipe, before = place.stage, place.dataset, place.recipe, place.fingerprint
    folder = workspace.folder(stage.name, dataset, recipe)
    started = time.monotonic()
    costs: dict[str, float] = {}
    forget_peak_memory()
    with artifacts.building(folder, kind=stage.name) as build:
        experiment = workspace.experiment(dataset, recipe)
        context = Context(workspace, stage, experiment, recipe, build, before, costs)
        make(context)
        _check_unmoved(workspace, place)
        build.facts |= {"fingerprint": before, "config": plain(context.config)}
        if "corpus" in stage.deps:
            build.facts["corpus"] = workspace.corpus_digest(dataset)
        facts = dict(build.facts)
    seconds = time.monotonic() - started
    costs |= {"seconds": round(seconds, 3), "peak_memory_mb": peak_memory_mb()}
    cost_file = workspace.scratch("cost", stage, dataset, recipe)
    artifacts.write_file(cost_file, json.dumps(costs, indent=1, sort_keys=True) + "\n")
    artifacts.remove(workspace.scratch("run", stage, dataset, recipe))
    return Ran(folder, False, seconds, facts, costs)


def _check_same_corpus(workspace: Workspace, place: Place) -> None:
    """Raise MovedError where an input was made from another corpus than there is now: its rows are of other texts.

    An encoder may be, since a refresh embeds new documents with the one that there is; and what trainings read may be
    where there is none.
    """
    if "corpus" not in place.stage.deps:
        return
    dataset, recipe = place.dataset, place.recipe
    now = workspace.corpus_digest(dataset)
    free = {"corpus", "encoder"} | ({"clusters", "negatives"} if place.refresh else set())
    for dep in (dep for dep in place.stage.deps if dep not in free):
        made_from = artifacts.read_manifest(workspace.folder(dep, dataset, recipe), dep).facts.get("corpus")
        if made_from not in (None, now):
            whole = f"xc train --dataset {dataset}" + (f" --recipe {recipe}" if recipe else "")
            raise MovedError(
                f"{dep} of {dataset}{'/' + recipe if recipe else ''}, made from another corpus than there is now",
                expected="inputs of one corpus: rows of one are not labels of the other",
                do=f"run the stages from {dep} on, or all of them: {whole}",
            )


def _check_unmoved(workspace: Workspace, place: Place) -> None:
    """Raise MovedError where a stage that ends would now be made of other things than when it started."""
    try:
        now = fingerprint(workspace, place.stage, place.dataset, place.recipe, refresh=place.refresh)
    except XCError:
        now = ""  # gone or no longer readable is moved too
    if now != place.fingerprint:
        raise MovedError(
            f"other parameters or inputs of {place.stage.name} than when it started",
            expected="params.yaml and inputs left alone while a stage runs",
            do="run the stage again; the result was not kept",
        )


def code(stage: Stage, function: str) -> Callable[[Context], None]:
    """Import the stage's module and return its ``run`` or ``refresh``."""
    found: Callable[[Context], None] | None = getattr(
        importlib.import_module(f"xc_core.stages.{stage.name}"), function, None
    )
    if found is None:
        raise UsageError(
            f"--{function} for {stage.name}",
            expected="--refresh for classifier alone: the other stages have nothing trained to keep",
            do=f"leave it out: xc run {stage.name}",
        )
    return found


def fingerprint(workspace: Workspace, stage: Stage, dataset: str, recipe: str | None, *, refresh: bool = False) -> str:
    """Return the hash of everything the stage's result depends on.

    Raises MissingError where an input is not there.
    """
    experiment = workspace.experiment(dataset, recipe)
    parts: dict[str, Any] = {
        "stage": stage.name,
        "code_version": stage.code_version,
        "config": plain(experiment.config(stage.name)),
        "inputs": {
            dep: _input_digest(workspace, dep, experiment, recipe) for dep in stage.deps if _same_chain(stage, dep)
        },
    }
    if stage.settings_of:
        parts["settings"] = {name: plain(attrgetter(name)(experiment.recipe)) for name in stage.settings_of}
    if refresh:
        parts["refresh"] = True
    if stage.needs_source:
        parts["source"] = source_digest(workspace.raw(dataset), dataset)
    if stage.name == "leaderboard":
        parts["inputs"] = {pair[1]: _optional_digest(workspace, *pair) for pair in workspace.experiments(dataset)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _same_chain(stage: Stage, dep: str) -> bool:
    """False where a stage of the dataset reads what each of its experiments made (leaderboard)."""
    return stage.scope == "experiment" or STAGES[dep].scope == "dataset"


def _input_digest(workspace: Workspace, dep: str, experiment: Experiment, recipe: str | None) -> str:
    folder = workspace.folder(dep, experiment.dataset, recipe)
    if dep == "tokens" and experiment.recipe is not None:
        folder = folder / store_name(_tokenizer(experiment))
    try:
        return artifacts.read_manifest(folder, dep).digest()
    except MissingError as error:
        flags = f"--dataset {experiment.dataset}" + (f" --recipe {recipe}" if STAGES[dep].scope == "experiment" else "")
        raise MissingError(
            error.found,
            expected=f"the artefact of {dep}",
            do=f"make it first: xc run {dep} {flags}",
        ) from error


def _tokenizer(experiment: Experiment) -> str:
    """Return the tokenizer of the recipe's encoder, which has to be among those of the dataset."""
    assert experiment.recipe is not None
    name, listed = experiment.recipe.encoder.encoder.tokenizer, experiment.tokens.tokenizers
    if name not in listed:
        raise ConfigError(
            f"the encoder {experiment.recipe.encoder.encoder.name!r}, whose tokenizer is {name!r}",
            expected=f"one whose tokenizer is among datasets.{experiment.dataset}.tokens.tokenizers: "
            f"{', '.join(listed)}",
            do=f"add {name!r} there in params.yaml, then: xc run tokens --dataset {experiment.dataset}",
        )
    return name


def _optional_digest(workspace: Workspace, dataset: str, recipe: str) -> str:
    try:
        return artifacts.read_manifest(workspace.folder("evaluation", dataset, recipe)).digest()
    except MissingError:
        return ""


def source_digest(folder: Path, dataset: str) -> str:
    """Return a hash over names and contents of a raw folder.

    Raises MissingError where it is absent.
    """
    if not folder.is_dir():
        raise MissingError(
            f"no folder {folder}",
            expected="the dataset's source files",
            do=f"xc ingest PATH --dataset {dataset} (or `dvc pull`, where a remote holds it)",
        )
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {artifacts.sha256_file(path)}\n".encode())
    return digest.hexdigest()


def outdated(workspace: Workspace, name: str, dataset: str, recipe: str) -> bool:
    """True where a stage's artefact is of other parameters, inputs or another corpus than there are now.

    Where some of these are not there to be compared, as on a machine that only serves, it is not known to be.
    """
    try:
        made = artifacts.read_manifest(workspace.folder(name, dataset, recipe), name).facts
        if made.get("corpus") not in (None, workspace.corpus_digest(dataset)):
            return True
        return bool(made.get("fingerprint") != fingerprint(workspace, STAGES[name], dataset, recipe))
    except MissingError:
        return False


def _present(folder: Path, wanted: str) -> artifacts.Manifest | None:
    """Return the manifest of an artefact that has the fingerprint ``wanted`` and all its files, at full size."""
    try:
        manifest = artifacts.read_manifest(folder)
        if manifest.facts.get("fingerprint") != wanted:
            return None
        artifacts.check_sizes(folder, manifest)
    except MissingError:
        return None
    except CorruptError as error:
        report(f"{folder.name}: making it anew, for what is there is damaged ({error.found})")
        return None
    return manifest


def read_costs(workspace: Workspace, stage: Stage, dataset: str, recipe: str | None) -> dict[str, float]:
    """Return what the last run of a stage cost on this machine; empty where it never ran here."""
    path = workspace.scratch("cost", stage, dataset, recipe)
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}
