"""UniDEC: unified dual encoder and classifier training (2024), and DEPSL, its dual encoder alone.

Order: clustered, refreshed every tau epochs (algorithm 1).
Negatives: the pool of up to beta = 2 positives and eta = 2 hard negatives of each document, found by a search over
label texts; every positive in the pool is learnt from, whichever document added it (pick some labels, section 3.1).
Scorer: label texts (``depsl``); with ``unidec`` table rows too, each behind a projection of its own, trained at once.
Loss: decoupled softmax on label texts in both directions (lambda_D = 0.5, table 4); on rows the same plus BCE, the best
row of table 3; lambda = 0.5. Inference: a search over both vectors concatenated, the sum of both scores.

Table 3 trains rows without normalising them and searches them normalised; here they are unit vectors in training too.
Epochs, frozen layers and learning rate are those of ``ngame``. Rows' learning rate, temperature and bias are guesses.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import Sum
from xc_core.losses import Bce, DecoupledSoftmax, WithBinary
from xc_core.recipes.base import RECIPES, Recipe, named
from xc_core.recipes.settings import FusionSettings
from xc_core.sampling import Clustered, Mined
from xc_core.scores import Classifier, LabelText
from xc_core.train.encoder import EncoderSettings
from xc_core.train.heads import ByBoth
from xc_core.train.optim import OptimConfig
from xc_core.train.table import ClassifierSettings

_ORDER = Clustered(batch_size=256, size=8, double_every=1, refresh_every=1)
_POOL = Mined(positives=2, share=True, hard=2, search=20)
_SOFTMAX = DecoupledSoftmax(temperature=0.05, forward=0.5)
_OPTIM = OptimConfig(lr=4e-4)
_NO_M4 = ClassifierSettings(epochs=0.0)

DEPSL = RECIPES.add(
    "depsl",
    Recipe(
        name="depsl",
        paper="DEPSL, of UniDEC, 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(projection=384, frozen_layers=3),
            order=_ORDER,
            negatives=_POOL,
            loss=_SOFTMAX,
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=_NO_M4,
        scores=named(LabelText()),
        fusion=FusionSettings(rule=Sum()),
    ),
)
UNIDEC = RECIPES.add(
    "unidec",
    Recipe(
        name="unidec",
        paper="UniDEC: Unified Dual Encoder and Classifier Training for Extreme Multi-Label Classification, 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(projection=384, heads=2, frozen_layers=3),
            order=_ORDER,
            negatives=_POOL,
            scorer=ByBoth(
                share=0.5,
                loss=WithBinary(softmax=_SOFTMAX, binary=Bce(temperature=0.05, bias=10.0), weight=0.1),
                rows=TableConfig(lr=0.01),
            ),
            loss=_SOFTMAX,
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=_NO_M4,
        scores=named(LabelText(search=False), Classifier(joined=True)),
        fusion=FusionSettings(rule=Sum()),
    ),
)
