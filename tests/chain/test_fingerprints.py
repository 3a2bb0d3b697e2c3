"""Settings in a fingerprint: all that a stage uses, and only those of the parts in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.chain.toy import NAMES, STAGES_OF, Edit, changed, partition_of, parts_of, print_of, prints, reads
from xc_core.chain import STAGES, Workspace
from xc_core.chain.dataset import Dataset, Partition
from xc_core.chain.experiment import Experiment
from xc_core.chain.fingerprints import fingerprint
from xc_core.chain.status import depends
from xc_core.errors import ConfigError
from xc_core.losses import LOSSES, Loss, SupCon
from xc_core.params import later, plain
from xc_core.plugins import HasUnused, Part
from xc_core.recipes.settings import ClustersSettings

CONFIGURED = [name for name in NAMES if name not in ("corpus", "embeddings")]


def another(value: Any) -> Any:
    """Return another value of the same kind, a little more or the opposite."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value * 0.5 + 0.01
    return (*value, value[0]) if isinstance(value, tuple) and value else value


def other_kinds(part: Part) -> Iterator[tuple[str, Part]]:
    """Yield the other parts of the family that have defaults."""
    for kind in part.table.names():
        if kind != part.kind:
            try:
                yield kind, part.table[kind]()
            except (ConfigError, TypeError):
                continue  # it has no defaults


def changed_fields(config: Any, place: str) -> Iterator[tuple[str, Any]]:
    unused = config.unused() if isinstance(config, HasUnused) else frozenset()
    for field in dataclasses.fields(config):
        if field.name not in unused:
            for name, value in variants(getattr(config, field.name), f"{place}.{field.name}"):
                try:
                    yield name, dataclasses.replace(config, **{field.name: value})
                except ConfigError:
                    continue  # not alone


def variants(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the value with one number, switch, list or part changed, for each of them that may change alone."""
    if isinstance(value, Part):
        yield from ((f"{place}.{kind}", part) for kind, part in other_kinds(value))
    if dataclasses.is_dataclass(value):
        yield from changed_fields(value, place)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from ((name, {**value, key: own}) for name, own in variants(part, f"{place}.{key}"))
            yield f"{place} without {key}", {name: own for name, own in value.items() if name != key}
        yield f"{place} in another order", dict(reversed([*value.items()]))
    elif another(value) != value:
        yield place, another(value)


def with_settings(experiment: Experiment, name: str, settings: Any) -> Partition | None:
    """Return the experiment with other settings of a stage; None if its recipe cannot have them."""
    if name == "tokens":
        return dataclasses.replace(experiment.dataset, tokens=settings)
    try:
        return dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, **{name: settings}))
    except ConfigError:
        return None


@pytest.mark.parametrize("name", CONFIGURED)
def test_every_setting_of_a_stage_is_in_its_fingerprint(name: str, trained: Workspace) -> None:
    experiment = trained.params.experiment("toy", "ngame")
    settings = experiment.settings(name)
    if name == "negatives":
        settings = dataclasses.replace(settings, k=3)  # with k = 0 nothing else is in use
    seen = {print_of(trained, name): "none"}
    for setting, config in variants(settings):
        other = with_settings(experiment, name, config)
        if other is not None:
            found = fingerprint(depends(trained, STAGES[name], other))
            assert found not in seen, f"{setting} as {seen.get(found)}"
            seen[found] = setting
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("setting", "value", "stage"),
    [
        ("encoder/epochs", 3.0, "encoder"),
        ("encoder/encoder/max_length", 12, "encoder"),
        ("encoder/order/batch_size", 16, "encoder"),
        ("encoder/loss", "supcon", "encoder"),
        ("clusters/size", 6, "clusters"),
        ("negatives/k", 5, "negatives"),
        ("classifier/epochs", 2.0, "classifier"),
        ("classifier/order/batch_size", 64, "classifier"),
        ("classifier/order", {"kind": "random", "batch_size": 32}, "classifier"),
        ("classifier/seed", 5, "classifier"),
        ("classifier/refit", False, "classifier"),
        ("classifier/enough", 50, "classifier"),
        ("classifier/dropout", 0.1, "classifier"),
        ("scores", {"classifier": {"index": "exact"}}, "scores"),
        ("scores", {"classifier": {"joined": True}}, "scores"),
        ("fusion/rows", 3, "fusion"),
        ("fusion/rule", {"depth": 3}, "fusion"),
        ("evaluation/examples", 2, "evaluation"),
        ("audit/radius", 0.5, "audit"),
        ("model/min_P_at_1", 1.0, "model"),
    ],
)
def test_a_setting_of_params_changes_its_own_stage_alone(
    setting: str, value: Any, stage: str, copied: Workspace, edit: Edit
) -> None:
    before = prints(copied)
    edit(copied, {f"{STAGES_OF}/{setting}": value})
    assert changed(before, prints(copied)) == {stage}


@pytest.mark.parametrize(
    ("setting", "value", "stages"),
    [("corpus/validation_fraction", 0.2, {"corpus"}), ("tokens/vocabulary", 500, {"tokens"})],
)
def test_a_setting_of_the_dataset_changes_its_stage(
    setting: str, value: float, stages: set[str], copied: Workspace, edit: Edit
) -> None:
    before = prints(copied)
    edit(copied, {f"datasets/toy/{setting}": value})
    assert changed(before, prints(copied)) == stages


@pytest.mark.parametrize(
    ("setting", "value", "reader"),
    [
        ("negatives/index", "exact", "negatives"),
        ("classifier/enough", 50, "classifier"),
        ("encoder/optim", {"lr": 0.5}, "encoder"),
        ("encoder/loss", "supcon", "encoder"),
        ("fusion/fallback", False, "fusion"),
        ("fusion/new_by_sum", True, "fusion"),
    ],
)
def test_a_setting_that_nothing_uses_is_in_no_fingerprint(
    setting: str, value: Any, reader: str, copied: Workspace, edit: Edit
) -> None:
    """An index without a search (k = 0), folds without refit, a training of 0 epochs, a rule that learns nothing."""
    unused = {"classifier/refit": False, "encoder/epochs": 0.0, "fusion/rule": "sum"}
    edit(copied, {f"{STAGES_OF}/{name}": own for name, own in unused.items()})
    before = print_of(copied, reader)
    edit(copied, {f"{STAGES_OF}/{setting}": value})
    assert print_of(copied, reader) == before


@pytest.mark.parametrize("name", list(STAGES))
def test_the_code_version_of_a_stage_is_in_its_fingerprint(name: str, trained: Workspace) -> None:
    stage, partition = STAGES[name], partition_of(trained, name)
    later_code = dataclasses.replace(stage, code_version=f"{stage.code_version}0")
    before, after = (depends(trained, own, partition) for own in (stage, later_code))
    assert {part for part in before if before[part] != after[part]} == {"code"}
    assert fingerprint(before) != fingerprint(after)


# a part or a field that is added later


@dataclass(frozen=True)
class Clustering:
    """The toy experiment with other settings of the stage clusters."""

    experiment: Experiment
    clusters: ClustersSettings

    @property
    def key(self) -> tuple[str, str | None]:
        return self.experiment.key

    @property
    def dataset(self) -> Dataset:
        return self.experiment.dataset

    @property
    def tokenizer(self) -> str | None:
        return self.experiment.tokenizer

    def settings(self, stage: str) -> Any:
        return self.clusters if stage == "clusters" else self.experiment.settings(stage)


@dataclass(frozen=True, kw_only=True)
class MoreSettings(ClustersSettings):
    rounds: int = later(3, was=1)


@dataclass(frozen=True, kw_only=True)
class CorrectedSettings(ClustersSettings):
    rounds: int = later(3, was=1, code_version="2")


@dataclass(frozen=True, kw_only=True)
class CarelessSettings(ClustersSettings):
    rounds: int = 1


def print_with(workspace: Workspace, settings: ClustersSettings) -> str:
    partition = Clustering(workspace.params.experiment("toy", "ngame"), settings)
    return fingerprint(depends(workspace, STAGES["clusters"], partition))


def test_a_later_field_is_in_no_fingerprint_while_it_does_what_was_done_before(trained: Workspace) -> None:
    before = print_of(trained, "clusters")
    assert print_with(trained, MoreSettings(size=4, rounds=1)) == before
    found = {print_with(trained, MoreSettings(size=4, rounds=rounds)) for rounds in (2, 3)} | {before}
    assert len(found) == 3
    assert print_with(trained, MoreSettings(size=4)) != before, "its default is another than before"
    assert print_with(trained, CarelessSettings(size=4)) != before


def test_a_code_version_of_a_later_field_concerns_its_other_values_alone(trained: Workspace) -> None:
    assert print_with(trained, CorrectedSettings(size=4, rounds=1)) == print_of(trained, "clusters")
    assert print_with(trained, CorrectedSettings(size=4)) != print_with(trained, MoreSettings(size=4))
    assert plain(CorrectedSettings(size=4)) == plain(MoreSettings(size=4)), "people see the value"


def test_a_new_part_or_a_new_field_of_a_part_that_is_not_in_use_changes_no_fingerprint(
    trained: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prints(trained)

    @dataclass(frozen=True, kw_only=True)
    class Wider(SupCon):
        wider: float = 2.0

    for kind, part in (("supcon", Wider), ("squared", type("Squared", (Loss,), {"kind": "squared"}))):
        monkeypatch.setitem(LOSSES._parts, kind, part)
    assert "squared" in LOSSES.names()
    assert prints(trained) == before


def test_a_stage_depends_on_its_settings_its_code_and_its_inputs_and_on_nothing_else(trained: Workspace) -> None:
    for name in NAMES:
        stage = STAGES[name]
        source = {"source files"} if stage.needs_source else set()
        assert set(parts_of(trained, name)) == {"settings", "code", *reads(stage)} | source
