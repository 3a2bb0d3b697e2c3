"""Files of label trees as boundaries: whatever is accepted can be searched, within bounds that scipy does not check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from tests.fuzz import mutate
from tests.fuzz.targets import Target, in_file
from tests.scores.test_forest import TERMS, grow, nodes_of
from tests.scores.test_omikuji_tree import trained
from xc_core.errors import CorruptError
from xc_core.scores.beam_search import shortlist
from xc_core.scores.forest import FILE, Forest
from xc_core.scores.omikuji_tree import read_tree


def _search(forest: Forest) -> None:
    """Search for texts of one term each."""
    found = shortlist(forest, csr_matrix(np.eye(forest.num_terms, dtype=np.float32)[:20]), beam=3, k=5)
    scores = found.scores_NK[found.filled_NK]
    assert bool(((scores >= 0) & (scores <= 1)).all()), "scores that are no shares"


def _open(folder: Path) -> None:
    """Open trees whose terms may be any number, as they do not say how many there are until the terms are read."""
    forest = Forest.open(folder)
    if forest.num_terms > 1_000:
        raise CorruptError("terms", expected="those of the score", do="nothing")
    _search(forest)


def targets(root: Path) -> list[Target]:
    """Return the boundaries of label trees, with their files under ``root``."""
    random = np.random.default_rng(0)
    (root / "older").mkdir(parents=True)
    Forest.of([nodes_of(grow(random, list(range(20)), 2)) for _ in range(2)], TERMS).save(root)
    trained(root / "older", terms=TERMS, labels=12, cluster_k=2, max_depth=2, min_branch_size=2)
    tree = root / "older" / "model" / "tree0.cbor"

    def read() -> None:
        try:
            forest = Forest.of([read_tree(tree)], TERMS)
        except ValueError as error:  # as the score does
            raise CorruptError(f"{error}", expected="a tree", do="nothing") from error
        _search(forest)

    open_it = in_file(root, FILE, lambda: _open(root))
    return [
        Target(FILE, "models", ((root / FILE).read_bytes(),), mutate.tensors_changed, open_it, 5),
        Target(
            tree.name, "models", (tree.read_bytes(),), mutate.bytes_changed, in_file(tree.parent, tree.name, read), 5
        ),
    ]
