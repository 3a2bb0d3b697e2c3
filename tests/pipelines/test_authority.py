"""One authority on staleness: ``xc status`` decides; DVC, and Dagster's checks, agree after each kind of change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from ruamel.yaml import YAML

from pipelines import sensors
from tests.pipelines.conftest import WITHOUT_LOGS, Materialised, dvc
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace, run_stage

pytestmark = [pytest.mark.chain, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
ORDER = [name for name, stage in STAGES.items() if stage.versioned]


@pytest.fixture
def project(materialised: Materialised, tmp_path: Path) -> Workspace:
    """A copy of the project in which every artefact is up to date."""
    root = Path(shutil.copytree(materialised.workspace.root, tmp_path / "project", symlinks=True))
    return Workspace(root)


def xc(project: Workspace, *arguments: str) -> str:
    """Run ``xc`` in a process of its own and return what it prints."""
    environment = {**os.environ, "XC_ROOT": str(project.root)}
    command = [sys.executable, "-m", "xc_core.cli.main", *arguments]
    done = subprocess.run(command, env=environment, cwd=project.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Verdicts:
    """The stages that are out of date because of themselves, as each of the three says; and all that are."""

    xc: set[str]
    dvc: set[str]
    every: set[str]
    dagster: set[str]


def verdicts(project: Workspace) -> Verdicts:
    rows = [json.loads(line) for line in xc(project, "status", "--json").splitlines()]
    stale = [row for row in rows if row["status"] in ("out of date", "damaged")]
    changed = json.loads(dvc(project.root, "status", "--json"))
    stages = {address.partition("@")[0] for address in changed} & set(STAGES)
    with dg.instance_for_test(WITHOUT_LOGS) as instance:
        sensor = sensors.staleness_sensor(project)
        sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
        failed = {name for name in ORDER if not _passed(instance, name)}
    return Verdicts({row["root"] for row in stale}, stages, {row["stage"] for row in stale}, failed)


def _passed(instance: dg.DagsterInstance, stage: str) -> bool:
    key = dg.AssetCheckKey(dg.AssetKey(stage), "up_to_date")
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert records, f"the sensor reports {stage}"
    event = records[0].event
    assert event is not None
    return bool(event.dagster_event.asset_check_evaluation_data.passed)


def set_value(project: Workspace, place: tuple[str, ...], value: Any) -> None:
    """Edit params.yaml as a person does."""
    yaml, path = YAML(), project.root / "params.yaml"
    content = yaml.load(path.read_text())
    inner = content
    for name in place[:-1]:
        if not inner.get(name):
            inner[name] = {}
        inner = inner[name]
    inner[place[-1]] = value
    with path.open("w") as stream:
        yaml.dump(content, stream)


def in_experiment(project: Workspace, name: str, value: Any) -> None:
    set_value(project, ("experiments", "toy_ngame", "stages", *name.split(".")), value)


def change_parameter(project: Workspace) -> None:
    in_experiment(project, "fusion.rule.depth", 2)


def change_data(project: Workspace) -> None:
    path = project.raw("toy") / "filter_labels_train.txt"
    path.write_text("0 9\n")


def damage(project: Workspace) -> None:
    path = next(path for path in project.folder("clusters", "toy", "ngame").iterdir() if path.suffix == ".npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data[:-1])


def change_code(project: Workspace) -> None:
    """Another version of the package: its pins differ, and the stage audit has another code version."""
    (project.root / "constraints.txt").write_text("xc-platform==2\n")
    (project.root / "sitecustomize.py").write_text(
        "from xc_core.chain.registry import STAGES\nobject.__setattr__(STAGES['audit'], 'code_version', '2')\n"
    )


CHANGES: dict[str, tuple[Callable[[Workspace], None], str, set[str]]] = {
    "a parameter": (change_parameter, "fusion", {"fusion", "evaluation", "model"}),
    "raw data": (change_data, "corpus", set(ORDER)),
    "damage": (damage, "clusters", {"clusters"}),
    "code": (change_code, "audit", {"audit"}),
}


def test_all_three_say_that_everything_is_up_to_date(project: Workspace) -> None:
    assert verdicts(project) == Verdicts(set(), set(), set(), set())


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what == "a parameter" else pytest.mark.slow) for what in CHANGES]
)
def test_the_three_agree_on_what_a_change_makes_stale_and_on_its_repair(
    project: Workspace, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, root, every = CHANGES[what]
    change(project)
    if what == "code":
        monkeypatch.setenv("PYTHONPATH", str(project.root))
    found = verdicts(project)
    assert found.xc == found.dvc == {root}
    assert found.every == found.dagster
    assert every <= found.every
    dvc(project.root, "repro")
    assert verdicts(project) == Verdicts(set(), set(), set(), set())


FIELDS = {
    "corpus": (("datasets", "toy", "corpus", "validation_fraction"), 0.2),
    "tokens": (("datasets", "toy", "tokens", "max_tokens"), 100),
    **{
        stage: (("experiments", "toy_ngame", "stages", stage, *field.split(".")), value)
        for stage, field, value in (
            ("encoder", "loss.margin", 0.2),
            ("clusters", "size", 3),
            ("negatives", "k", 4),
            ("classifier", "refit", False),
            ("scores", "frequency", None),
            ("fusion", "rule", {"kind": "sum"}),
            ("evaluation", "examples", 3),
            ("audit", "k", 3),
            ("model", "max_drop", 2.0),
        )
    },
}
"""One field of every stage that has any; the others of its settings stay."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", FIELDS)
def test_dvc_repro_after_a_change_of_one_field_gives_what_xc_gives(
    project: Workspace, stage: str, tmp_path: Path
) -> None:
    twin = Workspace(Path(shutil.copytree(project.root, tmp_path / "twin", symlinks=True)))
    before = digests(project)
    for workspace in (project, twin):
        set_value(workspace, *FIELDS[stage])
    dvc(project.root, "repro")
    for name in ORDER:
        run_stage(twin, name, "toy", "ngame")
    assert digests(project) == digests(twin)
    assert digests(project) != before
    assert {json.loads(line)["status"] for line in xc(project, "status", "--json").splitlines()} == {"up to date"}


def digests(project: Workspace) -> dict[str, str]:
    """Return the content of every artefact, and what it was made from, as one hash each."""
    folders = {
        name: project.folder(name, "toy", "ngame" if STAGES[name].scope == "experiment" else None) for name in ORDER
    }
    return {
        name: f"{manifests.read_manifest(folder).digest()} {artifacts.read_made(folder).fingerprint}"
        for name, folder in folders.items()
    }
