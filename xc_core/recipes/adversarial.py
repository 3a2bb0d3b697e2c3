"""Adversarial softmax approximation (Bamler and Mandt, ICLR 2020) and the methods it is compared with.

Takes: nothing.            Gives: ``adversarial``, ``uniform-ns``, ``freq-ns``, ``nce``, ``ove``, ``anr``.
May import: recipes.base and the configs it is made of.  Never: code; a method is data.

Order: random.   Scorer: table rows on frozen vectors of the encoder as it came.
Negatives: one label for each positive pair, drawn from the probabilistic tree over 16 principal components (section 3);
uniformly; by frequency.
Loss: logistic with the regulariser (6); at prediction log p_n is added (5), but for NCE, one-vs-each and
augment-and-reduce, whose optimum needs nothing added.
Inference: the sum of score and log p_n over candidates of both.

The paper keeps a document's first label alone; here all are learnt from. Rows have no bias of their own: log p_n and
the vectors' mean stand in for it. The step size was found on WordNetMini's validation rows (docs/benchmarks.md).
"""

from dataclasses import replace
from typing import Any

from xc_core.classifiers import TableConfig
from xc_core.fusion import FusionConfig
from xc_core.losses import LossConfig
from xc_core.recipes.base import RECIPES, ClassifierStage, EncoderStage, IndexStage, Recipe
from xc_core.sampling import NegativesConfig, OrderConfig

_NO_BIAS = FusionConfig(kind="sum", add=("classifier",))
_UNBIASED = FusionConfig(kind="sum", add=("classifier", "noise"))

ADVERSARIAL = RECIPES.add(
    "adversarial",
    Recipe(
        name="adversarial",
        paper="Extreme Classification via Adversarial Softmax Approximation, Bamler and Mandt, ICLR 2020",
        module=__name__,
        encoder=EncoderStage(epochs=0.0),
        classifier=ClassifierStage(
            order=OrderConfig(kind="random", batch_size=256, cluster_size=1),
            negatives=NegativesConfig(kind="tree", positives=0),
            loss=LossConfig(name="negative-sampling", temperature=0.05, regulariser=1e-3),
            table=TableConfig(start="zero", unit=False, lr=0.003),
            epochs=30.0,
        ),
        index=IndexStage(texts=False),
        fusion=_UNBIASED,
    ),
)


def _beside(name: str, paper: str, fusion: FusionConfig, **classifier: dict[str, Any]) -> Recipe:
    """Return the same training with another source or loss."""
    own = ADVERSARIAL.variant(name, paper, __name__, {"classifier": classifier})
    return RECIPES.add(name, replace(own, fusion=fusion))


UNIFORM_NS = _beside(
    "uniform-ns", "negative sampling, uniform noise, as in Bamler and Mandt", _NO_BIAS, negatives={"kind": "uniform"}
)
FREQ_NS = _beside(
    "freq-ns", "negative sampling, frequency noise (word2vec)", _UNBIASED, negatives={"kind": "frequency"}
)
NCE = _beside("nce", "NCE, Gutmann and Hyvaerinen, 2010, the tree as base", _NO_BIAS, loss={"name": "nce", "bias": 8.0})
OVE = _beside(
    "ove", "one-vs-each, Titsias, 2016", _NO_BIAS, negatives={"kind": "uniform"}, loss={"name": "one-vs-each"}
)
ANR = _beside(
    "anr",
    "augment and reduce, Ruiz et al., ICML 2018",
    _NO_BIAS,
    negatives={"kind": "importance", "hard": 0, "uniform": 256},
    loss={"name": "augment-reduce"},
)
