"""Decides what each result depends on, and if it is up to date. Nothing else does: DVC records it, Dagster shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from xc_core import artifacts, manifests
from xc_core.artifacts import Made
from xc_core.chain.dataset import Partition, TokensConfig
from xc_core.chain.fingerprints import (
    content_hash,
    differing,
    fingerprint,
    input_folder,
    inputs,
    only_inputs,
    other_settings,
    outside_digests,
    same_cut,
    source_digest,
)
from xc_core.chain.registry import STAGES, Stage, versioned_stages
from xc_core.chain.workspace import Workspace
from xc_core.errors import CorruptError, MissingError, XCError, bare
from xc_core.params import in_use, plain

_SETTINGS: Final = "settings"
_CODE: Final = "code"
SOURCE: Final = "source files"
"""What changed if the files of a dataset did."""
_MAX_NAMED: Final = 3
"""Changed settings that are named, at most."""


class Status(StrEnum):
    """State of an artefact."""

    FRESH = "up to date"
    KEPT = "kept"
    """Trained on older data and kept by a refresh, which ``xc train`` trains again; or extended by new labels, which a
    refresh rebuilds."""
    STALE = "out of date"
    MISSING = "missing"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    """It is there, but an input is missing or unreadable, as on a machine that only serves."""

    @property
    def usable(self) -> bool:
        """False for an artefact that is out of date, missing or damaged: its stage has to run."""
        return self not in (Status.STALE, Status.MISSING, Status.DAMAGED)


@dataclass(frozen=True)
class State:
    """State of one stage's artefact, and why."""

    stage: str
    status: Status
    why: str = ""
    root: str = ""
    """The stage whose own change makes this one stale."""


def states(workspace: Workspace, partition: Partition, *, refresh: bool = False) -> dict[str, State]:
    """Return the state of each stage of a partition, after those of the dataset that it reads, in pipeline order.

    A stage is out of date if its settings, its code or the content of an input changed since it was made, or if a
    stage that it reads is out of date. With ``refresh``, or after one, an encoder that is older than its inputs counts
    as kept.
    """
    recipe = partition.key[1]
    by_stage: dict[str, State] = {}
    stages = versioned_stages("dataset") + (versioned_stages("experiment") if recipe is not None else [])
    keep = refresh or (recipe is not None and workspace.made("classifier", *partition.key).refreshed)
    for stage in stages:
        owner = partition if stage.scope == "experiment" else partition.dataset
        by_stage[stage.name] = _state(workspace, stage, owner, by_stage, keep=keep)
    return by_stage


def packed_state(workspace: Workspace, dataset: str, recipe: str) -> State:
    """Return the state of a recipe's packed model; raise MissingError, with the command to train, if it has none."""
    state = states(workspace, workspace.params.experiment(dataset, recipe))["model"]
    if state.status is Status.MISSING:
        raise MissingError(
            f"no packed model at {workspace.folder('model', dataset, recipe)}",
            expected="a recipe whose stages have run",
            do=workspace.params.train_command(dataset, recipe),
        )
    return state


def packing_command(workspace: Workspace, state: State, dataset: str, recipe: str) -> str:
    """Return the command that brings a packed model up to date: it is packed again if only its inputs are newer."""
    if state.root == "model":
        return STAGES["model"].command(dataset, recipe)
    return workspace.params.train_command(dataset, recipe)


def _state(
    workspace: Workspace, stage: Stage, partition: Partition, upstream: dict[str, State], *, keep: bool
) -> State:
    folder = workspace.folder(stage.name, *partition.key)
    try:
        artifacts.steady(folder, lambda: artifacts.check_sizes(folder, manifests.read_manifest(folder, stage.name)))
    except MissingError:
        return State(stage.name, Status.MISSING)
    except CorruptError as error:
        return State(stage.name, Status.DAMAGED, error.found, stage.name)
    made = workspace.made(stage.name, *partition.key)
    try:
        digests = depends(workspace, stage, partition)
    except (MissingError, CorruptError) as error:
        return State(stage.name, Status.UNKNOWN, error.found)
    for dep in (upstream[dep] for dep in inputs(stage, partition) if dep in upstream):
        if dep.status is Status.STALE:
            return State(stage.name, Status.STALE, f"{dep.stage} is out of date", dep.root)
    if made.fingerprint == fingerprint(digests):
        return State(stage.name, Status.FRESH)
    if made.refreshed and made.fingerprint == fingerprint(digests, refresh=True):
        return State(stage.name, Status.KEPT, "trained on older data")
    extended = made.fingerprint == fingerprint(digests, extended=True)
    if extended and ("tokens" not in digests or same_cut(workspace, partition)):
        return State(stage.name, Status.KEPT, "labels were added without a rebuild; a refresh rebuilds it")
    changed = differing(dict(made.depends), digests)
    if keep and stage.name == "encoder" and only_inputs(changed):
        return State(stage.name, Status.KEPT, f"trained on older data: {' and '.join(changed)} changed")
    descriptions = [_describe_change(part, made, partition.settings(stage.name)) for part in changed]
    return State(stage.name, Status.STALE, f"{' and '.join(descriptions) or 'its record'} changed", stage.name)


def _describe_change(part: str, made: Made, settings: Any) -> str:
    """Return the name of a changed part; of settings also the names of those with another value."""
    if part != _SETTINGS or not made.settings:
        return part
    if made.settings == plain(settings):
        return f"{_CODE} or order of parts"  # the record has no order
    names = other_settings(made, settings)
    others = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    return f"{part} ({', '.join(names[:_MAX_NAMED] + others)})" if names else part


def depends(workspace: Workspace, stage: Stage, partition: Partition) -> dict[str, str]:
    """Return a digest of each thing that the result of ``stage`` depends on, by name.

    A model folder that is absent counts as unchanged if nothing else has changed: its results stay usable. Raises
    MissingError if there is no such input, CorruptError if its manifest cannot be read.
    """
    dataset, _ = partition.key
    digests = {_SETTINGS: content_hash(in_use(partition.settings(stage.name))), _CODE: stage.code_version}
    if stage.needs_source:
        digests[SOURCE] = source_digest(workspace, dataset)
    if stage.compares:
        return digests | _evaluation_digests(workspace, dataset)
    for dep in inputs(stage, partition):
        digests[dep] = _input_digest(workspace, stage, dep, partition)
    outside = outside_digests(workspace, stage, partition)
    digests |= {part: digest for part, digest in outside.items() if digest is not None}
    if absent := [part for part in outside if part not in digests]:
        recorded = workspace.made(stage.name, *partition.key).depends
        unchanged = all(recorded.get(part) == digest for part, digest in digests.items())
        digests |= {part: recorded.get(part, "") if unchanged else "" for part in absent}
    return digests


def _input_digest(workspace: Workspace, stage: Stage, dep: str, partition: Partition) -> str:
    try:
        return manifests.read_manifest(input_folder(workspace, dep, partition), dep).digest()
    except MissingError as error:
        if dep == "tokens" and _tokenised_with(workspace, partition.dataset.name, partition.dataset.tokens):
            raise _untokenised_error(partition) from error
        dataset, recipe = partition.key
        do, needed = STAGES[dep].command(dataset, recipe), {*inputs(stage, partition), *inputs(STAGES[dep], partition)}
        of_dataset = STAGES[dep].scope == "dataset"
        if (
            recipe
            and not of_dataset
            and not all(input_folder(workspace, name, partition).is_dir() for name in needed - {dep})
        ):
            do = workspace.params.train_command(dataset, recipe)  # others are missing too
        raise MissingError(error.found, expected=f"the artefact of {dep}", do=f"make it first: {do}") from error


def _tokenised_with(workspace: Workspace, dataset: str, settings: TokensConfig) -> bool:
    """Return True if the artefact of tokens was made with ``settings``."""
    return workspace.made("tokens", dataset).depends.get(_SETTINGS) == content_hash(in_use(settings))


def _untokenised_error(partition: Partition) -> MissingError:
    """Return the error of an encoder that the stage tokens left out: to run the stage again would change nothing."""
    return MissingError(
        f"no tokens of the encoder {bare(str(partition.tokenizer))}, which the stage tokens left out",
        expected="an encoder whose tokenizer can encode the texts of the dataset",
        do=f"see why: xc run tokens --dataset {partition.key[0]} --force; then fix the encoder, or choose another",
    )


def _evaluation_digests(workspace: Workspace, dataset: str) -> dict[str, str]:
    """Return the digest of the evaluation of each recipe of a dataset; an empty string if it cannot be used."""

    def digest(recipe: str) -> str:
        try:
            state = states(workspace, workspace.params.experiment(dataset, recipe))["evaluation"]
        except XCError:  # a wrong setting, which the leaderboard reports
            return ""
        return workspace.digest("evaluation", dataset, recipe) if state.status.usable else ""

    return {f"evaluation of {recipe}": digest(recipe) for recipe in workspace.params.recipes(dataset)}
