"""Adversarial softmax approximation (Bamler and Mandt, ICLR 2020) and the methods it is compared with.

Order: random. Scorer: table rows on frozen vectors of the pretrained encoder.
Negatives: one label for each positive pair, drawn from the probabilistic tree over 16 principal components (section 3),
uniformly, or by frequency.
Loss: logistic with the regulariser (6). At prediction log p_n is added (5), except for NCE, one-vs-each and
augment-and-reduce, whose optimum needs nothing added.
Inference: the sum of the score and log p_n, over candidates of both.

The paper keeps only a document's first label; here all are learnt from. Rows have no bias of their own: log p_n and the
vectors' mean replace it. The learning rate was chosen on WordNetMini's validation documents (docs/lab-notes).
"""

from typing import Any

from xc_core.classifiers import TableConfig
from xc_core.fusion import Sum
from xc_core.losses import NegativeSampling
from xc_core.recipes.base import RECIPES, Recipe, named
from xc_core.recipes.settings import FusionSettings
from xc_core.sampling import Random, Tree
from xc_core.scores import Classifier, Noise
from xc_core.train.encoder import EncoderSettings
from xc_core.train.table import ClassifierSettings

ADVERSARIAL = RECIPES.add(
    "adversarial",
    Recipe(
        name="adversarial",
        paper="Extreme Classification via Adversarial Softmax Approximation, Bamler and Mandt, ICLR 2020",
        module=__name__,
        encoder=EncoderSettings(epochs=0.0),
        classifier=ClassifierSettings(
            order=Random(batch_size=256),
            negatives=Tree(positives=0),
            loss=NegativeSampling(temperature=0.05, regulariser=1e-3),
            table=TableConfig(start="zero", unit=False, lr=0.003),
            epochs=30.0,
        ),
        scores=named(Classifier(), Noise()),
        fusion=FusionSettings(rule=Sum()),
    ),
)
_NO_BIAS: dict[str, Any] = {"noise": None}
"""Without the score that removes the bias."""


def _beside(name: str, paper: str, *, scores: dict[str, Any] | None = None, **classifier: dict[str, Any]) -> Recipe:
    """Register the same training with another source or loss."""
    changes: dict[str, Any] = {"classifier": classifier, "scores": scores or {}}
    return RECIPES.add(name, ADVERSARIAL.variant(name, paper, __name__, changes))


UNIFORM_NS = _beside(
    "uniform-ns",
    "negative sampling, uniform noise, as in Bamler and Mandt",
    scores=_NO_BIAS,
    negatives={"kind": "uniform", "positives": 0},
)
FREQ_NS = _beside(
    "freq-ns", "negative sampling, frequency noise (word2vec)", negatives={"kind": "frequency", "positives": 0}
)
NCE = _beside(
    "nce",
    "NCE, Gutmann and Hyvaerinen, 2010, the tree as base",
    scores=_NO_BIAS,
    loss={"kind": "nce", "temperature": 0.05, "bias": 8.0},
)
OVE = _beside(
    "ove",
    "one-vs-each, Titsias, 2016",
    scores=_NO_BIAS,
    negatives={"kind": "uniform", "positives": 0},
    loss={"kind": "one-vs-each", "temperature": 0.05},
)
ANR = _beside(
    "anr",
    "augment and reduce, Ruiz et al., ICML 2018",
    scores=_NO_BIAS,
    negatives={"kind": "importance", "positives": 0, "hard": 0, "uniform": 256},
    loss={"kind": "augment-reduce", "temperature": 0.05},
)
