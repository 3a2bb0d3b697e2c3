"""ASTRA: accurate and scalable ANNS-based training of extreme classifiers (2024), and the strategies of its table 5.

Order: random. Scorer: table rows, trained along with the encoder; label texts are train documents (section 3.2).
Negatives: k_h stale hard ones from a search over the *classifier rows*, started in the background one epoch before its
use on the vectors of the epoch before that, and k_r uniform ones with weights that make the loss unbiased (lemma 4.1).
Loss: BCE, equation 2. Inference: a search over the rows.

A patent application (US-20250371338-A1) reads on this recipe; it is never the default.

``astra-classifier-hard`` and ``astra-label-hard`` have no uniform negatives. Their loss is biased and collapses in the
paper's table 5 (17.9 against 47.1 P@1): they are here for comparison, not for use.

The paper trains 40 to 100 epochs, searches every 5 and draws k_r = 1,600 to 6,400 labels for each document; here there
is a search per epoch, and the draw is shared by the batch. Above 3 million labels the paper puts a projection to 64
before the rows: ``encoder.encoder.projection=64``. Frozen layers and learning rate are those of ``ngame``; epochs are
one more, because the first search is used in the third. Rows' learning rate, temperature, bias and k_h are guesses.
"""

from typing import Any

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import Sum
from xc_core.losses import Bce
from xc_core.recipes.base import RECIPES, Recipe, named
from xc_core.recipes.settings import FusionSettings
from xc_core.sampling import Importance, Random
from xc_core.scores import Classifier
from xc_core.train.encoder import EncoderSettings
from xc_core.train.heads import ByRow
from xc_core.train.optim import OptimConfig
from xc_core.train.table import ClassifierSettings

ASTRA = RECIPES.add(
    "astra",
    Recipe(
        name="astra",
        paper="ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers, 2024, table 5: random + w-hard",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(frozen_layers=3),
            order=Random(batch_size=256),
            negatives=Importance(
                positives=0, hard=40, uniform=1000, search_in="rows", warmup_epochs=2, refresh_every=1, ahead=1
            ),
            scorer=ByRow(rows=TableConfig(start="text", unit=False, lr=0.01)),
            loss=Bce(temperature=0.05, bias=10.0),
            optim=OptimConfig(lr=4e-4),
            augment=True,
            epochs=4.0,
        ),
        classifier=ClassifierSettings(epochs=0.0),
        scores=named(Classifier()),
        fusion=FusionSettings(rule=Sum()),
    ),
)


def _strategy(name: str, row: str, **negatives: Any) -> Recipe:
    """Register ASTRA with other negatives, 1,040 in all as there: a row of table 5."""
    changes = {"encoder": {"negatives": negatives}}
    return RECIPES.add(name, ASTRA.variant(name, f"ASTRA, table 5: {row}", __name__, changes))


RANDOM = _strategy("astra-random", "random", hard=0, uniform=1040, search_in="texts", ahead=0)
LABEL_HARD = _strategy("astra-label-hard", "E-hard alone, biased", hard=1040, uniform=0, search_in="texts")
RANDOM_LABEL_HARD = _strategy("astra-random-label-hard", "random + E-hard", search_in="texts")
CLASSIFIER_HARD = _strategy("astra-classifier-hard", "w-hard alone, biased", hard=1040, uniform=0)
LABEL_CURRICULUM = _strategy("astra-label-curriculum", "curriculum, E-hard", search_in="texts", curriculum=3.0)
CLASSIFIER_CURRICULUM = _strategy("astra-classifier-curriculum", "curriculum, w-hard", curriculum=3.0)
