"""UniDEC: unified dual encoder and classifier training (2024), and DEPSL, its dual encoder alone.

Takes: nothing.            Gives: the recipes ``depsl`` and ``unidec``.
May import: recipes.base and the configs it is made of.  Never: code; a method is data.

Order: clustered, refreshed every tau epochs (algorithm 1).
Negatives: the pool of up to beta = 2 positives and eta = 2 hard negatives of each document, these from a search over
label texts; every positive in the pool is learnt from, whoever brought it in (pick some labels, section 3.1).
Scorer: label texts (``depsl``); with ``unidec`` table rows too, each behind a projection of its own, trained at once.
Loss: decoupled softmax on label texts in both directions (lambda_D = 0.5, table 4); on rows the same plus BCE, the best
row of table 3; lambda = 0.5.   Inference: a search over both vectors concatenated, the sum of both scores.

Table 3 trains rows without normalising them and searches them normalised; here they are unit vectors in training too.
Epochs, frozen layers and step size are those found on WordNetMini's validation rows (docs/benchmarks.md).
"""

from xc_core.ann import IndexConfig
from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import FusionConfig
from xc_core.losses import LossConfig
from xc_core.recipes.base import RECIPES, ClassifierStage, EncoderStage, IndexStage, Recipe
from xc_core.sampling import NegativesConfig, OrderConfig
from xc_core.train.optim import OptimConfig

_ORDER = OrderConfig(kind="clustered", batch_size=256, cluster_size=8, double_every=1, refresh_every=1)
_POOL = NegativesConfig(kind="mined", positives=2, share=True, hard=2, search=20)
_TEXTS = LossConfig(name="decoupled-softmax", temperature=0.05, forward=0.5)
_OPTIM = OptimConfig(lr=4e-4)
_NO_MORE = ClassifierStage(epochs=0.0)

DEPSL = RECIPES.add(
    "depsl",
    Recipe(
        name="depsl",
        paper="DEPSL, of UniDEC, 2024",
        module=__name__,
        encoder=EncoderStage(
            encoder=EncoderConfig(projection=384, frozen_layers=3),
            order=_ORDER,
            negatives=_POOL,
            loss=_TEXTS,
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=_NO_MORE,
        index=IndexStage(rows=IndexConfig(), texts=False),
        fusion=FusionConfig(kind="sum", add=("label_text",)),
    ),
)
UNIDEC = RECIPES.add(
    "unidec",
    Recipe(
        name="unidec",
        paper="UniDEC: Unified Dual Encoder and Classifier Training for Extreme Multi-Label Classification, 2024",
        module=__name__,
        encoder=EncoderStage(
            encoder=EncoderConfig(projection=384, heads=2, frozen_layers=3),
            order=_ORDER,
            negatives=_POOL,
            loss=_TEXTS,
            optim=_OPTIM,
            text_share=0.5,
            table=TableConfig(lr=0.01),
            table_loss=LossConfig(name="decoupled-softmax", temperature=0.05, forward=0.5, binary=0.1, bias=10.0),
            epochs=3.0,
        ),
        classifier=_NO_MORE,
        index=IndexStage(rows=IndexConfig(), texts=False, joined=True),
        fusion=FusionConfig(kind="sum", add=("label_text", "classifier")),
    ),
)
