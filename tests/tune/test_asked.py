"""What a study is asked to do, and what its trials share with others; nothing is trained."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.conftest import TOY_CHANGES, write_json
from tests.encoders.conftest import bert as bert
from xc_core.chain import Workspace
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, MissingError, MovedError, UsageError
from xc_core.tune.asked import Tuning
from xc_core.tune.metric import Metric
from xc_core.tune.record import study_folder
from xc_core.tune.space import TRIAL_STAGES, Space
from xc_core.tune.storage import importances, opened
from xc_core.tune.trial import Trial, forget

RULE = {"fusion.rule.weight": {"range": [0, 1]}}


def tuning(workspace: Workspace, space: dict[str, Any], recipe: str = "ngame", **changes: Any) -> Tuning:
    mean = Metric.of("mean")
    return Tuning.of(workspace, "toy", recipe, changes or TOY_CHANGES, Space.of(space), name="study", metric=mean)


def test_whole_ends_of_a_setting_with_fractions_are_a_continuous_range(workspace: Workspace) -> None:
    assert tuning(workspace, RULE).space.size is None


def test_values_that_only_together_are_refused_are_found_before_a_trial(workspace: Workspace) -> None:
    space = {"classifier.table.lr": [0.01, 50.0], "classifier.table.weight_decay": [0.0, 1.0]}
    with pytest.raises(ConfigError, match=r"lr 50\.0 and weight_decay 1\.0"):
        tuning(workspace, space, encoder={"epochs": 1.0})


def test_one_refused_value_among_many_is_found_before_a_trial(workspace: Workspace) -> None:
    values = [*range(1, 1000), 0]
    with pytest.raises(ConfigError, match="found hardest 0"):
        tuning(workspace, {"classifier.loss.hardest": values, "classifier.seed": [0, 1]})


def test_a_step_with_fractions_of_a_setting_without_is_refused_before_a_trial(workspace: Workspace) -> None:
    """Every value that is drawn is a fraction, 3.0 too."""
    with pytest.raises(ConfigError, match=r"hardest = 2\.0"):
        tuning(workspace, {"classifier.loss.hardest": {"range": [2, 4], "step": 0.5}})


@pytest.mark.parametrize(("lr", "drawn"), [(0.0123, True), (0.0123456, False), (0.5, False)])
def test_the_recipes_own_settings_are_a_trial_if_the_space_has_them_as_they_are(
    workspace: Workspace, lr: float, drawn: bool
) -> None:
    """A drawn fraction has four digits, so one with more would be tried as another."""
    workspace.params.declare_experiment("toy", "mine", "ngame", {"classifier": {"table": {"lr": lr}}})
    own = tuning(workspace, {"classifier.table.lr": {"log": [0.001, 0.1]}}, "mine", encoder={"epochs": 1.0})
    assert own.defaults() == ({"classifier.table.lr": lr} if drawn else None)


@pytest.mark.parametrize(
    ("space", "fixed", "refused"),
    [
        ({"encoder.loss": ["triplet", "supcon"]}, {"encoder": {"loss": {"kind": "supcon"}}}, True),
        ({"encoder.loss.kind": ["triplet", "supcon"]}, {"encoder": {"loss": "supcon"}}, True),
        ({"encoder.loss": [{"kind": "supcon"}, {"kind": "triplet"}]}, {"encoder": {"loss": "supcon"}}, True),
        ({"fusion.rule": ["tree", "lightgbm"]}, {"fusion": {"rule": {"weight": 0.5}}}, False),
        ({"scores.lexical": [None, {}]}, {"scores": {"lexical": {"kind": "characters"}}}, False),
    ],
)
def test_a_fixed_part_is_not_drawn_under_its_other_name(
    workspace: Workspace, space: dict[str, Any], fixed: dict[str, Any], refused: bool
) -> None:
    """Trials had the drawn loss, and the fixed one was lost without a word."""
    with pytest.raises(UsageError, match="in --set and in the space") if refused else nullcontext():
        tuning(workspace, space, **fixed)


def test_settings_of_a_registered_recipe_in_params_yaml_are_not_used_and_named(workspace: Workspace) -> None:
    """`xc tune --recipe ngame` searched around the recipe as registered, without a word of what xc train had set."""
    own = {"encoder": {"encoder": {"name": "bag"}, "loss": {"kind": "supcon"}}, "classifier": {"epochs": 2.0}}
    for recipe in ("ngame", "mine"):
        workspace.params.declare_experiment("toy", recipe, "ngame", own)
    space: dict[str, Any] = {"classifier.epochs": [1.0, 2.0]}
    fixed: dict[str, Any] = {"encoder": {"loss": "supcon"}}
    assert tuning(workspace, space, **fixed).unused() == ["encoder.encoder.name"]
    assert tuning(workspace, space, "mine", **fixed).unused() == [], "a variant is searched as params.yaml has it"


def test_the_dataset_has_the_tokenizers_of_all_trials(workspace: Workspace, bert: Path) -> None:
    own = tuning(workspace, {"encoder.encoder.name": ["bag", str(bert)]}, encoder={"epochs": 0.0}).prepared()
    assert set(own.base.dataset.settings("tokens").tokenizers) >= {"wordpiece", str(bert)}
    with pytest.raises(MissingError, match="which the stage tokens left out"):
        own.definition()  # the tiny model cannot encode these texts, so the study is refused before its first trial
    own = tuning(workspace, RULE).prepared()
    assert (own.definition()["pruner"], replace(own, prune=False).definition()["pruner"]) == ("lowest quarter", "none")


def test_validation_documents_without_labels_judge_no_trial(workspace: Workspace) -> None:
    rows = [{"uid": f"V{number}", "title": f"river0 v{number}", "target_ind": []} for number in range(3)]
    write_json(workspace.raw("toy") / "val.json.gz", rows)
    workspace.params.declare_dataset("toy", IngestConfig(validation_fraction=0, allow=("empty-labels",)))
    with pytest.raises(MissingError, match="no validation documents with labels of toy"):
        tuning(workspace, RULE).prepared()


def test_a_study_of_an_earlier_version_goes_on(workspace: Workspace, tmp_path: Path) -> None:
    """It was started without a digest of the token ids."""
    own = tuning(workspace, RULE).prepared()
    asked = {name: value for name, value in own.definition().items() if name != "tokenisation"}
    opened(tmp_path, own).set_user_attr("asked", asked)
    assert opened(tmp_path, own).user_attrs["asked"] == asked
    own.check_data(asked)
    with pytest.raises(MovedError, match="another corpus of toy"):
        own.check_data({**asked, "corpus": "another"})


def trial(workspace: Workspace, study: str, depth: int) -> Trial:
    root = study_folder(workspace, "toy", study)
    return Trial.of(workspace, root, tuning(workspace, RULE).base, {"fusion": {"rule": {"depth": depth}}})


def test_a_trial_may_take_over_what_its_study_the_project_and_other_studies_have(workspace: Workspace) -> None:
    own, same, other = trial(workspace, "study", 1), trial(workspace, "study", 2), trial(workspace, "other", 2)
    folders = [one.folder("encoder", "toy", one.name) for one in (same, other)]
    folders.insert(1, workspace.folder("encoder", "toy", "ngame"))
    for folder in (*folders, workspace.folder("encoder", "another", "ngame")):
        folder.mkdir(parents=True)
    assert list(dict.fromkeys(own._other_folders("encoder"))) == folders, "the nearest first"


def test_a_trial_that_is_forgotten_leaves_nothing(workspace: Workspace) -> None:
    one, kept = trial(workspace, "study", 1), trial(workspace, "study", 2)
    one.root.mkdir(parents=True)  # the folder of the study
    places = [
        [own.scratch(kind, stage.name, "toy", own.name) for kind in ("run", "cost", "lock") for stage in TRIAL_STAGES]
        for own in (one, kept)
    ]
    for place in (*places[0], *places[1]):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    (one.data / "toy" / one.name / "fusion").mkdir(parents=True)
    forget(one, "toy", one.name)
    assert not any(place.exists() for place in (*places[0], one.data / "toy" / one.name))
    assert all(place.exists() for place in places[1])


def test_the_setting_that_decides_matters_most_and_few_or_equal_trials_say_nothing() -> None:
    def study(trials: int, weight: float) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        own = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
        own.optimize(
            lambda drawn: weight * drawn.suggest_float("decides", 0, 1) + 0 * drawn.suggest_float("idle", 0, 1),
            n_trials=trials,
        )
        return own

    found = importances(study(40, 1.0))
    assert next(iter(found)) == "decides" and sum(found.values()) == pytest.approx(1)
    assert set(importances(study(10, 1.0))) == {"decides", "idle"}
    assert importances(study(9, 1.0)) == importances(study(10, 0.0)) == {}
