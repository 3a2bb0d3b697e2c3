"""NGAME: Negative Mining-aware Mini-batching for Extreme Classification (Dahiya et al., WSDM 2023).

Algorithm 1: every tau epochs, from t = 0 on, cluster the documents' vectors into N / C clusters; a batch is ceil(S / C)
of them; the negatives of a document are the positives of the others; C grows.
M1, equation (1), one sampled positive per document, label text through the same encoder:
    sum_i sum_{l in P_i} sum_{k in N_i} [ E(x_i) . E(z_k) - E(x_i) . E(z_l) + gamma ]_+
M3: w_l = E(z_l). M4: the same loss in w_l, encoder frozen, all positives.
Fusion: a tree of depth 7 on (E(x) . E(z_l), E(x) . w_l, frequency of l) on validation documents, plus both scores.

The paper trains 300 epochs with tau = 5 and doubles C every 25, up to 12 times; it does not give the first C. Here C is
4, 8 and 16 in 3 epochs: with larger C the encoder was no better. On WordNetMini a random first epoch gives worse label
texts, but 0.7 points more P@1 after M4 (docs/lab-notes, clusters from the start). M4 has no curriculum: its vectors are
frozen, so it uses one clustering with C = 8. Where each value comes from: docs/defaults.md.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import Tree
from xc_core.losses import Triplet
from xc_core.recipes.base import RECIPES, Recipe, named
from xc_core.recipes.settings import ClustersSettings, FusionSettings
from xc_core.sampling import Clustered, InBatch, StoredClusters
from xc_core.scores import Classifier, Frequency, LabelText
from xc_core.train.encoder import EncoderSettings
from xc_core.train.heads import ByText
from xc_core.train.optim import OptimConfig
from xc_core.train.table import ClassifierSettings

NGAME = RECIPES.add(
    "ngame",
    Recipe(
        name="ngame",
        paper="NGAME, Dahiya et al., WSDM 2023",
        module=__name__,
        encoder=EncoderSettings(  # M1
            encoder=EncoderConfig(name="minilm", max_length=64, frozen_layers=3),  # E; L_max
            order=Clustered(
                batch_size=128,  # S
                size=4,  # C at t = 0
                double_every=1,  # epochs after which C doubles
                refresh_every=1,  # tau
                warmup_epochs=0,  # cluster at t = 0
            ),
            negatives=InBatch(positives=1),  # |P_i|
            scorer=ByText(),  # w_l = E(z_l)
            loss=Triplet(margin=0.3, hardest=10, positives=1, temperature=0.1),  # gamma; |N_i|; not in the paper
            optim=OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0),  # LR_1
            epochs=3.0,
        ),
        clusters=ClustersSettings(size=8),  # C of M4
        classifier=ClassifierSettings(  # M3, M4
            order=StoredClusters(batch_size=1024),  # S of M4
            negatives=InBatch(positives=0, unseen=128),  # all positives; labels without documents
            loss=Triplet(margin=0.2, hardest=5, positives=5, temperature=0.1),  # gamma; |N_i|; |P_i|
            table=TableConfig(start="text", unit=True, lr=0.02, decay=0.99),  # w_l = E(z_l); |w_l| = 1; LR_2
            epochs=30.0,
            warmup=0.03,
            dropout=0.3,
            refit=True,
        ),
        scores=named(LabelText(), Classifier(), Frequency()),
        fusion=FusionSettings(rule=Tree(depth=7, weight=1.0), rows=10_000, candidates=100),  # F
    ),
)
