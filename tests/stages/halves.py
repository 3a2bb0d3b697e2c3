"""A toy world in which every document names the part it is of, and which part each training must not have seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.params import deep_merged
from xc_core.shapes import I64
from xc_core.stages import STAGES, Workspace, run_stage

PARTS: Final = ("half0", "half1", TRAIN, TEST)
WORDS: Final = {"half0": "zebra", "half1": "walrus", TRAIN: "gibbon", TEST: "ibex"}
"""A word that is in all documents of a part and in no other."""
UNSEEN: Final[dict[bool, dict[str, set[str]]]] = {
    True: {"held/0": {"half0", TEST}, "held/1": {"half1", TEST}, "": {TEST}},
    False: {"": {"half0", "half1", TEST}},
}
"""With and without refit: the parts that each training has not seen."""
CHANGES: Final[dict[str, Any]] = {
    "encoder": {"epochs": 0.0},
    "classifier": {
        "epochs": 2.0,
        "lexical": {"use": True, "trees": 1},
        "order": {"kind": "random", "batch_size": 32, "cluster_size": 1},
    },
}


def open_corpus(workspace: Workspace) -> Corpus:
    return Corpus.open(workspace.folder("corpus", "toy"))


def parts_of(corpus: Corpus) -> dict[str, I64]:
    """Return the corpus rows of each part."""
    halves = corpus.validation_halves()
    return {"half0": halves[0], "half1": halves[1], TRAIN: corpus.rows(TRAIN), TEST: corpus.rows(TEST)}


def seen(corpus: Corpus, training: str, *, refit: bool = True) -> I64:
    """Return the corpus rows that a training has to learn from, rising."""
    wanted = [rows for part, rows in parts_of(corpus).items() if part not in UNSEEN[refit][training]]
    return np.sort(np.concatenate(wanted))


def part_of_uid(root: Path) -> dict[str, str]:
    """Return the part of every document of the toy world; it is decided by the uid alone."""
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
    workspace.declare_experiment("toy", "ngame", "ngame", whole)
    for name in list(STAGES)[: list(STAGES).index("classifier")]:
        run_stage(workspace, name, "toy", "ngame")
    return workspace


def file(workspace: Workspace, stage: str, name: str) -> Path:
    return workspace.folder(stage, "toy", "ngame") / name
