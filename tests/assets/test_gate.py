"""The release gate: which aliases move, and which figures of a champion are compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from assets.release import registry
from assets.release.registry import Released
from tests.assets.conftest import Registry, failing

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = pytest.mark.filterwarnings("ignore")


def never(folder: Path) -> dict[str, float]:
    raise AssertionError("the champion was evaluated again")


def test_the_first_version_is_champion(versions: Registry) -> None:
    first = versions.version(20.0)
    assert versions.release(first, 20.0) == Released(first, True, f"version {first} is champion: the first one")
    assert versions.aliases() == {"champion": first, "challenger": first}


@pytest.mark.parametrize(
    ("precision", "max_drop", "passes"),
    [
        (40.0, 1.0, True),
        (41.0, 1.0, True),
        (39.5, 1.0, True),
        (39.0, 1.0, True),
        (38.99, 1.0, False),
        (39.99, 0.0, False),
        (40.0, 0.0, True),
        (0.0, 1.0, False),
        (math.nan, 1.0, False),
        (math.nan, math.inf, False),
        (0.0, math.inf, True),
    ],
)
def test_the_gate_lets_a_challenger_be_at_most_so_much_worse(
    versions: Registry, precision: float, max_drop: float, passes: bool
) -> None:
    first = versions.version(40.0)
    versions.release(first, 40.0)
    second = versions.version(precision)
    released = versions.release(second, precision, max_drop)
    assert released.is_champion is passes
    assert f"P@5 {precision:.2f} against 40.00" in released.message
    expected = {"champion": second, "previous": first} if passes else {"champion": first}
    assert versions.aliases() == {"challenger": second, **expected}


def test_the_message_of_a_refused_challenger_names_the_champion(versions: Registry) -> None:
    versions.release(versions.version(40.0), 40.0)
    message = versions.release(versions.version(30.0), 30.0).message
    assert message == "version 2 stays challenger: P@5 30.00 against 40.00 of the champion (version 1)"


@pytest.mark.parametrize(("now", "passes"), [(30.5, True), (31.5, False)])
def test_a_champion_is_evaluated_again_if_the_test_documents_have_changed(
    versions: Registry, monkeypatch: pytest.MonkeyPatch, now: float, passes: bool
) -> None:
    monkeypatch.setattr(registry, "download", lambda version: Path(f"bundle of {versions.dataset}"))
    evaluated: list[Path] = []

    def evaluate(folder: Path) -> dict[str, float]:
        evaluated.append(folder)
        return {"P_at_5": now}

    versions.release(versions.version(40.0), 40.0)
    same = versions.release(versions.version(39.5), 39.5, evaluate=evaluate)
    assert same.is_champion and evaluated == [], "the same documents"
    other = versions.release(versions.version(30.0, test="t2"), 30.0, evaluate=evaluate)
    assert evaluated == [Path(f"bundle of {versions.dataset}")]
    assert other.is_champion is passes
    assert f"P@5 30.00 against {now:.2f} of" in other.message
    assert "evaluated again because the test documents have changed" in other.message


def test_a_champion_that_cannot_be_evaluated_again_stays(versions: Registry) -> None:
    versions.release(versions.version(40.0), 40.0)  # registered without files
    released = versions.release(versions.version(50.0, test="t2"), 50.0, evaluate=lambda folder: {"P_at_5": 0.0})
    assert not released.is_champion
    assert "which cannot be evaluated again (no files of" in released.message


def test_a_champion_without_known_metrics_is_replaced(versions: Registry) -> None:
    versions.release(versions.version(None), 0.0)
    assert versions.release(versions.version(10.0), 10.0).is_champion


def test_the_same_bundle_is_registered_once_and_stays_champion(versions: Registry) -> None:
    first = versions.version(40.0)
    versions.release(first, 40.0)
    again = versions.release(first, 40.0)
    assert again == Released(first, True, f"version {first} is champion: it is already")
    assert versions.aliases() == {"champion": first, "challenger": first}


def test_an_alias_that_cannot_be_read_is_not_taken_for_a_missing_champion(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise any model would pass the gate as the first one while the server does not answer."""
    first = versions.version(40.0)
    versions.release(first, 40.0)
    second = versions.version(1.0)
    with monkeypatch.context() as away:
        away.setattr(type(versions.client), "get_model_version_by_alias", failing(MlflowException("no connection")))
        with pytest.raises(MlflowException, match="no connection"):
            versions.release(second, 1.0)
    assert versions.aliases()["champion"] == first


def test_the_limit_itself_passes_and_a_hundredth_below_does_not(versions: Registry) -> None:
    versions.release(versions.version(40.0), 40.0)
    assert not versions.release(versions.version(37.49), 37.49, max_drop=2.5).is_champion
    assert versions.release(versions.version(37.5), 37.5, max_drop=2.5).is_champion


def test_small_drops_add_up_because_each_new_champion_sets_the_limit(versions: Registry) -> None:
    for precision in (40.0, 39.0, 38.0):
        assert versions.release(versions.version(precision), precision).is_champion
    assert versions.aliases() == {"champion": 3, "challenger": 3, "previous": 2}


def test_every_model_becomes_challenger_and_a_refused_one_moves_no_other_alias(versions: Registry) -> None:
    for precision in (40.0, 41.0, 10.0, 20.0):
        versions.release(versions.version(precision), precision)
    assert versions.aliases() == {"champion": 2, "challenger": 4, "previous": 1}


def test_an_earlier_champion_that_is_released_again_changes_places_with_the_current_one(versions: Registry) -> None:
    first, second = versions.version(40.0), versions.version(40.0)
    for number in (first, second, first):
        assert versions.release(number, 40.0).version == number
    assert versions.aliases() == {"champion": first, "challenger": first, "previous": second}


def test_a_champion_without_a_digest_of_its_test_documents_keeps_its_registered_figure(versions: Registry) -> None:
    versions.release(versions.version(40.0, test=""), 40.0)
    assert not versions.release(versions.version(30.0), 30.0, evaluate=never).is_champion
    assert versions.release(versions.version(39.5), 39.5, evaluate=never).is_champion


def test_without_an_evaluation_a_champion_of_other_documents_keeps_its_registered_figure(versions: Registry) -> None:
    versions.release(versions.version(40.0, test="others"), 40.0)
    assert not versions.release(versions.version(30.0), 30.0).is_champion


def test_of_several_versions_of_one_model_the_newest_is_released(versions: Registry) -> None:
    first = versions.version(40.0)
    again = int(versions.client.create_model_version(versions.name, str(versions.folder)).version)
    versions.client.set_model_version_tag(versions.name, str(again), "bundle", versions.digest(first))
    assert versions.release(first, 40.0).version == again
    assert versions.aliases() == {"champion": again, "challenger": again}


def test_the_first_model_is_champion_without_being_compared(versions: Registry) -> None:
    assert versions.release(versions.version(0.0), 0.0, max_drop=0.0, evaluate=never).is_champion
