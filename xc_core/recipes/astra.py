"""ASTRA: accurate and scalable ANNS-based training of extreme classifiers (2024), and the strategies of its table 5.

With f_l(x) = w_l . E(x), H hard negatives (k_h), R uniform draws (k_r), the loss (2), unbiased (lemma 4.1):
    sum_{l in P} log(1 + e^-f_l) + sum_{l in H} log(1 + e^f_l) + (L - k_h) / k_r sum_{l in R} log(1 + e^f_l)
Its expectation is the loss (1) over all labels:
    sum_{l in P} log(1 + e^-f_l) + sum_{l not in P} log(1 + e^f_l)
H: the k_h labels nearest to E(x) among the rows w (``w-hard``) or the label texts E(z) (``E-hard``), searched every
tau_r epochs, in the background on the vectors of the epoch before; before epoch tau_s all negatives are uniform. Label
texts are train documents too (section 3.2). Inference: a search over the rows.

A patent application (US-20250371338-A1) reads on this recipe; it is never the default.

The paper trains 40 to 100 epochs with tau_s = tau_r = 5 and draws for each document; here a draw is shared by the
batch. Its k_r : k_h is between 10:1 and 5:1 (appendix B.2, table 11), as here. Above 3 million labels it puts a
projection to 64 before the rows: ``encoder.encoder.projection=64``. The rows' optimiser is RMSProp with one number per
row instead of SGD. Table 5 keeps the number of negatives in every row. Where each value comes from: docs/defaults.md.
"""

from typing import Any

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig, Pooling
from xc_core.losses import Bce
from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.shared import NO_M4, PLAIN_SUM
from xc_core.sampling import Importance, Random
from xc_core.scores import Classifier
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import ByRow
from xc_core.train.optim import OptimConfig

_HARD, _UNIFORM = 160, 1000  # k_h, k_r
_ALL = _HARD + _UNIFORM  # negatives per document, in every row of table 5

ASTRA = register(
    Recipe(
        name="astra",
        paper="ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers, 2024, table 5: random + w-hard",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(
                name="minilm",  # E
                pooling=Pooling.MEAN,
                max_length=64,
                frozen_layers=3,
                projection=0,  # above 3 million labels: 64
            ),
            order=Random(batch_size=256),  # S
            negatives=Importance(
                positives=0,  # k_p: all
                hard=_HARD,  # k_h
                uniform=_UNIFORM,  # k_r
                draws=1,  # draws of R per batch; the paper: one per document
                search_in="rows",  # w-hard
                warmup_epochs=2,  # tau_s
                refresh_every=1,  # tau_r
                ahead=1,  # epochs that a search starts before its use (section 3.2)
                curriculum=0.0,
            ),
            scorer=ByRow(
                rows=TableConfig(
                    start="text",  # w_l at t = 0
                    unit=False,
                    lr=0.01,  # lr (classifier)
                    decay=0.99,
                    optimiser="rmsprop",  # the paper: SGD
                    weight_decay=0.0,  # weight decay (classifier)
                ),
                dropout=0.0,  # dropout
            ),
            loss=Bce(temperature=0.05, bias=10.0),  # f = w . E(x) / 0.05 - 10; the paper: w . E(x)
            optim=OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0),  # lr (encoder), warmup
            augment=True,  # label texts as documents
            epochs=4.0,  # epochs; the first search is used in the third
        ),
        classifier=NO_M4,  # w is trained above, with E
        scores=named(Classifier()),  # f_l
        fusion=PLAIN_SUM,  # of one score: f_l alone ranks
    ),
)


def _strategy(name: str, row: str, **negatives: Any) -> Recipe:
    """Register ASTRA with other negatives, as many in all: a row of table 5."""
    changes = {"encoder": {"negatives": negatives}}
    return register(ASTRA.variant(name, f"ASTRA, table 5: {row}", __name__, changes))


# Curriculum: hard negatives grow from 0 to all of them, a share of 1/2 and 3/4 in the two epochs that have any.
_CURRICULUM = {"hard": _ALL, "uniform": 0, "curriculum": 4.0}

RANDOM = _strategy("astra-random", "random", hard=0, uniform=_ALL)
LABEL_HARD = _strategy("astra-label-hard", "E-hard alone, biased", hard=_ALL, uniform=0, search_in="texts")
RANDOM_LABEL_HARD = _strategy("astra-random-label-hard", "random + E-hard", search_in="texts")
CLASSIFIER_HARD = _strategy("astra-classifier-hard", "w-hard alone, biased", hard=_ALL, uniform=0)
LABEL_CURRICULUM = _strategy("astra-label-curriculum", "curriculum, E-hard", search_in="texts", **_CURRICULUM)
CLASSIFIER_CURRICULUM = _strategy("astra-classifier-curriculum", "curriculum, w-hard", **_CURRICULUM)
