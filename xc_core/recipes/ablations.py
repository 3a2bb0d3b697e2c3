"""NGAME's own comparison (table 6 of 000): the same method with other negatives, everything else left as it is.

Takes: recipes.ngame.      Gives: the recipes ``dpr``, ``tas``, ``ance``, ``o-sgd``.
May import: recipes.base.  Never: code; a method is data.

Each differs from ``ngame`` in M1 alone, so that a difference in accuracy is one of mining. Encoder, epochs, step sizes
and M4 are ngame's, found on validation rows of WordNetMini (docs/benchmarks.md).
"""

from typing import Any

from xc_core.recipes.base import RECIPES, Recipe
from xc_core.recipes.ngame import NGAME


def _variant(name: str, paper: str, **encoder: dict[str, Any]) -> Recipe:
    """Return ngame with changes to M1, under another name."""
    return NGAME.variant(name, paper, __name__, {"encoder": encoder})


DPR = RECIPES.add(
    "dpr",
    _variant(
        "dpr", "DPR, Karpukhin et al., EMNLP 2020: in-batch negatives of random batches", order={"kind": "random"}
    ),
)
TAS = RECIPES.add(
    "tas",
    _variant(
        "tas",
        "TAS, Hofstaetter et al., SIGIR 2021: batches from clusters made once, on features before training",
        order={"warmup_epochs": 0, "refresh_every": 1_000_000, "double_every": 0},
    ),
)
ANCE = RECIPES.add(
    "ance",
    _variant(
        "ance",
        "ANCE, Xiong et al., ICLR 2021: random batches, hard negatives from a search over stale label vectors",
        order={"kind": "random"},
        negatives={"kind": "mined", "hard": 1, "search": 20},
    ),
)
O_SGD = RECIPES.add(
    "o-sgd",
    _variant(
        "o-sgd",
        "Ordered SGD, Kawaguchi and Lu, AISTATS 2020: the hardest in-batch negative of random batches",
        order={"kind": "random"},
        loss={"negatives": 1},
    ),
)
