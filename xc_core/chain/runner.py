"""Runs one stage: locks it, checks that its inputs are up to date, builds the artefact, records what it cost.

An artefact that is up to date is not built again. If parameters or inputs change while a stage runs, nothing is kept.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xc_core import artifacts, manifests
from xc_core.artifacts import Build, Made
from xc_core.chain.context import Context, ExperimentInputs, Run
from xc_core.chain.costs import forget_peak_memory, machine, machines, peak_memory_mb, read_costs, write_costs
from xc_core.chain.dataset import Partition
from xc_core.chain.extension import check_extendable, extension_facts, take_over
from xc_core.chain.fingerprints import differing, fingerprint, input_folder, inputs, write_settings
from xc_core.chain.kept import REFRESHED, REFRESHED_FROM, TRAINED, check_trained, check_training, check_unseen
from xc_core.chain.registry import STAGES, Stage, find_stage, versioned_stages
from xc_core.chain.status import State, Status, depends, states
from xc_core.chain.workspace import Workspace, working
from xc_core.distributed import World, check_one_process, joined
from xc_core.environment import checkpoint_seconds, device_name
from xc_core.errors import MissingError, MovedError, StorageError, XCError
from xc_core.locks import locked
from xc_core.memory import give_back
from xc_core.params import plain
from xc_core.plugins import importing
from xc_core.progress import quiet, report


@dataclass(frozen=True)
class Ran:
    """Result of running a stage."""

    folder: Path
    skipped: bool
    """True if the artefact was up to date."""
    seconds: float
    facts: dict[str, Any]
    costs: dict[str, float]


@dataclass(frozen=True)
class _Job:
    """One run of a stage."""

    workspace: Workspace
    stage: Stage
    partition: Partition
    refresh: bool
    """Trained parts are kept although their inputs have changed."""
    extend: bool
    """The same, and the artefact is extended by new labels instead of built again."""
    recut: bool = False
    """The corpus is cut again, from the present one."""

    @property
    def function(self) -> str:
        """The function of the stage's module that builds the artefact; new labels come to kept rows by a refresh."""
        if self.stage.name == REFRESHED and self.refresh:
            return "refresh"
        if self.recut:
            return "recut"
        return "extend" if self.extend else "run"

    @property
    def keeps(self) -> bool:
        """True if an older artefact of the stage may stay as it is."""
        return self.extend or (self.refresh and self.stage.name in TRAINED)

    @property
    def folder(self) -> Path:
        return self.workspace.folder(self.stage.name, *self.partition.key)

    @property
    def name(self) -> str:
        dataset, recipe = self.partition.key
        return f"{self.stage.name} of {dataset}{'/' + recipe if recipe else ''}"

    def scratch(self, kind: str) -> Path:
        return self.workspace.scratch(kind, self.stage.name, *self.partition.key)

    def depends(self) -> dict[str, str]:
        return depends(self.workspace, self.stage, self.partition)


def run_stage(
    workspace: Workspace,
    name: str,
    dataset: str,
    recipe: str | None = None,
    *,
    force: bool = False,
    refresh: bool = False,
    extend: bool = False,
) -> Ran:
    """Run one stage of one partition and return its result.

    With ``refresh`` the trained encoder is kept although its inputs have changed, and the stage classifier keeps its
    trained rows. With ``extend``, which includes that, the artefact of the stage is extended by labels that are new in
    the corpus (``chain.extension``). Raises BusyError if the stage is running already, MissingError for absent inputs,
    MovedError for inputs that are out of date or change during the run.
    """
    stage = find_stage(name)
    workspace.folder(name, dataset, recipe)  # raises the error of a recipe that is not named
    partition = workspace.params.partition(dataset, recipe if stage.scope == "experiment" else None)
    write_settings(workspace, partition)
    return _run_job(_Job(workspace, stage, partition, refresh or extend, extend), force=force)


def recut_corpus(workspace: Workspace, dataset: str) -> Ran:
    """Run the stage corpus with another split on the tables of its present artefact, see ``data.recut``.

    The caller knows that it was made with the same settings but for the split. Raises as ``run_stage``, MovedError
    also if the source files have changed since, and CorruptError for a damaged artefact.
    """
    partition = workspace.params.partition(dataset, None)
    write_settings(workspace, partition)
    job = _Job(workspace, find_stage("corpus"), partition, refresh=False, extend=False, recut=True)
    return _run_job(job, force=False)


def _run_job(job: _Job, *, force: bool) -> Ran:
    description = f"the stage {job.stage.name}"
    device_name(), checkpoint_seconds()  # raise the error of a wrong value before the stage starts
    if not job.stage.shared:
        check_one_process(description)
    with joined(description) as world:
        return _lead(job, world, force=force) if world.first else _follow(job, world)


def _lead(job: _Job, world: World, *, force: bool) -> Ran:
    """Run the stage, unless it is up to date, as the process that writes; the others of its group follow."""
    name, (dataset, recipe) = job.stage.name, job.partition.key
    with ExitStack() as locks:
        refused = None
        try:
            locks.enter_context(locked(job.scratch("lock"), job.name))
            locks.enter_context(working(job.workspace, dataset))
        except StorageError as error:  # who may not write can still use a stage that is up to date
            refused = error
        kept = _checked_status(job) is Status.KEPT and job.keeps
        digests = job.depends()
        if kept and name in TRAINED:
            check_unseen(job.workspace, job.partition)
        if not force and (made := _reusable_artefact(job, digests, kept=kept)) is not None:
            report(f"{name}: {'kept, trained on older data' if kept and name in TRAINED else 'up to date'}")
            world.of_first("")
            return Ran(job.folder, True, 0.0, dict(made.facts), read_costs(job.workspace, name, dataset, recipe))
        if refused is not None:
            raise refused
        if job.refresh and name in TRAINED:
            check_trained(job.workspace, job.stage, job.partition)
        if job.function == "refresh":
            check_training(job.workspace, job.stage, job.partition, digests)
        if job.extend:
            check_extendable(job.workspace, job.stage, job.partition, digests)
        return _build_artefact(job, digests, world, _kept_from(job))


def _kept_from(job: _Job) -> dict[str, Any]:
    """Return the fact that says which artefacts a refresh or an extension is made from; none for other runs."""
    if job.extend:
        return extension_facts(job.workspace, job.stage.name, job.partition)
    return {REFRESHED_FROM: manifests.read_manifest(job.folder).digest()} if job.function == "refresh" else {}


def _follow(job: _Job, world: World) -> Ran:
    """Compute along with the first process of the group, if it trains; keep nothing, and report only an error."""
    with quiet():
        run_fingerprint = world.of_first("")
        if run_fingerprint:
            with artifacts.building(job.folder, kind=job.stage.name, keep=False) as build:
                code(job.stage, "run")(_context(job, build, {}, run_fingerprint, {}))
    return Ran(job.folder, not run_fingerprint, 0.0, {}, {})


def _reusable_artefact(job: _Job, digests: dict[str, str], *, kept: bool) -> Made | None:
    """Return how the present artefact was made if it is up to date, or if a refresh keeps it."""
    try:
        artifacts.check_sizes(job.folder, manifests.read_manifest(job.folder))
    except MissingError:
        return None
    except XCError as error:
        report(f"{job.stage.name}: rebuilding, the existing artefact is damaged ({error.found})")
        return None
    made = artifacts.read_made(job.folder)
    return made if kept or made.fingerprint == fingerprint(digests) else None


def _checked_status(job: _Job) -> Status | None:
    """Return the status of the stage's artefact, None for a stage that compares experiments.

    Raises MovedError, naming the first stage that is out of date, if the stage would read results of it.
    """
    if job.stage.compares:
        return None
    by_stage = states(job.workspace, job.partition, refresh=job.refresh)
    used = inputs(job.stage, job.partition)
    stale = [by_stage[dep] for dep in used if by_stage[dep].status is Status.STALE]
    if stale:
        raise _out_of_date_error(job, by_stage[stale[0].root])
    return by_stage[job.stage.name].status


def _out_of_date_error(job: _Job, root: State) -> MovedError:
    dataset, recipe = job.partition.key
    run = STAGES[root.stage].command(dataset, recipe)
    keep = ""
    if root.stage == "encoder" and states(job.workspace, job.partition, refresh=True)["encoder"].status is Status.KEPT:
        keep = "; or add --refresh to keep the trained encoder"
    if recipe is None or (job.function == "refresh" and STAGES[root.stage].scope == "dataset"):
        do = f"{run}, then the same command"
    else:
        again = job.workspace.params.train_command(dataset, recipe)
        do = f"{again}, or stage by stage from {run}{keep}"
    return MovedError(
        f"{root.stage} out of date: {root.why} since it was made",
        expected=f"inputs of {job.stage.name} that are up to date",
        do=do,
    )


def _build_artefact(job: _Job, digests: dict[str, str], world: World, kept_from: dict[str, Any]) -> Ran:
    """Build the artefact, with the fact ``kept_from`` in its record."""
    start, cpu_start = time.monotonic(), time.process_time()
    costs: dict[str, float] = {}
    give_back()
    forget_peak_memory()
    refreshed, extended = job.function == "refresh", job.function == "extend"
    run_fingerprint = fingerprint(digests, refresh=refreshed, extended=extended)
    run, machine_name = code(job.stage, job.function), machine()  # raises the error of a GPU that is not there
    with _in_its_place(job), artifacts.building(job.folder, kind=job.stage.name) as build:
        world.of_first(run_fingerprint if job.function == "run" else "")
        build.origin = Made(run_fingerprint, digests, plain(job.partition.settings(job.stage.name)), refreshed)
        if job.recut:  # of the files that the present corpus was made of
            present_digests = job.workspace.made(job.stage.name, *job.partition.key).depends
            _check_unmoved(job, {**present_digests, "settings": digests["settings"]})
        run(_context(job, build, costs, run_fingerprint, digests))
        _check_unmoved(job, digests)
        # `dvc checkout` may have put files of other settings back meanwhile, which DVC would record with this artefact
        write_settings(job.workspace, job.workspace.params.partition(*job.partition.key))
        build.facts |= kept_from
        facts = dict(build.facts)
    seconds = time.monotonic() - start
    cpu_seconds = time.process_time() - cpu_start
    costs |= {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3), "peak_memory_mb": peak_memory_mb()}
    write_costs(job.scratch("cost"), costs, machine_name)
    artifacts.remove(job.scratch("run"))
    return Ran(job.folder, False, seconds, facts, costs)


def _context(
    job: _Job, build: Build, costs: dict[str, float], run_fingerprint: str, digests: dict[str, str]
) -> Context[Any]:
    dataset, recipe = job.partition.key
    deps = () if job.stage.compares else inputs(job.stage, job.partition)
    return Context(
        settings=job.partition.settings(job.stage.name),
        run=Run(
            dataset,
            recipe or "",
            job.workspace.raw(dataset),
            job.scratch("run"),
            run_fingerprint,
            partial(_check_unmoved, job, digests, ended=False),
        ),
        build=build,
        costs=costs,
        inputs={dep: input_folder(job.workspace, dep, job.partition) for dep in deps},
        previous=job.folder,
        experiments=_experiment_inputs(job) if job.stage.compares else None,
    )


def _experiment_inputs(job: _Job) -> ExperimentInputs:
    """Return the inputs of a stage that reads all experiments of its dataset."""
    workspace, dataset = job.workspace, job.partition.key[0]

    def opened(recipe: str, artefact: type[Any]) -> Any:
        state = states(workspace, workspace.params.experiment(dataset, recipe))[artefact.kind]
        if state.status in (Status.STALE, Status.MISSING):
            raise MissingError(
                f"{artefact.kind} of {recipe} {state.status}{': ' + state.why if state.why else ''}",
                expected="one that is up to date",
                do=workspace.params.train_command(dataset, recipe),
            )
        return workspace.open(artefact, dataset, recipe)

    def costs(recipe: str) -> dict[str, dict[str, float]]:
        return {
            stage.name: read_costs(workspace, stage.name, dataset, recipe) for stage in versioned_stages("experiment")
        }

    return ExperimentInputs(
        workspace.params.recipes(dataset), opened, costs, lambda recipe: machines(workspace, dataset, recipe)
    )


def _check_unmoved(job: _Job, digests: dict[str, str], *, ended: bool = True) -> None:
    """Raise MovedError if parameters or inputs have changed since the stage started.

    Before it has ``ended``, those that cannot be read count as unchanged: a file may be replaced at this moment. But a
    project that was moved is gone for good.
    """
    try:
        current = depends(job.workspace, job.stage, job.workspace.params.partition(*job.partition.key))
    except XCError:
        current = {} if ended or not job.folder.parent.is_dir() else digests  # deleted or no longer readable
    if current != digests:
        names = f": {', '.join(differing(digests, current))}" if current else ", which are gone or cannot be read"
        raise _changed(job, names)


@contextmanager
def _in_its_place(job: _Job) -> Iterator[None]:
    """Turn an error of the block into a MovedError if the project, or the folder of the artefact, is gone by then."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MovedError) or job.folder.parent.is_dir():
            raise
        raise _changed(job, f": {job.folder.parent} was moved or deleted") from error


def _changed(job: _Job, what: str) -> MovedError:
    return MovedError(
        f"parameters or inputs of {job.stage.name} that changed during the run{what}",
        expected="params.yaml and inputs unchanged while a stage runs",
        do="run the same command again; the result was not kept",
    )


def code(stage: Stage, function: str) -> Callable[[Context[Any]], None]:
    """Import the stage's module and return a function of it; ``take_over`` for one without ``extend``."""
    with importing():
        module = importlib.import_module(f"xc_core.stages.{stage.name}")
    fallback = [take_over] if function == "extend" else []
    stage_function: Callable[[Context[Any]], None] = getattr(module, function, *fallback)
    return stage_function
