"""A packed model on the test documents of another day: labels by uid, removed ones count as wrong, else the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TOPICS, ToyWorld, make_workspace
from xc_core.chain import Workspace, run_stage
from xc_core.data.corpus import Corpus
from xc_core.infer.reevaluate import reevaluated
from xc_core.metrics.evaluation import Evaluation


def corpus(root: Path, world: ToyWorld) -> Corpus:
    """Return the corpus of ``world`` in a workspace of its own."""
    made = make_workspace(root, world)
    run_stage(made, "corpus", "toy")
    return Corpus.open(made.folder("corpus", "toy"))


def moved(world: ToyWorld, to: list[int]) -> ToyWorld:
    """Put label i of ``world`` at place ``to[i]``."""
    labels = [world.labels[to.index(place)] for place in range(len(to))]
    own = [
        [{**row, "target_ind": sorted(to[i] for i in row["target_ind"])} for row in part]
        for part in (world.train, world.test)
    ]
    return ToyWorld(own[0], own[1], labels)


@pytest.fixture(scope="module")
def model(trained: Workspace) -> Path:
    return trained.folder("model", "toy", "ngame")


@pytest.fixture(scope="module")
def present(trained: Workspace) -> Corpus:
    """The corpus that the model was trained on."""
    return Corpus.open(trained.folder("corpus", "toy"))


def test_on_the_same_documents_it_has_the_figures_of_its_evaluation(
    trained: Workspace, model: Path, present: Corpus
) -> None:
    before = Evaluation.open(trained.folder("evaluation", "toy", "ngame")).metrics
    assert 20 < before["P_at_5"] < 100
    found = reevaluated(model, present)
    assert found["P_at_5"] == pytest.approx(before["P_at_5"], abs=1.0)
    assert found["PSP_at_5"] == pytest.approx(before["PSP_at_5"], abs=1.0)


def test_labels_are_found_by_uid_wherever_they_are_now(
    model: Path, present: Corpus, toy: ToyWorld, tmp_path: Path
) -> None:
    turned = corpus(tmp_path, moved(toy, [*range(3, len(TOPICS)), 0, 1, 2]))
    assert reevaluated(model, turned) == pytest.approx(reevaluated(model, present))


def test_a_label_that_is_gone_is_a_wrong_answer(model: Path, present: Corpus, toy: ToyWorld, tmp_path: Path) -> None:
    toy.labels[0] = {**toy.labels[0], "uid": "another"}
    renamed = reevaluated(model, corpus(tmp_path, toy))["R_at_10"]
    with_it = sum(0 in row["target_ind"] for row in toy.test) / len(toy.test)
    assert renamed < reevaluated(model, present)["R_at_10"] - 5 * with_it


def test_filtered_pairs_are_left_out(model: Path, toy: ToyWorld, tmp_path: Path) -> None:
    filtered = make_workspace(tmp_path, toy)
    pairs = [f"{number} {label}" for number, row in enumerate(toy.test) for label in row["target_ind"]]
    (filtered.raw("toy") / "filter_labels_test.txt").write_text("\n".join(pairs) + "\n")
    run_stage(filtered, "corpus", "toy")
    assert reevaluated(model, Corpus.open(filtered.folder("corpus", "toy")))["R_at_10"] == 0.0


def test_the_digest_of_the_test_documents_changes_with_what_a_model_is_evaluated_on(
    toy: ToyWorld, tmp_path: Path
) -> None:
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
