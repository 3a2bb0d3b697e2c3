"""A released model on the test documents of another day: labels by uid, removed ones wrong, else the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import TOPICS, ToyWorld, make_workspace
from xc_core.data.corpus import Corpus
from xc_core.stages import Workspace, run_stage
from xc_core.stages.rejudge import rejudged


def another(root: Path, world: ToyWorld) -> Workspace:
    """Return a workspace with the corpus of ``world`` alone."""
    made = make_workspace(root, world)
    run_stage(made, "corpus", "toy")
    return made


def corpus(root: Path, world: ToyWorld) -> Corpus:
    return Corpus.open(another(root, world).folder("corpus", "toy"))


def moved(world: ToyWorld, to: list[int]) -> ToyWorld:
    """Put label i of ``world`` at place ``to[i]``."""
    labels = [world.labels[to.index(place)] for place in range(len(to))]
    own = [
        [{**row, "target_ind": sorted(to[i] for i in row["target_ind"])} for row in part]
        for part in (world.train, world.test)
    ]
    return ToyWorld(own[0], own[1], labels)


@pytest.fixture(scope="module")
def before(trained: Workspace) -> dict[str, float]:
    found: dict[str, float] = json.loads((trained.folder("evaluation", "toy", "ngame") / "metrics.json").read_text())
    assert 20 < found["P_at_5"] < 100
    return found


def test_on_the_same_documents_it_has_the_figures_it_had(trained: Workspace, before: dict[str, float]) -> None:
    found = rejudged(trained.folder("model", "toy", "ngame"), trained, "toy")
    assert found["P_at_5"] == pytest.approx(before["P_at_5"], abs=1.0)
    assert found["PSP_at_5"] == pytest.approx(before["PSP_at_5"], abs=1.0)


def test_labels_are_found_by_uid_wherever_they_stand_now(trained: Workspace, toy: ToyWorld, tmp_path: Path) -> None:
    model = trained.folder("model", "toy", "ngame")
    turned = another(tmp_path, moved(toy, [*range(3, len(TOPICS)), 0, 1, 2]))
    assert rejudged(model, turned, "toy") == pytest.approx(rejudged(model, trained, "toy"))


def test_a_label_that_is_gone_is_a_wrong_answer(trained: Workspace, toy: ToyWorld, tmp_path: Path) -> None:
    model = trained.folder("model", "toy", "ngame")
    toy.labels[0] = {**toy.labels[0], "uid": "another"}
    renamed = rejudged(model, another(tmp_path, toy), "toy")["R_at_10"]
    with_it = sum(0 in row["target_ind"] for row in toy.test) / len(toy.test)
    assert renamed < rejudged(model, trained, "toy")["R_at_10"] - 5 * with_it


def test_filtered_pairs_are_left_out(trained: Workspace, toy: ToyWorld, tmp_path: Path) -> None:
    filtered = make_workspace(tmp_path, toy)
    pairs = [f"{number} {label}" for number, row in enumerate(toy.test) for label in row["target_ind"]]
    (filtered.raw("toy") / "filter_labels_test.txt").write_text("\n".join(pairs) + "\n")
    run_stage(filtered, "corpus", "toy")
    assert rejudged(trained.folder("model", "toy", "ngame"), filtered, "toy")["R_at_10"] == 0.0


def test_the_digest_of_what_models_are_judged_on(toy: ToyWorld, tmp_path: Path) -> None:
    first = corpus(tmp_path / "first", toy).test_digest()
    assert corpus(tmp_path / "more", ToyWorld(toy.train[:200], toy.test, toy.labels)).test_digest() == first
    assert corpus(tmp_path / "turned", moved(toy, [*range(1, len(TOPICS)), 0])).test_digest() == first
    assert corpus(tmp_path / "fewer", ToyWorld(toy.train, toy.test[1:], toy.labels)).test_digest() != first
    other = [{**toy.test[0], "title": "other"}, *toy.test[1:]]
    assert corpus(tmp_path / "text", ToyWorld(toy.train, other, toy.labels)).test_digest() != first
    other = [{**toy.test[0], "target_ind": [9], "target_rel": [1.0]}, *toy.test[1:]]
    assert corpus(tmp_path / "truth", ToyWorld(toy.train, other, toy.labels)).test_digest() != first
    filtered = make_workspace(tmp_path / "filtered", toy)
    (filtered.raw("toy") / "filter_labels_test.txt").write_text("0 1\n")
    run_stage(filtered, "corpus", "toy")
    assert Corpus.open(filtered.folder("corpus", "toy")).test_digest() != first
