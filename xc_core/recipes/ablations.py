"""NGAME's own comparison (table 6 of 000): the same method with other negatives, everything else unchanged.

``dpr``, ``tas`` and ``o-sgd`` differ from ``ngame`` in M1 alone. ``ance`` mines explicitly in both: M1 searches between
epochs, M4 trains on the hard negatives of the stage negatives.
"""

from typing import Any

from xc_core.recipes.base import RECIPES, Recipe
from xc_core.recipes.ngame import NGAME


def _variant(name: str, paper: str, **changes: dict[str, Any]) -> Recipe:
    """Register ngame with changes under another name."""
    return RECIPES.add(name, NGAME.variant(name, paper, __name__, changes))


DPR = _variant(
    "dpr",
    "DPR, Karpukhin et al., EMNLP 2020: in-batch negatives of random batches",
    encoder={"order": {"kind": "random", "batch_size": 128}},
)
TAS = _variant(
    "tas",
    "TAS, Hofstaetter et al., SIGIR 2021: batches from clusters made once, on features before training",
    encoder={"order": {"warmup_epochs": 0, "refresh_every": 1_000_000, "double_every": 0}},
)
ANCE = _variant(
    "ance",
    "ANCE, Xiong et al., ICLR 2021: random batches, hard negatives from a search over stale label vectors",
    encoder={
        "order": {"kind": "random", "batch_size": 128},
        "negatives": {"kind": "mined", "positives": 1, "hard": 1, "search": 20},
    },
    negatives={"k": 20},
    classifier={
        "order": {"kind": "random", "batch_size": 1024},
        "negatives": {"kind": "stored", "positives": 0, "unseen": 128, "hard": 1},
    },
)
O_SGD = _variant(
    "o-sgd",
    "Ordered SGD, Kawaguchi and Lu, AISTATS 2020: the hardest in-batch negative of random batches",
    encoder={"order": {"kind": "random", "batch_size": 128}, "loss": {"hardest": 1}},
)
