"""The sampler one-at-a-time: its trials, the intervals of its objective, what is shown; nothing is trained."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES
from tests.tune.records import BASE, CHANGES, change, changes, gain, trial
from xc_core.chain import Workspace
from xc_core.chain.experiment import resolve
from xc_core.errors import ConfigError
from xc_core.metrics import paired
from xc_core.metrics.ranking import PerDocument
from xc_core.metrics.stored import StoredFigures
from xc_core.params import plain, put
from xc_core.recipes import Recipe
from xc_core.seeds import generator
from xc_core.tune import one_at_a_time
from xc_core.tune.asked import Tuning
from xc_core.tune.metric import Metric
from xc_core.tune.one_at_a_time import single_changes
from xc_core.tune.record import TrialOutcome, TrialRecord
from xc_core.tune.report import note, summary, table
from xc_core.tune.space import Space

# the plan of trials


def ngame(values: Any) -> Recipe:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        put(nested, name, value)
    return resolve("ngame", "ngame", nested)


POOL: dict[str, Any] = {
    "encoder.epochs": [3.0, 1, 2],
    "encoder.loss": ["supcon", "triplet", {"kind": "supcon"}],
    "encoder.loss.margin": {"range": [0.1, 0.5], "step": 0.1},
    "clusters.size": {"range": [4, 12], "step": 4},
    "classifier.table.lr": [0.02, 0.01],
    "classifier.seed": [0, 1],
    "scores.frequency": [None, {}],
    "scores.neighbours": [None, {}],
    "fusion.rule": ["sum", "tree"],
    "fusion.rule.depth": [7],
    "fusion.candidates": {"choices": [50, 20]},
}


def naive_plan(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values of each trial, by settings in plain form and one loop."""
    rows: list[dict[str, Any]] = [{}]
    known = [plain(ngame({}))]
    for stage in ("fusion", "scores", "classifier", "negatives", "clusters", "embeddings", "encoder"):
        for name in sorted(name for name in space if name.startswith(f"{stage}.")):
            spec = space[name]
            values = spec if isinstance(spec, list) else spec.get("choices", [])
            if not values:
                at, last, step = (Decimal(str(number)) for number in (*spec["range"], spec["step"]))
                while at <= last:
                    values.append(int(at) if isinstance(spec["step"], int) else float(at))
                    at += step
            for value in values:
                settings = plain(ngame({name: value}))
                if settings not in known:
                    known.append(settings)
                    rows.append({name: value})
    return rows


@pytest.mark.parametrize("seed", range(30))
def test_the_plan_is_each_listed_value_that_changes_the_recipe(seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = draw.permutation(list(POOL))[: draw.integers(1, len(POOL) + 1)].tolist()
    space = {name: POOL[name] for name in names}
    expected = naive_plan(space)
    read = Space.of(space, fewest=1).listed()
    if len(expected) == 1:
        with pytest.raises(ConfigError, match="only values that the recipe has already"):
            single_changes(read, ngame)
    else:
        assert list(single_changes(read, ngame)) == expected


def test_the_example_of_the_runbook_is_a_space(workspace: Workspace) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "runbook.md").read_text("utf-8")
    example = re.search(r"^```yaml\n(.*?)^```", page.partition("## One setting at a time")[2], re.S | re.M)
    assert example is not None
    space = workspace.root / "space.yaml"
    space.write_text(example[1])
    plan = single_changes(Space.read(space, fewest=1).listed(), ngame)
    assert [next(iter(values.items())) for values in plan[1:]] == [
        ("fusion.rule", "sum"), ("scores.frequency", None), ("classifier.epochs", 1), ("classifier.epochs", 3),
        ("classifier.epochs", 5), ("classifier.seed", 1), ("classifier.seed", 2),
    ]  # fmt: skip


def tuning(workspace: Workspace, space: dict[str, Any], recipe: str = "ngame", **settings: Any) -> Tuning:
    given, how = Space.of(space, fewest=1), {"sampler": "one-at-a-time", "prune": False}
    mean = Metric.of("mean")
    return Tuning.of(workspace, "toy", recipe, settings or TOY_CHANGES, given, name="study", metric=mean, **how)


@pytest.mark.parametrize(
    ("space", "found"),
    [
        ({"fusion.rule.weight": {"range": [0, 1]}}, "fusion.rule.weight: {'range': [0, 1]}"),
        ({"fusion.rule.depth": {"range": [1, 7]}}, "fusion.rule.depth: {'range': [1, 7]}"),
        ({"classifier.table.lr": {"log": [0.001, 0.1]}}, "classifier.table.lr: {'log': [0.001, 0.1]}"),
        ({"fusion.rule.depth": [7], "scores.frequency": [{}]}, "the recipe has already: fusion.rule.depth, scores."),
        ({"encoder.loss.scale": [2.0]}, "encoder.loss.scale"),
        ({"encoder.refit": [True]}, "encoder.refit, which changes the documents"),
    ],
)
def test_a_space_without_single_changes_is_refused_before_a_trial(
    workspace: Workspace, space: dict[str, Any], found: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(found)):
        tuning(workspace, space)


def test_values_that_only_exclude_each_other_are_tried_each(workspace: Workspace) -> None:
    """No trial has both, so no combination of them is checked."""
    own = tuning(workspace, {"fusion.rule": ["sum"], "fusion.rule.depth": [2]})
    assert list(own.plan) == [{}, {"fusion.rule": "sum"}, {"fusion.rule.depth": 2}]


def test_a_setting_may_be_fixed_and_in_the_space(workspace: Workspace) -> None:
    """The fixed value, or that of the variant, is the one that the others are compared with."""
    values = {"classifier.table.lr": [0.01, 0.02, 0.03]}
    fixed_lr = {"classifier": {"table": {"lr": 0.03}}}
    others = [{}, {"classifier.table.lr": 0.01}, {"classifier.table.lr": 0.02}]
    assert list(tuning(workspace, values, **fixed_lr).plan) == others
    workspace.params.declare_experiment("toy", "mine", "ngame", fixed_lr)
    own = tuning(workspace, values, "mine", encoder={"epochs": 1.0}).prepared()
    assert (list(own.plan), own.definition()["base values"]) == (others, {"classifier.table.lr": 0.03})
    assert "base values" not in replace(own, sampler="tpe").definition(), "studies of earlier versions lack them"


def test_a_setting_in_the_space_is_named_if_trials_do_not_have_its_value_of_params_yaml(workspace: Workspace) -> None:
    workspace.params.declare_experiment("toy", "ngame", "ngame", {"classifier": {"table": {"lr": 0.03}}})
    assert tuning(workspace, {"classifier.table.lr": [0.01]}, encoder={"epochs": 1.0}).unused() == [
        "classifier.table.lr"
    ]


# the intervals


def drawn_figures(random: np.random.Generator, documents: int) -> tuple[PerDocument, PerDocument]:
    """Return figures of two models of the same documents, about one in five of which they answer differently."""
    positives = random.integers(1, 6, documents)
    den = {"P_at_1": np.ones(documents), "P_at_5": np.ones(documents), "PSP_at_5": positives * 3.5}
    models = []
    hits = np.minimum(random.integers(0, 6, documents), positives)
    for _ in range(2):
        differs = random.random(documents) < 0.2
        own = np.where(differs, np.minimum(random.integers(0, 6, documents), positives), hits)
        num = {"P_at_1": (own > 1) * 1.0, "P_at_5": own / 5, "PSP_at_5": own * 3.5 * random.uniform(0.8, 1.0)}
        models.append(PerDocument(num, den))
    return models[0], models[1]


@pytest.mark.parametrize("text", ["mean", "P@1", "PSP@5", "P@1=2,P@5=1", "P@1=1,PSP@5=3"])
def test_the_interval_of_the_objective_is_that_of_resamples_of_the_weighted_mean(text: str) -> None:
    """By hand: the objective of both models in each resample of documents, and quantiles of the differences."""
    metric, documents = Metric.of(text), 400
    models = drawn_figures(np.random.default_rng(5), documents)
    found = paired.differences(*(metric.per_document(model) for model in models))["objective"]
    random, differences = generator(0, "paired"), []
    for _ in range(paired.RESAMPLES):
        rows = random.integers(0, documents, documents)
        ours, theirs = (metric.value(model.total(rows)) for model in models)
        differences.append(ours - theirs)
    low, high = np.quantile(differences, [0.025, 0.975])
    ours, theirs = (metric.value(model.total()) for model in models)
    assert found.points == pytest.approx(ours - theirs)
    exact = text in ("P@1", "PSP@5", "P@1=2,P@5=1")
    assert [found.low, found.high] == pytest.approx([low, high], abs=1e-9 if exact else 0.02 * (high - low))


# what is shown


def test_the_table_has_a_row_per_change() -> None:
    head, _, *rows = table(changes(BASE, *CHANGES), 1).splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (head, *rows)]
    assert cells == [
        ["trial", "setting", "recipe", "value", "P@1", "P@5", "PSP@5", "time"],
        ["1", "fusion.rule", "tree", "sum", "+2.00 [+1.00, +3.00]", "-1.50 [-2.50, -0.50]", "+0.50 [-0.50, +1.50]",
         "1.50"],
        ["2", "encoder.loss.margin", "0.3", "0.1", "-3.00 [-4.00, -2.00]", "+0.20 [-0.80, +1.20]",
         "+1.01 [+0.01, +2.01]", "-"],
        ["3", "encoder.loss.margin", "0.3", "0.5", "+0.00 [-1.00, +1.00]", "+0.00 [-1.00, +1.00]",
         "+0.00 [-1.00, +1.00]", "1.50"],
        ["4", "encoder.seed", "0", "1", *["+0.00 [-1.00, +1.00]"] * 3, "1.50"],
    ]  # fmt: skip
    assert len({len(row) for row in (head, *rows)}) == 1, "aligned"


def test_the_summary_says_which_changes_differ_and_how_many_would_by_chance() -> None:
    lines = summary(changes(BASE, *CHANGES)).splitlines()
    assert lines[0].endswith("all values tried; trials: 5 done, 1 failed; 15 s")
    assert lines[8:] == [
        "the recipe as it is, trial 0: P@1 50.00; P@1 60.00, P@5 30.00, PSP@5 45.00, 100 s for all stages (time 1.00)",
        "intervals above 0: fusion.rule=sum (P@1); encoder.loss.margin=0.1 (PSP@5)",
        "intervals below 0: fusion.rule=sum (P@5); encoder.loss.margin=0.1 (P@1)",
        "about 0.6 of these 12 intervals would exclude 0 by chance if no setting mattered; an interval is that of "
        "other documents, not of other seeds",
        "figures that fewer than six documents change are left out",
        "the best change that is clearly better is trial 3, encoder.loss.margin=0.5: P@1 +1.50 [+0.50, +2.50]",
        "train it:  xc train --dataset toy --recipe ngame-tuned --base ngame --budget none --set classifier.epochs=3 "
        "--set encoder.loss.margin=0.5",
    ], "trial 2 differs on 5 documents alone, and trial 4 in the seed"
    text = note(changes(BASE, *CHANGES), "xc tune ...")
    assert all(f"- {line}\n" in f"{text}\n" for line in lines[8:14]) and lines[14].partition("  ")[2] in text
    assert "- trial 5 failed (odd): fusion.rule.depth 1" in text


@pytest.mark.parametrize("trials", [(CHANGES[0],), (CHANGES[1],), (CHANGES[3],), (CHANGES[4],), ()])
def test_without_a_clear_change_none_is_recommended(trials: tuple[TrialRecord, ...]) -> None:
    record = changes(BASE, *trials)
    assert record.winner is None
    for text in (summary(record), note(record, "xc tune ...")):
        assert "no single change is clearly better by the P@1" in text
        assert "xc train" not in text
    worse = change(6, {"fusion.rule": "sum"}, 0.0, 0.0, 0.0, mean=gain(-4.0))
    assert changes(BASE, worse).winner is None


def test_a_study_without_its_first_trial_shows_nothing() -> None:
    record = changes(trial(0, state=TrialOutcome.STOPPED, values={}, own=True))
    assert summary(record).count("\n") == 0
    assert "xc train" not in note(record, "xc tune ...")


def test_a_trial_is_compared_by_the_figures_that_judge_it(tmp_path: Path) -> None:
    """After a fallback too, "fusion" has those at the default of the dial; those of the part are without a dial."""

    def figures(value: float) -> PerDocument:
        return PerDocument({"P_at_1": np.array([value])}, {"P_at_1": np.ones(1)})

    both, one = StoredFigures(tmp_path / "both.npz"), StoredFigures(tmp_path / "one.npz")
    both.write({"fusion": figures(1.0), "sum": figures(0.0)}, ["P_at_1"])
    one.write({"sum": figures(0.5)}, ["P_at_1"])
    record = trial(1, 40.0, served="sum")
    assert [one_at_a_time._served(file, record).num["P_at_1"].tolist() for file in (both, one)] == [[1.0], [0.5]]
