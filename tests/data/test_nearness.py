"""Nearness to train documents: known answers, a naive twin, and what it must not read."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import random_array

from tests.conftest import ToyWorld
from tests.data.worlds import read_world
from xc_core.data import nearness as module
from xc_core.data.corpus import Corpus
from xc_core.data.nearness import _DenseAndSparse, is_nearer, nearest, nearness, sentence, warning


def naive_nearest(queries: list[str], train: list[str]) -> list[float]:
    """Return the highest TF-IDF cosine of each query with a train text."""
    counted = [Counter(re.findall(r"\w+", text.lower())) for text in train]
    frequency = Counter(word for words in counted for word in words)

    def vector(words: Counter[str]) -> dict[str, float]:
        idf = {word: 1 + math.log((1 + len(train)) / (1 + frequency[word])) for word in words}
        weights = {word: (1 + math.log(count)) * idf[word] for word, count in words.items()}
        length = math.sqrt(sum(value**2 for value in weights.values()))
        return {word: value / length for word, value in weights.items()}

    rows = [vector(words) for words in counted]
    asked = [vector(Counter(re.findall(r"\w+", text.lower()))) for text in queries]
    return [max(sum(value * row.get(word, 0) for word, value in one.items()) for row in rows) for one in asked]


@pytest.fixture
def world() -> ToyWorld:
    return ToyWorld.make(200, 30)


def corpus_of(world: ToyWorld, folder: Path, **settings: Any) -> Corpus:
    return read_world(world.write(folder / "world"), **settings)


@pytest.mark.parametrize("common", [0.02, 0.5, 2.0])
def test_the_cosines_are_those_of_the_naive_search(
    tmp_path: Path, world: ToyWorld, common: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that are multiplied densely or sparsely: the result is the same."""
    monkeypatch.setattr(module, "_COMMON", common)
    monkeypatch.setattr(module, "_QUERY_BLOCK", 7)
    for number, row in enumerate([*world.train, *world.test]):
        row["content"] += f" {row['title']}" * (number % 4)
    corpus = corpus_of(world, tmp_path)
    queries, train = np.concatenate([corpus.rows("test"), corpus.rows("validation")]), corpus.rows("train")
    naive = naive_nearest(corpus.texts_of("documents", queries), corpus.texts_of("documents", train))
    np.testing.assert_allclose(nearest(corpus, queries, train), naive, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_highest_products_are_those_of_whole_matrices_to_the_bit(seed: int) -> None:
    """The sparse part is added only where it can raise the result; rows without any, and known results, stay."""
    random = np.random.default_rng(seed)
    query, block = (
        _DenseAndSparse(
            (random.random((size, 6)) * (random.random((size, 6)) < 0.5)).astype(np.float32),
            random_array((size, 90), density=0.05, format="csr", dtype=np.float32, rng=random),
        )
        for size in (40, 70)
    )
    known, rows = np.where(random.random(30) < 0.5, 3 * random.random(30), 0), slice(5, 35)
    whole = query.dense[rows] @ block.dense.T + (query.sparse[rows] @ block.sparse.T).toarray()
    found = query.highest(rows, block.transposed(), known)
    assert found.tolist() == np.maximum(whole.max(axis=1), known).tolist()
    assert 0 < (found == known).sum() < 30


def test_a_known_answer(tmp_path: Path, world: ToyWorld) -> None:
    """Half of the validation documents have a train text with one other word; no test document has a common word."""
    for number, row in enumerate(world.train):
        row["title"], row["content"] = f"t{number}", " ".join(f"x{number}y{i}" for i in range(20))
    for number, row in enumerate(world.test):
        row["title"], row["content"] = f"q{number}", f"z{number}"
    split = {row["uid"]: at for at, row in enumerate(world.train)}
    probe = corpus_of(world, tmp_path)
    uids = {name: probe.table("documents", probe.rows(name))["uid"].to_list() for name in ("validation", "train")}
    for known, held in zip(uids["train"], uids["validation"][::2], strict=False):
        world.train[split[held]]["content"] = world.train[split[known]]["content"]
    found = nearness(corpus_of(world, tmp_path / "planted"))
    held = len(uids["validation"])
    near = len(uids["validation"][::2])
    assert found["validation"]["documents"] == held and found["test"]["documents"] == 30
    assert found["validation"]["above_0.75"] == found["validation"]["above_0.5"] == near / held
    assert found["validation"]["quantiles"]["0.1"] == 0 and found["validation"]["quantiles"]["0.9"] > 0.9
    assert found["test"]["above_0.75"] == found["test"]["mean"] == 0
    assert found["validation"]["twins"] == 0, "another title is another text"
    assert (found["nearer"], found["farther"]) == (True, False)
    assert f"{near / held:.1%} of the validation and 0.0% of the test documents" in sentence(found)
    assert "too good" in warning(found)[0]
    (line,) = warning(found, "time")
    assert "--split" not in line and "add the latest ones to the test file" in line, "that is the split already"


def test_validation_that_is_farther_than_test_is_said_too(tmp_path: Path, world: ToyWorld) -> None:
    """Each test document has a train text with another title; each validation document has words of its own."""
    for number, row in enumerate(world.train):
        row["title"], row["content"] = f"t{number}", " ".join(f"x{number}y{i}" for i in range(20))
    probe = corpus_of(world, tmp_path)
    known = set(probe.table("documents", probe.rows("train"))["uid"])
    train = [row for row in world.train if row["uid"] in known]
    for number, (row, near) in enumerate(zip(world.test, train, strict=False)):
        row["title"], row["content"] = f"q{number}", near["content"]
    found = nearness(corpus_of(world, tmp_path / "farther"))
    assert (found["validation"]["above_0.75"], found["test"]["above_0.75"]) == (0, 1)
    assert (found["nearer"], found["farther"]) == (False, True)
    (line,) = warning(found)
    assert "farther" in line and "too low" in line and "--split uid" in line
    assert "split off by a hash, the difference is chance" in line, "neither remedy is for such a dataset"
    (line,) = warning(found, "time", given=True)
    assert "farther" in line and "too low" in line and "move its lines into trn.json" in line


def test_a_measurement_that_no_release_made_is_no_answer(tmp_path: Path, world: ToyWorld) -> None:
    found = nearness(corpus_of(world, tmp_path))
    assert warning(found) == []
    del found["farther"]
    assert warning(found) == [
        "the comparison of validation and test is incomplete; measure again: xc run corpus --force"
    ]


def test_twins_have_title_and_content_of_a_train_document(tmp_path: Path, world: ToyWorld) -> None:
    probe = corpus_of(world, tmp_path)
    known = probe.table("documents", probe.rows("train")[:3])
    for row, title, content in zip(world.test, known["title"], known["content"], strict=False):
        row["title"], row["content"] = title, content
    corpus = corpus_of(world, tmp_path / "twins")
    found = nearness(corpus)
    assert found["test"]["twins"] == 3 / 30
    assert nearness(corpus, queries=10)["test"]["twins"] == 3 / 30, "of all documents, not of a sample"
    assert found["validation"]["twins"] == 0


def test_positives_whose_label_has_no_train_document(tmp_path: Path, world: ToyWorld) -> None:
    corpus = corpus_of(world, tmp_path)
    held = corpus.table("documents", corpus.rows("validation"))["uid"].to_list()
    world.labels.append({"uid": "rare", "title": "rare", "content": ""})
    row = next(row for row in world.train if row["uid"] == held[0])
    row["target_ind"], row["target_rel"] = [*row["target_ind"], 10], [*row["target_rel"], 1.0]
    found = nearness(corpus_of(world, tmp_path / "rare"))
    positives = sum(len(own["target_ind"]) for own in world.train if own["uid"] in held)
    assert found["validation"]["unseen_positives"] == 1 / positives
    assert "unseen_positives" not in found["test"]
    assert warning(found) == []
    world.labels += [{"uid": f"own{i}", "title": f"own {i}", "content": ""} for i in range(len(world.train))]
    for number, row in enumerate(world.train):
        row["target_ind"], row["target_rel"] = [11 + number], [1.0]
    found = nearness(corpus_of(world, tmp_path / "own", allow=("unseen-labels",)))
    assert found["validation"]["unseen_positives"] == 1
    (line,) = warning(found)
    assert line.startswith("100% of the labels of validation documents have no train document, so these are found by")
    assert "if not, figures on validation are too low" in line, "test may have such labels too, and is not read"


def test_test_labels_are_never_read(tmp_path: Path, world: ToyWorld) -> None:
    before = nearness(corpus_of(world, tmp_path / "a"))
    for row in world.test:
        row["target_ind"], row["target_rel"] = [0], [1.0]
    assert nearness(corpus_of(world, tmp_path / "b")) == before


def test_samples_are_drawn_with_a_seed(tmp_path: Path, world: ToyWorld) -> None:
    corpus = corpus_of(world, tmp_path)
    first = nearness(corpus, queries=10, against=50)
    assert first == nearness(corpus, queries=10, against=50)
    assert first["validation"]["documents"] == first["test"]["documents"] == 10
    assert first["train"] == 50
    assert first != nearness(corpus, queries=10, against=50, seed=1)


def test_without_validation_documents_nothing_is_measured(tmp_path: Path, world: ToyWorld) -> None:
    assert nearness(corpus_of(world, tmp_path, validation_fraction=0.0)) == {}


@pytest.mark.parametrize("few", [1, 2])
def test_a_few_documents_are_never_clearly_nearer(few: int) -> None:
    """The share of so few is 0 or 1, which has no spread of its own."""
    test = {"above_0.75": 0.5, "documents": 1000}
    few_near, few_far = ({"above_0.75": share, "documents": few} for share in (1.0, 0.0))
    assert not is_nearer(few_near, test)
    assert not is_nearer(test, few_far)


@pytest.mark.parametrize(
    ("validation", "test", "documents", "nearer"),
    [
        (0.16, 0.06, 800, True),
        (0.06, 0.16, 800, False),
        (0.05, 0.03, 100_000, False),  # clear, but small
        (0.16, 0.06, 60, False),  # large, but within its error
        (0.0, 0.0, 10, False),
    ],
)
def test_nearer_means_by_3_points_and_twice_the_standard_error(
    validation: float, test: float, documents: int, nearer: bool
) -> None:
    first, second = ({"above_0.75": share, "documents": documents} for share in (validation, test))
    assert is_nearer(first, second) is nearer
