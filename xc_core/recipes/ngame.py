"""NGAME: Negative Mining-aware Mini-batching for Extreme Classification (Dahiya et al., WSDM 2023).

Algorithm 1: every tau epochs, from t = 0 on, cluster the documents' vectors into N / C clusters; a batch is ceil(S / C)
of them; the negatives N_i of document i are the positives P_i of the others; C grows. With w_l = E(z_l) + eta_l, (1):
    sum_i sum_{l in P_i} sum_{k in N_i} [ w_k . E(x_i) - w_l . E(x_i) + gamma ]_+
M1: eta = 0, so w_l = E(z_l), and |P_i| = 1. M3: w_l starts at E(z_l). M4: (1) in w_l, encoder frozen, all positives.
Fusion F: E(z_l) . E(x) + w_l . E(x) + T(d), T a regression tree of depth 7, d = (E(z_l) . E(x), w_l . E(x), f_l), f_l
the frequency of label l; fitted on validation documents V, shortlists and positives (appendix C).

The paper trains 300 epochs with tau = 5 and doubles C every 25, up to 12 times; it does not give the first C. Here C is
4, 8 and 16 in 3 epochs: with larger C a small encoder was no better, MiniLM was not tried. On WordNetMini a random
first epoch gives worse label texts, but 0.7 points more P@1 after M4, random batches alone (``dpr``) 1.5 points
(docs/lab-notes: clusters from the start, ngame at equal training). M4 has no curriculum: its vectors are frozen, so it
uses one clustering with C = 8. Where each value comes from: docs/defaults.md.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig, Pooling
from xc_core.fusion import Tree
from xc_core.losses import Triplet
from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.settings import AuditSettings, ClustersSettings, FusionSettings
from xc_core.sampling import Clustered, InBatch, StoredClusters
from xc_core.scores import Classifier, Frequency, LabelText
from xc_core.train.classifier import ClassifierSettings
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import ByText
from xc_core.train.optim import OptimConfig

NGAME = register(
    Recipe(
        name="ngame",
        paper="NGAME, Dahiya et al., WSDM 2023",
        module=__name__,
        encoder=EncoderSettings(  # M1
            encoder=EncoderConfig(name="minilm", pooling=Pooling.MEAN, max_length=64, frozen_layers=3),  # E; L_max
            order=Clustered(
                batch_size=128,  # S
                size=4,  # C at t = 0
                double_every=1,  # epochs after which C doubles
                refresh_every=1,  # tau
                warmup_epochs=0,  # cluster at t = 0
            ),
            negatives=InBatch(positives=1),  # |P_i|
            scorer=ByText(),  # w_l = E(z_l)
            loss=Triplet(  # (1)
                margin=0.3,  # gamma
                hardest=10,  # |N_i|
                positives=1,  # |P_i|
                temperature=0.1,  # weights within N_i; the paper: equal ones
            ),
            optim=OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0),  # LR_1
            epochs=3.0,
        ),
        clusters=ClustersSettings(size=8),  # C of M4
        classifier=ClassifierSettings(  # M3, M4
            order=StoredClusters(batch_size=1024),  # S of M4
            negatives=InBatch(
                positives=0,  # |P_i|: all
                unseen=128,  # labels without documents; the paper: none
            ),
            loss=Triplet(  # (1)
                margin=0.2,  # gamma; table 9: 0.3
                hardest=5,  # |N_i|
                positives=5,  # the lowest of P_i
                temperature=0.1,  # weights within N_i; the paper: equal ones
            ),
            table=TableConfig(
                start="text",  # w_l = E(z_l)
                unit=True,  # |w_l| = 1
                lr=0.02,  # LR_2
                decay=0.99,
                optimiser="rmsprop",  # the paper: Adam
            ),
            epochs=30.0,
            warmup=0.03,
            dropout=0.3,  # of E(x)
            refit=True,  # train on V too
            enough=10_000,  # |V|
        ),
        scores=named(
            LabelText(search=True),  # E(z_l) . E(x); the paper searches the rows alone
            Classifier(),  # w_l . E(x)
            Frequency(),  # f_l
        ),
        fusion=FusionSettings(  # F
            rule=Tree(  # T
                depth=7,
                weight=1.0,  # of both scores, added to T
                min_leaf=20,
            ),
            rows=10_000,  # |V|
            candidates=100,  # labels of a shortlist
            fallback=True,  # a score alone, or the sum, if it is better than F; the paper: F
        ),
        audit=AuditSettings(sample=2000, k=20, radius=0.8),  # r: of the figures of Theorem 1 alone
    ),
)
