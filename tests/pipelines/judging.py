"""Changes a finished artefact, with a matching manifest, and runs one asset check on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.partitions import experiment_key, sync
from pipelines.definitions import build
from tests.pipelines.conftest import QUIET
from xc_core.artifacts import MADE, Build, building, read_made
from xc_core.chain import STAGES, Workspace
from xc_core.manifests import MANIFEST, read_manifest


@contextmanager
def rewritten(folder: Path) -> Iterator[Build]:
    """Yield a copy of an artefact's files and facts, to be changed. It replaces the artefact, with a new manifest."""
    with building(folder, kind=read_manifest(folder).kind) as build:
        shutil.copytree(folder, build.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST, MADE))
        build.origin = read_made(folder)
        build.facts |= build.origin.facts
        yield build


@dataclass(frozen=True)
class Judged:
    """The result of a check."""

    passed: bool
    facts: dict[str, Any]
    went_on: bool
    """Whether an asset downstream of the checked one was materialised in the same run."""


Judge = Callable[[Workspace, str], Judged]


@pytest.fixture
def own(trained: Workspace, tmp_path: Path) -> Workspace:
    """A copy of those artefacts of the trained toy pipeline that have checks, to be damaged."""
    unread = ("raw", "tokens", "encoder", "embeddings", "negatives", "fusion", "model", "leaderboard", ".xc")
    copied = shutil.copytree(trained.root, tmp_path / "own", ignore=shutil.ignore_patterns(*unread))
    return Workspace(Path(copied))


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """One instance in memory for all checks of a module: no check depends on another one."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def judge(instance: dg.DagsterInstance, trained: Workspace) -> Judge:
    """Run one check as a job does: after its asset, before the asset that follows."""
    sync(instance, trained)

    def run(workspace: Workspace, name: str) -> Judged:
        result = run_check(workspace, instance, name)
        (evaluation,) = result.get_asset_check_evaluations()
        facts = {key: value.value for key, value in evaluation.metadata.items()}
        made = {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}
        return Judged(evaluation.passed, facts, "next" in made)

    return run


def run_check(workspace: Workspace, instance: dg.DagsterInstance, name: str) -> dg.ExecuteInProcessResult:
    """Run the check ``name`` between a stand-in for its asset and an asset ``next`` that needs it."""
    definitions = build(workspace)
    checks = definitions.asset_checks or []
    check, spec = next((check, spec) for check in checks for spec in check.check_specs if spec.name == name)
    stage = STAGES[spec.asset_key.to_user_string()]
    partitions = definitions.resolve_assets_def(spec.asset_key).partitions_def

    @dg.asset(name=stage.name, partitions_def=partitions)
    def judged() -> None: ...

    @dg.asset(name="next", deps=[judged], partitions_def=partitions)
    def following() -> None: ...

    key = "toy" if stage.scope == "dataset" else experiment_key("toy", "ngame")
    return dg.materialize(
        [judged, following, check], partition_key=key, resources=definitions.resources, instance=instance,
        run_config=QUIET, raise_on_error=False,
    )  # fmt: skip
