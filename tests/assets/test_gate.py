"""The release gate and its commands: which aliases move, and on which figures a champion is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets import commands, registry
from tests.assets.conftest import Registry, Store
from tests.cli.conftest import Xc
from xc_core.artifacts import read_manifest
from xc_core.data.ingest import IngestConfig
from xc_core.stages import Workspace

# MLflow and its dependencies warn of their own future; nothing here calls what they warn of
pytestmark = pytest.mark.filterwarnings("ignore")


def never(folder: Path) -> dict[str, float]:
    raise AssertionError("the champion was judged again")


def test_the_limit_itself_passes_and_a_hundredth_below_does_not(versions: Registry) -> None:
    versions.ask(versions.version(40.0), 40.0)
    assert not versions.ask(versions.version(37.49), 37.49, max_drop=2.5).is_champion
    assert versions.ask(versions.version(37.5), 37.5, max_drop=2.5).is_champion


def test_small_drops_add_up_because_each_champion_is_the_next_measure(versions: Registry) -> None:
    for precision in (40.0, 39.0, 38.0):
        assert versions.ask(versions.version(precision), precision).is_champion
    assert versions.aliases() == {"champion": 3, "challenger": 3, "previous": 2}


def test_every_model_that_asks_becomes_challenger_and_a_refused_one_moves_nothing_else(versions: Registry) -> None:
    for precision in (40.0, 41.0, 10.0, 20.0):
        versions.ask(versions.version(precision), precision)
    assert versions.aliases() == {"champion": 2, "challenger": 4, "previous": 1}


def test_an_earlier_champion_that_asks_again_changes_places_with_the_present_one(versions: Registry) -> None:
    first, second = versions.version(40.0), versions.version(40.0)
    for number in (first, second, first):
        assert versions.ask(number, 40.0).version == number
    assert versions.aliases() == {"champion": first, "challenger": first, "previous": second}


def test_a_champion_without_a_digest_of_its_test_documents_counts_as_it_was_registered(versions: Registry) -> None:
    versions.ask(versions.version(40.0, test=""), 40.0)
    assert not versions.ask(versions.version(30.0), 30.0, judge=never).is_champion
    assert versions.ask(versions.version(39.5), 39.5, judge=never).is_champion


def test_without_a_judge_a_champion_of_other_documents_counts_as_it_was_registered(versions: Registry) -> None:
    versions.ask(versions.version(40.0, test="others"), 40.0)
    assert not versions.ask(versions.version(30.0), 30.0).is_champion


def test_of_several_versions_of_one_bundle_the_newest_asks(versions: Registry) -> None:
    first = versions.version(40.0)
    again = int(versions.client.create_model_version(versions.name, str(versions.folder)).version)
    versions.client.set_model_version_tag(versions.name, str(again), "bundle", versions.digests[first])
    assert versions.ask(first, 40.0).version == again
    assert versions.aliases() == {"champion": again, "challenger": again}


def test_the_first_model_is_champion_without_being_compared(versions: Registry) -> None:
    assert versions.ask(versions.version(0.0), 0.0, max_drop=0.0, judge=never).is_champion


# the commands


@pytest.fixture
def declared(versions: Registry, fresh: Workspace) -> Registry:
    """Registered versions of a dataset that params.yaml knows."""
    fresh.declare_dataset(versions.dataset, IngestConfig())
    return versions


def test_promote_without_a_name_makes_the_challenger_champion(xc: Xc, declared: Registry) -> None:
    declared.ask(declared.version(40.0), 40.0)
    declared.ask(declared.version(10.0), 10.0)
    assert declared.aliases()["champion"] == 1
    promoted = xc("promote", "--dataset", declared.dataset)
    assert (promoted.code, promoted.out) == (0, f"models:/xc-{declared.dataset}@champion is version 2\n")
    assert declared.aliases() == {"champion": 2, "challenger": 2, "previous": 1}


def test_promote_without_a_challenger_is_refused(xc: Xc, declared: Registry) -> None:
    declared.version(40.0)
    xc("promote", "--dataset", declared.dataset).refused(66, f"no challenger of xc-{declared.dataset}", "--recipe")


def test_a_person_may_promote_what_the_gate_refuses(xc: Xc, declared: Registry) -> None:
    declared.ask(declared.version(40.0), 40.0)
    declared.version(0.0)
    assert xc("promote", "--dataset", declared.dataset, "--version", 2).code == 0
    assert declared.aliases() == {"champion": 2, "challenger": 1, "previous": 1}


def test_a_dataset_without_a_champion_has_no_folder_and_a_note(declared: Registry, fresh: Workspace) -> None:
    assert commands.champion(fresh, declared.dataset) is None
    found = [(finding.level, finding.text) for finding in commands.check()]
    assert ("note", f"champion of {declared.dataset}: none yet") in found


def test_doctor_names_every_packed_model(trained: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    digest = read_manifest(trained.folder("model", "toy", "ngame")).digest()
    assert ("ok", f"packed model of toy/ngame: {digest[:12]}") in [(f.level, f.text) for f in commands.check()]


def test_models_are_named_after_their_dataset() -> None:
    assert registry.model_name("toy") == "xc-toy"
    assert (registry.CHAMPION, registry.CHALLENGER, registry.PREVIOUS) == ("champion", "challenger", "previous")
