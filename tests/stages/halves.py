"""A toy world in which every document has a word of its part, and which parts each training must not have seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from tests.conftest import open_corpus as open_corpus
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import FINAL
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.params import deep_merged
from xc_core.scores import Scores
from xc_core.shapes import F32, I64

PARTS: Final = ("half0", "half1", TRAIN, TEST)
WORDS: Final = {"half0": "zebra", "half1": "walrus", TRAIN: "gibbon", TEST: "ibex"}
"""A word that is in all documents of a part and in no other."""
HELD: Final = ("half-0", "half-1")
"""The trainings that leave out a half of the validation documents."""
UNSEEN: Final[dict[bool, dict[str, set[str]]]] = {
    True: {HELD[0]: {"half0", TEST}, HELD[1]: {"half1", TEST}, FINAL: {TEST}},
    False: {FINAL: {"half0", "half1", TEST}},
}
"""With and without refit: the parts that each training has not seen."""
CHANGES: Final[dict[str, Any]] = {
    "encoder": {"epochs": 0.0},
    "classifier": {"epochs": 2.0, "order": {"kind": "random", "batch_size": 32}},
}


def open_embeddings(workspace: Workspace, recipe: str = "ngame") -> Embeddings:
    return Embeddings.open(workspace.folder("embeddings", "toy", recipe))


def open_tables(workspace: Workspace, recipe: str = "ngame") -> LabelTables:
    return LabelTables.open(workspace.folder("classifier", "toy", recipe))


def open_scores(workspace: Workspace, recipe: str = "ngame") -> Scores:
    return Scores.open(workspace.folder("scores", "toy", recipe))


def rows_of(workspace: Workspace, training: str = FINAL, recipe: str = "ngame") -> F32:
    """Return the rows of one training."""
    return np.array(open_tables(workspace, recipe).rows(training))


def texts_of(corpus: Corpus, rows: I64) -> list[str]:
    """Return title and content of documents, joined here."""
    table = corpus.table("documents", rows)
    return [f"{title} {content}" for title, content in zip(table["title"], table["content"], strict=True)]


def parts_of(corpus: Corpus) -> dict[str, I64]:
    """Return the corpus rows of each part."""
    halves = corpus.validation_halves()
    return {"half0": halves[0], "half1": halves[1], TRAIN: corpus.rows(TRAIN), TEST: corpus.rows(TEST)}


def seen(corpus: Corpus, training: str, *, refit: bool = True) -> I64:
    """Return the corpus rows that a training has to learn from, rising."""
    wanted = [rows for part, rows in parts_of(corpus).items() if part not in UNSEEN[refit][training]]
    return np.sort(np.concatenate(wanted))


def part_of_uid(root: Path) -> dict[str, str]:
    """Return the part of every document of the toy world; the uid alone decides it."""
    workspace = make_workspace(root)
    run_stage(workspace, "corpus", "toy")
    corpus = open_corpus(workspace)
    uids = corpus.table("documents")["uid"].to_list()
    assert len(corpus.rows(VALIDATION)) > 15
    return {uids[row]: part for part, rows in parts_of(corpus).items() for row in rows.tolist()}


def named_world(part_of: dict[str, str]) -> ToyWorld:
    """Return the toy world with the word of its part in each document."""
    world = ToyWorld.make()
    for row in (*world.train, *world.test):
        row["content"] += f" {WORDS[part_of[row['uid']]]}"
    return world


def prepared(root: Path, world: ToyWorld, changes: dict[str, Any], edit: Callable[[Path], object] = str) -> Workspace:
    """Return a workspace with ``world`` in which all stages before the classifier have run; ``edit`` its raw folder."""
    workspace = make_workspace(root, world)
    edit(workspace.raw("toy"))
    whole = deep_merged(deep_merged(TOY_CHANGES, CHANGES), changes)
    workspace.params.declare_experiment("toy", "ngame", "ngame", whole)
    run_until(workspace, "negatives")
    return workspace


def run_until(workspace: Workspace, last: str, recipe: str = "ngame") -> None:
    """Run all stages up to ``last``; what is up to date stays."""
    for name in list(STAGES)[: list(STAGES).index(last) + 1]:
        run_stage(workspace, name, "toy", recipe)
