"""NGAME: Negative Mining-aware Mini-batching for Extreme Classification (Dahiya et al., WSDM 2023).

Order: near documents together, clustered on stale vectors every tau epochs, with growing clusters (algorithm 1,
section 3).
Negatives: the positives of the batch's other documents; M1 samples one positive per document, M4 takes all (appendix
C).
Scorer: in M1 the label's text; in M4 a table row that starts at its text's vector, with a frozen encoder (M3).
Loss: triplet, margin 0.3 in M1 and 0.2 in M4. Fusion: a tree of depth 7 on validation documents, plus both scores.

Margins, sampling and fusion are the paper's. The paper trains 300 epochs and doubles C every 25; for a CPU the same
curriculum is 3 epochs with C doubling every epoch, and the lower half of the encoder is frozen. Batch sizes, learning
rates, epochs, frozen layers and dropout were chosen on validation documents of WordNetMini (docs/lab-notes), with
all-MiniLM-L6-v2 as the encoder.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.losses import Triplet
from xc_core.recipes.base import RECIPES, Recipe
from xc_core.sampling import Clustered, InBatch, StoredClusters
from xc_core.train.encoder import EncoderSettings
from xc_core.train.optim import OptimConfig
from xc_core.train.table import ClassifierSettings

NGAME = RECIPES.add(
    "ngame",
    Recipe(
        name="ngame",
        paper="NGAME, Dahiya et al., WSDM 2023",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(frozen_layers=3),
            order=Clustered(batch_size=128, size=4, double_every=1, refresh_every=1),
            negatives=InBatch(positives=1),
            loss=Triplet(margin=0.3, hardest=10, positives=1),
            optim=OptimConfig(lr=4e-4),
            epochs=3.0,
        ),
        classifier=ClassifierSettings(
            order=StoredClusters(batch_size=1024),
            negatives=InBatch(positives=0, unseen=128),
            loss=Triplet(margin=0.2, hardest=5, positives=5),
            table=TableConfig(lr=0.02),
            epochs=30.0,
            dropout=0.3,
            refit=True,
        ),
    ),
)
