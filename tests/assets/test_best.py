"""Small losses do not add up: a model is also compared with the best champion so far on the same acceptance set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assets.release import aliases, promotion, registry
from assets.release import versions as released_versions
from assets.release.best import BEST, Best, best_digests
from assets.release.judge import Judge, acceptance_folder, acceptance_set
from assets.release.registry import Candidate, Released
from tests.assets.conftest import Registry
from tests.assets.test_gate import model
from tests.conftest import open_corpus
from xc_core.chain import Workspace
from xc_core.data.acceptance import AcceptanceSet, draw
from xc_core.errors import MissingError, RefusedError, StorageError, XCError
from xc_core.infer import acceptance
from xc_core.infer.acceptance import Measured

Edit = Callable[[Workspace, Any], None]

pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]
STEP = 0.009
"""Each model loses 0.9 points: less than max_drop, 1."""


@dataclass
class Gated:
    """A registry whose versions have figures of our choice, judged by the real judge."""

    versions: Registry
    workspace: Workspace
    levels: dict[int, dict[str, float]] = field(default_factory=dict)
    recalls: dict[int, float] = field(default_factory=dict)
    """Recall of the index in the files of a version, if it is not 1."""
    gone: set[int] = field(default_factory=set)
    errors: dict[int, XCError] = field(default_factory=dict)
    """What measuring a version raises."""

    def release(self, auto: bool = True, **levels: float) -> Released:
        """Register a new version with these figures."""
        number = self.versions.version()
        self.levels[number] = levels
        return self.again(number, auto)

    def again(self, number: int, auto: bool = True) -> Released:
        own = self.versions
        judge = Judge(self.workspace, "toy", "ngame")
        candidate = Candidate(own.dataset, "ngame", own.folder, own.digests[number], judge, auto=auto)
        return registry.register(own.client, "", candidate)

    def measured(self, folder: Path, _: AcceptanceSet) -> Measured:
        if (number := int(folder.name)) in self.errors:
            raise self.errors[number]
        found = model(size=2000, **self.levels[number])
        for side in (found.figures.num, found.figures.den):
            side["P_at_1"] = side["P_at_5"]
        return replace(found, recalls={"classifier": self.recalls.get(number, 1.0)})

    def download(self, version: object) -> Path:
        number = int(version.version)  # type: ignore[attr-defined]
        if number in self.gone:
            raise MissingError("no files", expected="files", do="nothing")
        return Path(str(number))

    def promote(self, number: int, reason: str | None = None) -> None:
        promotion.by_hand(self.workspace, self.versions.client, self.versions.dataset, number, reason)

    def tag(self, number: int) -> str:
        return str(self.versions.client.get_model_version(self.versions.name, str(number)).tags.get(BEST, ""))


@pytest.fixture
def gated(versions: Registry, own: Workspace, monkeypatch: pytest.MonkeyPatch) -> Gated:
    found = Gated(versions, own)
    monkeypatch.setattr(acceptance, "measured", found.measured)
    monkeypatch.setattr(released_versions, "download", found.download)
    whole: Callable[..., Path | None] = vars(registry)["own_folder"]  # that of the fixture
    monkeypatch.setattr(
        registry, "own_folder", lambda one, root: None if int(one.version) in found.gone else whole(one, root)
    )
    return found


def failed(released: Released) -> list[str]:
    assert released.verdict is not None
    return [line.name for line in released.verdict.failed]


def test_the_recall_is_that_of_the_index_in_the_registered_files(gated: Gated) -> None:
    """The artefact of the stage scores, which has a recall of 1 here, may have been made again since."""
    first = gated.release().version
    gated.recalls |= {first: 0.95, first + 1: 0.8, first + 2: 0.9}
    refused = gated.release()
    (line,) = refused.verdict.failed  # type: ignore[union-attr]
    assert (line.name, line.found, line.limit) == ("index recall", "0.800 against 0.950", "at least 0.9")
    assert gated.release().is_champion


def test_the_limits_are_those_of_the_recipe_and_of_the_dataset(gated: Gated, edit: Edit) -> None:
    gated.release()
    worse = {"P_at_5": 0.47, "tail_recall_at_5": 0.4}
    assert {"P@5", "tail recall@5"} <= set(failed(gated.release(**worse)))
    edit(gated.workspace, {"datasets/toy/release": {"max_bin_drop": 20.0}})
    names = failed(gated.release(**worse))
    assert "P@5" in names and "tail recall@5" not in names
    edit(gated.workspace, {"experiments/toy_ngame/stages/model": {"max_drop": 5.0}})
    assert gated.release(**worse).is_champion


@pytest.mark.parametrize("metric", ["P_at_5", "PSP_at_5"])
def test_losses_within_the_limit_do_not_add_up(gated: Gated, metric: str) -> None:
    name = metric.replace("_at_", "@")
    assert gated.release(**{metric: 0.5}).is_champion
    assert gated.release(**{metric: 0.5 - STEP}).is_champion
    for step in range(2, 6):
        refused = gated.release(**{metric: 0.5 - step * STEP})
        assert f"{name} against the best" in failed(refused)
    (line,) = (line for line in refused.verdict.lines if line.name == f"{name} against the best")  # type: ignore[union-attr]
    assert line.limit == "at most 1 point less than version 1, the best champion so far on this acceptance set"
    assert line.found.startswith("45.50 against 50.00 (-4.50 [")
    assert gated.versions.aliases()["champion"] == 2
    assert gated.release(**{metric: 0.5 - STEP}).is_champion, "no worse than the limit allows"


def test_both_metrics_are_bounded_by_their_own_best_champions(gated: Gated) -> None:
    """Neither of the two may fall bit by bit while the other one rises."""
    for step in range(2):
        assert gated.release(P_at_5=0.5 + step * STEP, PSP_at_5=0.5 - step * STEP).is_champion
    assert failed(gated.release(P_at_5=0.6, PSP_at_5=0.5 - 2 * STEP)) == ["PSP@5 against the best"]
    assert gated.release(P_at_5=0.6, PSP_at_5=0.5).is_champion


def test_a_better_champion_raises_the_level(gated: Gated) -> None:
    gated.release(P_at_5=0.4)
    assert gated.release(P_at_5=0.5).is_champion
    assert gated.release(P_at_5=0.5 - STEP).is_champion
    refused = gated.release(P_at_5=0.5 - 2 * STEP)
    assert failed(refused) == ["P@5 against the best"]
    assert "than version 2, the best champion" in refused.message


def test_the_level_starts_again_from_a_version_that_a_person_promoted_with_a_reason(gated: Gated) -> None:
    for step in range(3):
        gated.release(P_at_5=0.5 - step * STEP)
    gated.promote(3, "the old texts were wrong")
    assert gated.tag(3) == ""
    assert gated.release(P_at_5=0.5 - 3 * STEP).is_champion
    assert failed(gated.release(P_at_5=0.5 - 4 * STEP)) == ["P@5 against the best"]


def test_a_person_who_promotes_what_passed_does_not_change_the_level(gated: Gated) -> None:
    """With the policy manual a person promotes every model."""
    for step in range(2):
        number = gated.release(auto=False, P_at_5=0.5 - step * STEP).version
        gated.promote(number)
    assert failed(gated.release(auto=False, P_at_5=0.5 - 2 * STEP)) == ["P@5 against the best"]


@pytest.mark.parametrize("by", ["rollback", "promote"])
def test_who_goes_back_to_a_version_goes_back_to_its_level(gated: Gated, by: str) -> None:
    """A champion that was taken out of service may have been the wrong one, whatever its figures."""
    gated.release(P_at_5=0.5)
    gated.release(P_at_5=0.6)
    if by == "rollback":
        aliases.roll_back(gated.versions.client, gated.versions.dataset)
    else:
        gated.promote(1)
    assert gated.versions.aliases()["champion"] == 1
    assert gated.release(P_at_5=0.5 - STEP).is_champion
    assert failed(gated.release(P_at_5=0.5 - 2 * STEP)) == ["P@5 against the best"]


def test_another_version_of_the_acceptance_set_starts_again(gated: Gated) -> None:
    for step in range(2):
        gated.release(P_at_5=0.5 - step * STEP)
    draw(open_corpus(gated.workspace), "toy", acceptance_folder(gated.workspace, "toy"))
    assert acceptance_set(gated.workspace, "toy", open_corpus(gated.workspace)).facts.version == 2
    assert gated.release(P_at_5=0.5 - 2 * STEP).is_champion
    assert failed(gated.release(P_at_5=0.5 - 3 * STEP)) == ["P@5 against the best"]


def test_a_best_champion_that_was_deleted_is_not_compared(gated: Gated) -> None:
    for step in range(2):
        gated.release(P_at_5=0.5 - step * STEP)
    gated.versions.client.delete_model_version(gated.versions.name, "1")
    released = gated.release(P_at_5=0.5 - 2 * STEP)
    assert released.is_champion and released.verdict is not None
    assert [line.found for line in released.verdict.lines if line.name == "P@5 against the best"] == [
        "not compared: the best champion so far was deleted from the registry"
    ]
    assert failed(gated.release(P_at_5=0.5 - 3 * STEP)) == ["P@5 against the best"], "the best of those that are left"


def test_a_best_champion_that_cannot_be_measured_now_refuses_the_model_and_is_not_forgotten(gated: Gated) -> None:
    """A full disk, or a server that does not answer, must not let a worse model through."""
    for step in range(2):
        gated.release(P_at_5=0.5 - step * STEP)
    gated.gone.add(1)
    refused = gated.release(P_at_5=0.5 - 2 * STEP)
    assert "P@5 against the best" in failed(refused)
    assert "version 1 cannot be measured: no files" in refused.message
    gated.gone.clear()
    assert failed(gated.release(P_at_5=0.5 - 2 * STEP)) == ["P@5 against the best"]
    assert gated.release(P_at_5=0.5).is_champion


CANNOT_READ = RefusedError("a packed model that xc cannot read", expected="labels", do="pack it again")
FULL = StorageError("a full disk", expected="space", do="free space")


@pytest.mark.parametrize("number", [1, 2], ids=["best", "champion"])
@pytest.mark.parametrize(
    ("error", "whole", "do"),
    [(CANNOT_READ, False, "--repair"), (CANNOT_READ, True, "its files are whole"), (FULL, True, "free space")],
)
def test_a_repair_is_advised_only_for_files_that_are_damaged(
    gated: Gated, monkeypatch: pytest.MonkeyPatch, number: int, error: XCError, whole: bool, do: str
) -> None:
    for step in range(2):
        gated.release(P_at_5=0.5 - step * STEP, PSP_at_5=0.5 - step * STEP)
    gated.errors[number] = error
    monkeypatch.setattr(released_versions, "is_whole", lambda version: whole)
    verdict = gated.release(P_at_5=0.5, PSP_at_5=0.5).verdict
    assert verdict is not None
    assert {line.name for line in verdict.failed} == (
        {"champion"} if number == 2 else {"P@5 against the best", "PSP@5 against the best"}
    )
    advice = verdict.refusal("toy", 3).do.partition(". To overrule the gate")[0]
    repair = f"xc promote --dataset {gated.versions.dataset} --version {number} --repair"
    assert advice == repair if do == "--repair" else advice.startswith(do)


def test_a_refused_model_does_not_count(gated: Gated) -> None:
    gated.release(P_at_5=0.5)
    assert "P@5" in failed(gated.release(P_at_5=0.4, PSP_at_5=0.9))
    assert gated.tag(2) == ""
    assert gated.release(P_at_5=0.5).is_champion


def test_champions_of_earlier_releases_start_from_themselves() -> None:
    assert Best.of(None, 1).models == {}
    old = type("Version", (), {"tags": {}})()
    assert Best.of(old, 1).models == {}


def test_of_equal_models_the_first_is_the_best(gated: Gated) -> None:
    for _ in range(2):
        gated.release(P_at_5=0.5)
    assert set(json.loads(gated.tag(2))["models"].values()) == {gated.versions.digests[1]}


def test_a_reason_starts_again_from_a_version_that_passed_too(gated: Gated) -> None:
    for step in range(2):
        assert gated.release(P_at_5=0.5 - step * STEP).is_champion
    assert gated.tag(2) != ""
    gated.promote(2, "the old texts were wrong")
    assert gated.tag(2) == ""
    assert gated.release(P_at_5=0.5 - 2 * STEP).is_champion


@pytest.mark.parametrize("tag", ["", "{", "[]", "5", '{"acceptance": 1}', '{"acceptance": 1, "models": []}'])
def test_a_tag_that_somebody_spoilt_counts_as_none(tag: str) -> None:
    """MLflow lets everybody edit tags: the gate and xc delete ended with 70."""
    version = SimpleNamespace(tags={BEST: tag})
    assert Best.of(version, 1) == Best.of(None, 1) == Best(1, {})
    assert best_digests(version) == set()
