"""NGAME's own comparison (section 6 and table 6, WSDM): ``ngame.py`` with other negatives, all else unchanged.

``dpr``, ``tas`` and ``o-sgd`` differ from ``ngame`` in M1 alone. ``ance`` mines explicitly in both: M1 searches between
epochs, M4 trains on the hard negatives of the stage negatives. Section 6 names O-SGD, table 6 has no figures of it.

Ordered SGD: of a batch's losses L_i only the q highest count, (1 / q) sum_{i in Q} L_i. NGAME does not say how it used
it; here L_i is NGAME's loss of document i with in-batch negatives. q = S / 2 is a guess; the paper lowers q in steps
from S to S / 16 as the training accuracy rises. TAS has the C that ``ngame`` reaches in its last epoch.
"""

from typing import Any

from xc_core.recipes.base import Recipe, register
from xc_core.recipes.ngame import NGAME


def _variant(name: str, paper: str, **changes: dict[str, Any]) -> Recipe:
    """Register ngame with changes under another name."""
    return register(NGAME.variant(name, paper, __name__, changes))


_RANDOM = {"kind": "random", "batch_size": 128}  # S

DPR = _variant(
    "dpr",
    "DPR, Karpukhin et al., EMNLP 2020: in-batch negatives of random batches",
    encoder={"order": _RANDOM},
)
TAS = _variant(
    "tas",
    "TAS, Hofstaetter et al., SIGIR 2021: batches from clusters made once, on features before training",
    encoder={"order": {"size": 16, "double_every": 0, "refresh_every": 1_000_000, "warmup_epochs": 0}},  # C; tau
)
ANCE = _variant(
    "ance",
    "ANCE, Xiong et al., ICLR 2021: random batches, hard negatives from a search over stale label vectors",
    encoder={
        "order": _RANDOM,
        "negatives": {
            "kind": "mined",
            "positives": 1,
            "hard": 1,  # drawn per step
            "search": 20,  # nearest labels found per document
            "search_in": "texts",
            "refresh_every": 1,
            "warmup_epochs": 1,
        },
    },
    negatives={"k": 20},
    classifier={
        "order": {"kind": "random", "batch_size": 1024},
        "negatives": {"kind": "stored", "positives": 0, "unseen": 128, "hard": 1},
    },
)
_TRIPLET = {"kind": "triplet", "margin": 0.3, "hardest": 10, "positives": 1, "temperature": 0.1}  # L_i

O_SGD = _variant(
    "o-sgd",
    "Ordered SGD, Kawaguchi and Lu, AISTATS 2020: the half of each random batch with the highest losses",
    encoder={"order": _RANDOM, "loss": {"kind": "ordered", "loss": _TRIPLET, "q": 64}},  # q
)
