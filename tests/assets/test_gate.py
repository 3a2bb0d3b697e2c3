"""The release gate: which lines fail, and which aliases move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mlflow.exceptions import MlflowException

from assets.release import aliases, gate, registry
from assets.release.gate import Line, Verdict
from assets.release.registry import Released
from assets.release.versions import set_page
from tests.assets.conftest import Registry, failing
from xc_core.chain.dataset import ReleaseConfig
from xc_core.errors import MovedError, RefusedError
from xc_core.infer.acceptance import Costs, Measured
from xc_core.metrics.ranking import PerDocument
from xc_core.recipes.settings import ModelSettings

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = pytest.mark.filterwarnings("ignore")

METRICS = ("P_at_5", "PSP_at_5", "head_recall_at_5", "torso_recall_at_5", "tail_recall_at_5")
LIMITS, RELEASE = ModelSettings(max_drop=1.0, min_index_recall=0.9), ReleaseConfig()
NAMES = ("P@5", "PSP@5", "head recall@5", "torso recall@5", "tail recall@5")


def model(size: int = 200, ms: float = 100.0, megabytes: float = 100.0, **shares: float) -> Measured:
    """Return a model that has this share of each metric right: the first documents, one point each; half by default."""
    num = {name: (np.arange(size) < shares.get(name, 0.5) * size).astype(np.float64) for name in METRICS}
    figures = PerDocument(num, {name: np.ones(size) for name in METRICS})
    return Measured(figures, Costs(latency_p50_ms=ms, megabytes=megabytes))


def failed(
    ours: Measured, theirs: Measured, limits: ModelSettings = LIMITS, release: ReleaseConfig = RELEASE
) -> list[str]:
    return [line.name for line in gate.against(ours, theirs, limits, release) if not line.passed]


# lines


def test_the_limit_of_a_figure_is_a_point_or_points() -> None:
    limits = [
        next(gate.against(model(), model(), replace(LIMITS, max_drop=drop), RELEASE)).limit for drop in (1.0, 2.5)
    ]
    assert limits == ["at most 1 point less", "at most 2.5 points less"]


def test_a_model_that_is_no_worse_passes_every_line() -> None:
    assert [line.name for line in gate.against(model(), model(), LIMITS, RELEASE)] == [*NAMES, "latency", "size"]
    assert failed(model(), model()) == []


@pytest.mark.parametrize(("metric", "name"), list(zip(METRICS, NAMES, strict=True)))
def test_each_figure_that_is_clearly_worse_fails_its_own_line(metric: str, name: str) -> None:
    assert failed(model(**{metric: 0.4}), model()) == [name]
    assert failed(model(**{metric: 0.6}), model()) == []


@pytest.mark.parametrize(("drop", "passes"), [(0.5, False), (1.0, True), (1.5, True)])
def test_the_limit_of_the_recipe_is_that_of_precision(drop: float, passes: bool) -> None:
    """One of a hundred documents is one point."""
    found = failed(model(size=100, P_at_5=0.49), model(size=100), replace(LIMITS, max_drop=drop))
    assert (found == []) is passes


def test_a_loss_in_a_bin_that_chance_explains_passes() -> None:
    """One document of twenty more or less: five points, with an interval that includes 0."""
    ours, theirs = model(size=20, tail_recall_at_5=0.45), model(size=20)
    assert failed(ours, theirs) == []
    assert failed(model(size=2000, tail_recall_at_5=0.45), model(size=2000)) == ["tail recall@5"]


def test_a_metric_that_is_not_a_number_fails() -> None:
    ours = model()
    ours.figures.num["P_at_5"][0] = np.nan
    assert failed(ours, model()) == ["P@5"]


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (model(ms=200), model(), []),
        (model(ms=201), model(), ["latency"]),
        (model(ms=20), model(ms=1), []),
        (model(ms=21), model(ms=1), ["latency"]),
        (model(megabytes=200), model(), []),
        (model(megabytes=201), model(), ["size"]),
        (model(megabytes=10), model(megabytes=1), []),
        (model(megabytes=11), model(megabytes=1), ["size"]),
    ],
)
def test_a_model_may_cost_so_much_more(ours: Measured, theirs: Measured, names: list[str]) -> None:
    assert failed(ours, theirs) == names


@pytest.mark.parametrize(
    ("limit", "name"), [("max_slower", "latency"), ("max_larger", "size"), ("max_bin_drop", "tail recall@5")]
)
def test_each_limit_of_the_dataset_is_that_of_its_own_line(limit: str, name: str) -> None:
    """Two of them have the same default."""
    ours, names = model(ms=250, megabytes=250, tail_recall_at_5=0.4), ["tail recall@5", "latency", "size"]
    assert failed(ours, model()) == names
    wide = replace(RELEASE, **{limit: 20.0})
    assert failed(ours, model(), release=wide) == [line for line in names if line != name]


@pytest.mark.parametrize(("recall", "passes"), [(0.9, True), (0.899, False)])
def test_the_worst_index_counts(recall: float, passes: bool) -> None:
    ours = replace(_answering(), recalls={"a": 1.0, "b": recall})
    opens, index = gate.without_champion(ours, None, LIMITS)
    assert (opens.passed, index.passed) == (True, passes)
    assert "7 texts" in opens.found
    assert index.found == f"{recall:.3f}"
    weak = replace(model(), recalls={"a": 0.5})
    assert [line.passed for line in gate.without_champion(ours, weak, LIMITS)] == [True, passes], (
        "the champion's is only shown"
    )
    assert list(gate.without_champion(ours, weak, LIMITS))[1].found == f"{recall:.3f} against 0.500"


def _answering() -> Measured:
    measured = model(size=7)
    measured.figures.num["P_at_1"] = measured.figures.num["P_at_5"]
    return measured


def test_a_message_of_a_model_breaks_no_row_of_the_table() -> None:
    """It is the last line of another process, or an error of MLflow, which may have several."""
    verdict = Verdict((Line("champion", False, "no files a | b\n<i>", "a champion that opens"),), "a set")
    row = verdict.table().splitlines()[-1]
    assert row == "| champion | no files a &#124; b &#60;i&#62; | a champion that opens | **failed** |"
    assert verdict.rows()[0]["found"] == "no files a | b\n<i>", "Dagster shows texts"


def test_a_verdict_names_the_lines_that_failed() -> None:
    lines = tuple(gate.against(model(P_at_5=0.4, tail_recall_at_5=0.3), model(), LIMITS, RELEASE))
    verdict = Verdict(lines, "a set")
    assert not verdict.passed
    assert verdict.reason.startswith("P@5: 40.00 against 50.00 (-10.00 [")
    assert "; tail recall@5: 30.00 against 50.00 (-20.00 [" in verdict.reason
    assert "head" not in verdict.reason
    assert "| size | 100.0 MB against 100.0 | at most 200.0 MB | passed |" in verdict.table()
    assert verdict.table().count("**failed**") == 2
    size = {"line": "size", "found": "100.0 MB against 100.0", "limit": "at most 200.0 MB", "result": "passed"}
    assert size | {"do": ""} in verdict.rows()
    failed = [(row["line"], row["do"]) for row in verdict.rows() if row["result"] == "failed"]
    assert failed == [("P@5", "train a better model"), ("tail recall@5", "train a better model")]


@pytest.mark.parametrize(
    ("ours", "do"),
    [
        (model(P_at_5=0.4, tail_recall_at_5=0.3), "train a better model"),
        (model(megabytes=300), "use a smaller encoder or raise release.max_larger"),
        (
            model(ms=300),
            "if the machine was busy, run this again, because the latency is measured again; otherwise use a smaller "
            "encoder or raise release.max_slower",
        ),
        (model(P_at_5=0.4, megabytes=300), "train a better model; use a smaller encoder or raise release.max_larger"),
    ],
)
def test_a_refusal_says_what_to_do_about_the_lines_that_failed_and_about_no_other(ours: Measured, do: str) -> None:
    refusal = Verdict(tuple(gate.against(ours, model(), LIMITS, RELEASE)), "a set").refusal("toy", 4)
    assert refusal.do == f'{do}. To overrule the gate: xc promote --dataset toy --version 4 --reason "WHY"'


def test_a_refusal_names_the_index_the_error_of_a_model_and_the_repair_of_an_old_one() -> None:
    error = RefusedError("a model that does not open", expected="labels", do="pack it again")
    lines = (
        gate.refused(gate.OPENS, error),
        *gate.without_champion(replace(_answering(), recalls={"a": 0.1}), None, LIMITS),
        gate.best_unknown("P_at_5", "3", error, "xc promote --dataset toy --version 3 --repair"),
    )
    refusal = Verdict(lines, "a set").refusal("toy", 4)
    assert refusal.do.partition(". To")[0].split("; ") == [
        "pack it again",
        "use a more exact index (--set scores.SCORE.index=exact)",
        "xc promote --dataset toy --version 3 --repair",
    ]


def test_a_verdict_without_failed_lines_passes() -> None:
    assert Verdict((Line("a", True, "b"),), "a set").passed


# aliases


def test_the_first_version_is_champion(versions: Registry) -> None:
    first = versions.version()
    released = versions.release(first)
    assert (released.version, released.is_champion) == (first, True)
    assert released.message == f"version {first} is champion: the first one, judged on 40 documents"
    assert versions.aliases() == {"champion": first, "challenger": first}
    assert versions.asked == [None]


def test_a_first_version_that_the_gate_refuses_is_nothing(versions: Registry) -> None:
    assert versions.release(versions.version(), passes=False).refused
    assert versions.aliases() == {}


def test_a_model_that_passes_replaces_the_champion(versions: Registry) -> None:
    first, second = versions.version(), versions.version()
    versions.release(first)
    assert versions.release(second).is_champion
    assert versions.asked == [None, first]
    assert versions.aliases() == {"champion": second, "challenger": second, "previous": first}


def test_a_model_that_is_refused_moves_no_alias(versions: Registry) -> None:
    first, second = versions.version(), versions.version()
    versions.release(first)
    released = versions.release(second, passes=False)
    assert (released.is_champion, released.refused) == (False, True)
    assert released.message == "version 2 is refused: P@5: 39.00 against 40.00, limit at most 1 point less"
    assert versions.aliases() == {"champion": first, "challenger": first}
    tags = versions.client.get_model_version(versions.name, "2").tags
    assert (tags["gate"], tags["gate_failed"], tags["gate_on"]) == ("refused", "P@5", "40 documents")


def test_by_the_manual_policy_a_model_that_passes_waits_as_challenger(versions: Registry) -> None:
    first, second = versions.version(), versions.version()
    versions.release(first)
    released = versions.release(second, auto=False)
    assert (released.is_champion, released.refused) == (False, False)
    assert f"xc promote --dataset {versions.dataset}" in released.message
    assert versions.aliases() == {"champion": first, "challenger": second}


def another_becomes_champion(versions: Registry, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``version`` become champion while the next verdict is recorded."""
    pages = [version]

    def meanwhile(*given: Any) -> None:
        if pages:
            aliases.set_champion(versions.client, versions.name, pages.pop())
        set_page(*given)

    monkeypatch.setattr(registry, "set_page", meanwhile)


@pytest.mark.parametrize("when", ["judged", "recorded", "under the lock of those who change the champion"])
def test_a_model_is_judged_again_if_another_became_champion_meanwhile(
    versions: Registry, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (versions.version() for _ in range(3))
    versions.release(first)
    if when == "recorded":
        another_becomes_champion(versions, second, monkeypatch)
    else:
        (versions.meanwhile if when == "judged" else versions.before).append(second)
    assert versions.release(third).is_champion
    assert versions.asked == [None, first, second]
    assert versions.aliases() == {"champion": third, "challenger": third, "previous": second}


def test_a_challenger_is_judged_again_if_another_became_champion_meanwhile(versions: Registry) -> None:
    """By the manual policy, and for the champion itself, the alias was set outside of the lock."""
    first, second, third = (versions.version() for _ in range(3))
    versions.release(first)
    versions.before.append(second)
    assert not versions.release(third, auto=False).is_champion
    assert versions.asked == [None, first, second]
    assert versions.aliases() == {"champion": second, "challenger": third, "previous": first}
    versions.before.append(first)
    assert versions.release(second).is_champion
    assert versions.asked == [None, first, second, first], "it was champion before the lock was taken, and then no more"
    assert versions.aliases() == {"champion": second, "challenger": second, "previous": first}


@pytest.mark.parametrize("auto", [True, False])
def test_all_aliases_are_set_before_the_lock_is_released(versions: Registry, auto: bool) -> None:
    """Otherwise a challenger could be set after that of the process that takes the lock next."""
    first, second, held = versions.version(), versions.version(), list[dict[str, int]]()
    versions.release(first)

    @contextmanager
    def moving() -> Iterator[None]:
        yield
        held.append(versions.aliases())

    registry.register(versions.client, "", replace(versions.candidate(second, auto=auto), moving=moving))
    assert held == [versions.aliases()]
    assert held[0]["challenger"] == second


def test_a_model_that_is_refused_at_the_second_judgement_does_not_become_challenger(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (versions.version() for _ in range(3))
    versions.release(first)
    another_becomes_champion(versions, second, monkeypatch)
    monkeypatch.setattr(Verdict, "passed", property(lambda _: len(versions.asked) < 3))
    assert versions.release(third).refused
    assert versions.aliases() == {"champion": second, "challenger": first, "previous": first}


def test_two_processes_that_set_the_champion_at_the_same_moment_are_reported(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow keeps the last one; the process that set the other one says so."""
    first, second, third = (versions.version() for _ in range(3))
    versions.release(first)
    point = versions.client.set_registered_model_alias

    def both(name: str, alias: str, number: str) -> None:
        point(name, alias, number)
        if alias == aliases.CHAMPION:
            point(name, alias, str(third))

    monkeypatch.setattr(versions.client, "set_registered_model_alias", both)
    with pytest.raises(MovedError, match=f"version {third} as champion of {versions.name}: another process") as caught:
        versions.release(second)
    assert f"xc promote --dataset {versions.dataset} --version {second}" in caught.value.do
    assert versions.aliases() == {"champion": third, "challenger": first, "previous": first}


def test_the_champion_itself_is_not_judged_again(versions: Registry) -> None:
    first = versions.version()
    versions.release(first)
    assert versions.release(first, passes=False) == Released(first, True, f"version {first} is champion: it is already")
    assert versions.asked == [None]


def test_an_alias_that_cannot_be_read_is_not_taken_for_a_missing_champion(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise any model would pass the gate as the first one while the server does not answer."""
    first, second = versions.version(), versions.version()
    versions.release(first)
    with monkeypatch.context() as away:
        away.setattr(type(versions.client), "get_model_version_by_alias", failing(MlflowException("no connection")))
        with pytest.raises(MlflowException, match="no connection"):
            versions.release(second)
    assert versions.aliases()["champion"] == first


def test_an_earlier_champion_that_is_released_again_changes_places_with_the_current_one(versions: Registry) -> None:
    first, second = versions.version(), versions.version()
    for number in (first, second, first):
        assert versions.release(number).version == number
    assert versions.aliases() == {"champion": first, "challenger": first, "previous": second}


def test_of_several_versions_of_one_model_the_newest_is_released(versions: Registry) -> None:
    first, again = versions.version(), versions.version()
    versions.client.set_model_version_tag(versions.name, str(again), "bundle", versions.digests[first])
    assert versions.release(first).version == again
    assert aliases.version_of(versions.client, versions.name, aliases.CHAMPION).version == again  # type: ignore[union-attr]
