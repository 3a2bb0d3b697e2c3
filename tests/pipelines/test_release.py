"""The asset ``model``: how it registers the packed model, with the limit of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest
from mlflow.exceptions import MlflowException

from assets.release import registry
from assets.release.gate import Line, Verdict
from assets.release.judge import Judge, acceptance_folder
from assets.release.registry import Candidate, Released
from assets.resources import Dvc
from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core.chain import Workspace
from xc_core.chain.status import Status, states
from xc_core.data.acceptance import draw
from xc_core.data.corpus import Corpus
from xc_core.errors import ConfigError

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = pytest.mark.filterwarnings("ignore")

KEY = dg.MultiPartitionKey({"dataset": "toy", "recipe": "ngame"})
Record = Callable[[Workspace], Recorded]


@dataclass(frozen=True)
class Version:
    """A version of the registered model."""

    version: str
    name: str = "xc-toy"
    source: str = "models:/xc-toy"
    tags: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def toy(record: Record, trained: Workspace) -> Recorded:
    """The trained project; its packed model is version 3."""
    recorded = record(trained)
    recorded.mlflow.search_model_versions.return_value = [Version("3")]
    return recorded


def judged(monkeypatch: pytest.MonkeyPatch, passes: bool) -> list[tuple[str, Any]]:
    """Let the gate pass or refuse; return what it was asked: its version and that of the champion."""
    asked: list[tuple[str, Any]] = []

    def judge(self: Judge, version: Any, champion: Any | None) -> Verdict:
        asked.append((version.version, None if champion is None else champion.version))
        return Verdict((Line("tail recall@5", passes, "10.00 against 20.00"),), "40 documents")

    monkeypatch.setattr(Judge, "__call__", judge)
    return asked


def run(recorded: Recorded) -> tuple[dict[str, Any], dg.AssetCheckEvaluation]:
    """Run the asset; return what it reports, and the result of the check gate."""
    result = recorded.run("retrain", KEY, asset_selection=[dg.AssetKey("model")])
    assert result.success
    (event,) = result.asset_materializations_for_node("model")
    (gate,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "gate"]
    return {
        name: event.metadata[name].value for name in ("version", "champion", "gate") if name in event.metadata
    }, gate


def moved(recorded: Recorded) -> list[tuple[str, str]]:
    """Return (alias, version) of every alias that was set, in order."""
    return [call.args[1:] for call in recorded.mlflow.set_registered_model_alias.call_args_list]


def test_a_registry_at_another_address_is_asked_first(toy: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of one that is down named the tracking store, which had answered, and came after minutes of retries."""
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://registry:5000")
    monkeypatch.setenv("XC_RETRY_SECONDS", "0")
    toy.mlflow.search_registered_models.side_effect = MlflowException("refused")
    result = toy.run("retrain", KEY, asset_selection=[dg.AssetKey("model")])
    assert "no answer from MLflow at http://registry:5000 (refused)" in str(result.all_events)


def test_a_model_that_passes_the_gate_becomes_champion(toy: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = judged(monkeypatch, True)
    aliases = {"champion": Version("2")}
    toy.mlflow.get_model_version_by_alias.side_effect = lambda name, alias: aliases[alias]
    toy.mlflow.set_registered_model_alias.side_effect = lambda name, alias, number: aliases.update(
        {alias: Version(number)}
    )
    found, gate = run(toy)
    assert asked == [("3", "2")]
    assert (found["version"], found["champion"], gate.passed) == (3, True, True)
    assert moved(toy) == [("previous", "2"), ("champion", "3"), ("challenger", "3")]


def test_the_origin_of_a_model_is_the_run_that_registers_it(toy: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Candidate] = []

    def register(client: Any, artifact_root: str, candidate: Candidate) -> Released:
        registered.append(candidate)
        return Released(3, True, "version 3 is champion")

    monkeypatch.setattr(registry, "register", register)
    result = toy.run("retrain", KEY, asset_selection=[dg.AssetKey("model")])
    assert [candidate.origin.tags["dagster_run"] for candidate in registered] == [result.run_id]


@pytest.mark.parametrize("passes", [True, False])
def test_the_acceptance_set_is_recorded_in_dvc(
    record: Record, copied: Workspace, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """Without it nobody else could judge a model on the same documents."""
    toy, folder, recorded = record(copied), acceptance_folder(copied, "toy"), list[Any]()
    draw(copied.open(Corpus, "toy"), "toy", folder)
    judged(monkeypatch, passes)
    toy.mlflow.search_model_versions.return_value = [Version("3")]
    toy.mlflow.get_model_version_by_alias.return_value = Version("3" if passes else "2")
    monkeypatch.setattr(Dvc, "track_source", lambda dvc, source: recorded.append((dvc.root, source)))
    run(toy)
    assert recorded == [(str(copied.root), folder)]


def test_a_refused_model_is_a_failed_check_that_names_the_line(toy: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, False)
    toy.mlflow.get_model_version_by_alias.return_value = Version("2")
    found, gate = run(toy)
    assert (found["champion"], gate.passed, gate.severity) == (False, False, dg.AssetCheckSeverity.ERROR)
    assert gate.metadata["verdict"].value.startswith("version 3 is refused: tail recall@5: 10.00 against 20.00")
    lines = gate.metadata["lines"]
    assert isinstance(lines, dg.TableMetadataValue)
    assert [row.data["result"] for row in lines.records if row.data["line"] == "tail recall@5"] == ["failed"]
    assert str(gate.partition) == str(KEY)
    assert moved(toy) == []


def test_a_model_whose_settings_changed_after_it_was_packed_is_not_registered(
    record: Record, copied: Workspace, edit: Callable[[Workspace, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings, and data, of that moment are recorded as its origin."""
    toy, asked = record(copied), judged(monkeypatch, True)
    toy.during = lambda _: edit(copied, {"experiments/toy_ngame/stages/model": {"min_P_at_1": 0.5}})
    result = toy.run("retrain", KEY, asset_selection=[dg.AssetKey("model")])
    (failed,) = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    assert "a model of toy/ngame that is out of date" in str(failed)
    assert (result.success, asked, moved(toy)) == (False, [], [])
    toy.mlflow.search_model_versions.assert_not_called()


def test_a_recipe_that_does_not_compete_is_not_registered(
    record: Record, copied: Workspace, edit: Callable[[Workspace, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, asked = record(copied), judged(monkeypatch, True)
    another = {"dataset": "toy", "recipe": "another", "base": "ngame"}
    edit(copied, {"datasets/toy/release": {"recipes": ["another"]}, "experiments/toy_another": another})
    found, gate = run(toy)
    message = "not registered: datasets.toy.release.recipes does not name ngame"
    assert found == {"champion": False, "gate": message}, "xc demo prints both"
    assert (gate.passed, asked, moved(toy)) == (True, [], [])
    toy.mlflow.search_model_versions.assert_not_called()


def test_a_mistyped_recipe_that_competes_is_a_failed_check(
    record: Record, copied: Workspace, edit: Callable[[Workspace, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would ever be registered."""
    toy, asked = record(copied), judged(monkeypatch, True)
    edit(copied, {"datasets/toy/release": {"recipes": ["ngmae"]}})
    found, gate = run(toy)
    assert "datasets.toy.release.recipes names 'ngmae' (nearest: 'ngame')" in found["gate"]
    assert (gate.passed, asked, moved(toy)) == (False, [], [])


def test_by_the_manual_policy_the_champion_stays(
    record: Record, copied: Workspace, edit: Callable[[Workspace, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = record(copied)
    judged(monkeypatch, True)
    toy.mlflow.search_model_versions.return_value = [Version("3")]
    toy.mlflow.get_model_version_by_alias.return_value = Version("2")
    edit(copied, {"datasets/toy/release": {"policy": "manual", "recipes": ["ngame"]}})
    found, gate = run(toy)
    assert (found["champion"], gate.passed, moved(toy)) == (False, True, [("challenger", "3")])


@pytest.mark.parametrize(
    ("release", "found"),
    [
        ({"policy": "sometimes"}, "policy"),
        ({"max_slower": 0.5}, "max_slower"),
        ({"recipe": ["ngame"]}, "nearest: 'recipes'"),
    ],
)
def test_a_wrong_release_setting_is_refused(
    copied: Workspace, edit: Callable[[Workspace, Any], None], release: dict[str, Any], found: str
) -> None:
    edit(copied, {"datasets/toy/release": release})
    with pytest.raises(ConfigError, match=found):
        copied.params.dataset("toy")


def test_how_models_are_released_makes_no_artefact_stale(
    copied: Workspace, edit: Callable[[Workspace, Any], None]
) -> None:
    edit(copied, {"datasets/toy/release": {"policy": "manual", "max_larger": 9.0}})
    found = states(copied, copied.params.experiment("toy", "ngame"))
    assert {state.status for state in found.values()} == {Status.FRESH}
