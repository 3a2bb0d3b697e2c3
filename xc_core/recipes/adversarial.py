"""Adversarial softmax approximation (Bamler and Mandt, ICLR 2020) and its comparisons, on the M1 of ``ngame.py``.

The softmax (1) is approximated by negative sampling: (2) and its regularised form (6), s the score, y' drawn from p_n:
    -log sigma(s_y) - log sigma(-s_y') + lambda [ (s_y + log p_n(y | x))^2 + (s_y' + log p_n(y' | x))^2 ]
p_n: a probabilistic tree on k principal components of x (section 3), a sum over the path from the root to y (7):
    log p_n(y | x) = sum_v log sigma(zeta_v (w_v . x + b_v)), zeta_v = 1 to the right, -1 to the left
Fitted from the root: at a node v with the labels Y_v, Newton steps in (w_v, b_v) maximise (8), with its regulariser,
    sum_{(x, y): y in Y_v} log sigma(zeta_y (w_v . x + b_v)) - lambda_n (|w_v|^2 + b_v^2)
in turn with the split (9): the half of Y_v with the largest Delta_y = sum_{x of y} (w_v . x + b_v) goes to the right.
Or p_n is uniform, or by frequency. Prediction (5): argmax_y s_y + log p_n(y | x).

NCE, one-vs-each and augment-and-reduce add nothing at prediction. Their losses of a pair (x, y):
    nce, m draws:  -log sigma(u_y) - sum_y' log sigma(-u_y'), u_y = s_y - c - log m - log p_n(y | x)
    ove:           -mean_y' log sigma(s_y - s_y'), for the sum over all y' != y; its prior is a decay of the rows
    anr:           log(1 + eta) + (S - eta) / (1 + eta), S = sum_{y' != y} e^{s_y' - s_y}, estimated from the draws;
                   eta, one number per pair, follows S. At eta = S it is the softmax loss (1), otherwise above it.

x: the vectors of a trained encoder, that of ``ngame`` after its M1 (the paper: XML-CNN features, trained on the data).
``adversarial-pretrained`` does not train the encoder, as all six did until 2026-11-22. The paper keeps a document's
first label; here all are learnt from. Rows have no bias b_y. Where each value comes from: docs/defaults.md.
"""

from typing import Any

from xc_core.classifiers import TableConfig
from xc_core.losses import NegativeSampling
from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.ngame import NGAME
from xc_core.recipes.shared import PLAIN_SUM
from xc_core.sampling import Random, Tree
from xc_core.scores import Classifier, Noise
from xc_core.train.classifier import ClassifierSettings

_LR = 0.003  # rho, all six
_SCALE = 0.05  # s = w . x / 0.05

ADVERSARIAL = register(
    Recipe(
        name="adversarial",
        paper="Extreme Classification via Adversarial Softmax Approximation, Bamler and Mandt, ICLR 2020",
        module=__name__,
        encoder=NGAME.encoder,  # x
        classifier=ClassifierSettings(
            order=Random(batch_size=256),
            negatives=Tree(  # p_n
                positives=0,  # all y; the paper: the first
                draws=1,  # y' per y
                width=16,  # k
                regulariser=0.1,  # lambda_n
            ),
            loss=NegativeSampling(  # (6)
                temperature=_SCALE,
                regulariser=1e-2,  # lambda
            ),
            table=TableConfig(
                start="zero",  # w_y = 0
                unit=False,
                lr=_LR,  # rho
                decay=0.99,
                optimiser="rmsprop",  # the paper: Adagrad
                weight_decay=0.0,
            ),
            epochs=30.0,
            warmup=0.03,
        ),
        scores=named(Classifier(), Noise()),  # s_y, log p_n
        fusion=PLAIN_SUM,  # s_y + log p_n (5); s_y alone without the score noise
    ),
)
_NO_BIAS: dict[str, Any] = {"noise": None}
"""Without the score that removes the bias."""


def _register_variant(
    name: str, paper: str, *, scores: dict[str, Any] | None = None, **classifier: dict[str, Any]
) -> Recipe:
    """Register the same training with another source of negatives or another loss."""
    changes: dict[str, Any] = {"classifier": classifier, "scores": scores or {}}
    return register(ADVERSARIAL.variant(name, paper, __name__, changes))


PRETRAINED = register(
    ADVERSARIAL.variant(
        "adversarial-pretrained",
        "Bamler and Mandt, on the vectors of an encoder that is not trained on the data",
        __name__,
        {"encoder": {"epochs": 0.0}},
    ),
)
UNIFORM_NS = _register_variant(
    "uniform-ns",
    "negative sampling, uniform noise, as in Bamler and Mandt",
    scores=_NO_BIAS,
    negatives={"kind": "uniform", "positives": 0, "draws": 1},  # p_n = 1 / L
    loss={"regulariser": 2e-2},  # lambda
)
FREQ_NS = _register_variant(
    "freq-ns",
    "negative sampling, frequency noise (word2vec)",
    negatives={"kind": "frequency", "positives": 0, "draws": 1},  # p_n = share of train pairs
    loss={"regulariser": 2e-2},  # lambda
)
NCE = _register_variant(
    "nce",
    "NCE, Gutmann and Hyvaerinen, 2010, the tree as base",
    scores=_NO_BIAS,
    loss={"kind": "nce", "temperature": _SCALE, "bias": 14.0},  # c; above log L
)
OVE = _register_variant(
    "ove",
    "one-vs-each, Titsias, 2016",
    scores=_NO_BIAS,
    negatives={"kind": "uniform", "positives": 0, "draws": 1},  # y' per y
    loss={"kind": "one-vs-each", "temperature": _SCALE},
    table={"weight_decay": 0.5},  # the prior
)
ANR = _register_variant(
    "anr",
    "augment and reduce, Ruiz et al., ICML 2018",
    scores=_NO_BIAS,
    negatives={"kind": "importance", "positives": 0, "hard": 0, "uniform": 256, "draws": 1},  # y' per batch
    loss={"kind": "augment-reduce", "temperature": _SCALE, "decay": 0.9},  # eta: its t-th S has weight t^-0.9
)
