"""The digest of the test documents: it changes with what a model is evaluated on, and with nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import TOPICS, ToyWorld, make_workspace
from xc_core.chain import run_stage
from xc_core.data.corpus import Corpus


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
