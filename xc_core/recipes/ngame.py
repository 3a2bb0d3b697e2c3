"""NGAME: Negative Mining-aware Mini-batching for Extreme Classification (Dahiya et al., WSDM 2023).

Takes: nothing.            Gives: the recipe ``ngame``.
May import: recipes.base and the configs it is made of.  Never: code; a method is data.

Order: near documents together, clustered on stale vectors every tau epochs, clusters growing (algorithm 1, section 3).
Negatives: the positives of the batch's other documents; M1 samples one positive a document, M4 takes all (appendix C).
Scorer: M1 the label's text; M4 a table row that starts at its text's vector, the encoder frozen (M3).
Loss: triplet, margin 0.3 in M1 and 0.2 in M4.   Fusion: a tree of depth 7 on validation rows, plus both scores.

Margins, sampling and fusion are the paper's. It trains 300 epochs and doubles C every 25; for a CPU the same curriculum
is 3 epochs with C doubling every epoch, the lower half of the encoder staying as it came. Batch sizes, step sizes,
epochs, frozen layers and dropout were chosen on validation rows of WordNetMini (docs/benchmarks.md), the encoder being
all-MiniLM-L6-v2.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.losses import LossConfig
from xc_core.recipes.base import RECIPES, ClassifierStage, EncoderStage, Recipe
from xc_core.sampling import NegativesConfig, OrderConfig
from xc_core.train.optim import OptimConfig

NGAME = RECIPES.add(
    "ngame",
    Recipe(
        name="ngame",
        paper="NGAME, Dahiya et al., WSDM 2023",
        module=__name__,
        encoder=EncoderStage(
            encoder=EncoderConfig(frozen_layers=3),
            order=OrderConfig(kind="clustered", batch_size=128, cluster_size=4, double_every=1, refresh_every=1),
            negatives=NegativesConfig(kind="in-batch", positives=1),
            loss=LossConfig(name="triplet", margin=0.3, negatives=10, positives=1),
            optim=OptimConfig(lr=4e-4),
            epochs=3.0,
        ),
        classifier=ClassifierStage(
            order=OrderConfig(kind="clustered", batch_size=1024, cluster_size=8),
            negatives=NegativesConfig(kind="in-batch", positives=0, unseen=128),
            loss=LossConfig(name="triplet", margin=0.2, negatives=5, positives=5),
            table=TableConfig(lr=0.02),
            epochs=30.0,
            dropout=0.3,
            refit=True,
        ),
    ),
)
