"""UniDEC: unified dual encoder and classifier training (2024), and DEPSL, its dual encoder alone.

Batches B = {Q_B, L_B}: documents Q_B from clusters, every tau epochs; labels L_B: up to beta of P_i and eta of H_i for
each of them, H_i being the nearest labels that are no positives. P_i^B = P_i in L_B: pick some labels (section 3.1).
L_PSL with decoupled softmax (sections 3.1 and 4.3) for a score s, the paper's temperature tau written t:
    L_q2l = sum_{i in Q_B} 1 / |P_i^B| sum_{l in P_i^B} log [ 1 + sum_{k in L_B, not in P_i} e^{(s_ik - s_il) / t} ]
L_l2q is the same from labels to documents.
    L_D = lambda_D L_q2l + (1 - lambda_D) L_l2q on label texts, s = Phi_D(x) . Phi_D(z), Phi_D = N(g_1(Phi))
    L_C = lambda_C L_q2l + (1 - lambda_C) L_l2q on rows, s = Phi_C(x) . Psi_l, Phi_C = g_2(Phi); plus BCE (table 3)
    L = lambda L_D + (1 - lambda) L_C
Inference: a search over Phi_D(z) and N(Psi) concatenated, the sum of both scores (section 3.4).

The paper trains rows without normalising them and searches them normalised; here they are unit vectors in training too.
Where each value comes from: docs/defaults.md.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig, Pooling
from xc_core.losses import Bce, DecoupledSoftmax, WithBinary
from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.shared import NO_M4, PLAIN_SUM
from xc_core.sampling import Clustered, Mined
from xc_core.scores import Classifier, LabelText
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import ByBoth, ByText
from xc_core.train.optim import OptimConfig

_ORDER = Clustered(
    batch_size=256,  # |Q_B|
    size=8,  # documents per cluster; the paper: |Q_B|
    double_every=1,
    refresh_every=1,  # tau
    warmup_epochs=1,
)
_POOL = Mined(
    positives=2,  # beta
    share=True,  # P_i^B
    hard=2,  # eta
    search=20,  # |H_i|; the paper: eta tau
    search_in="texts",  # Phi_D(z)
    refresh_every=1,  # tau
    warmup_epochs=1,
)
_SOFTMAX = DecoupledSoftmax(
    temperature=0.05,  # t
    forward=0.5,  # lambda_D, lambda_C
)
_OPTIM = OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0)  # of Phi, g_1 and g_2

DEPSL = register(
    Recipe(
        name="depsl",
        paper="DEPSL, of UniDEC, 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(
                name="minilm",  # Phi
                pooling=Pooling.MEAN,
                max_length=64,
                frozen_layers=3,
                projection=384,  # g_1, d
            ),
            order=_ORDER,  # Q_B
            negatives=_POOL,  # L_B
            scorer=ByText(),  # Phi_D(z)
            loss=_SOFTMAX,  # L_D
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=NO_M4,  # there is no Psi
        scores=named(LabelText(search=True)),
        fusion=PLAIN_SUM,  # of one score: Phi_D(x) . Phi_D(z) alone ranks
    ),
)
UNIDEC = register(
    Recipe(
        name="unidec",
        paper="UniDEC: Unified Dual Encoder and Classifier Training for Extreme Multi-Label Classification, 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(
                name="minilm",  # Phi
                pooling=Pooling.MEAN,
                max_length=64,
                frozen_layers=3,
                projection=384,  # d
                heads=2,  # g_1, g_2
            ),
            order=_ORDER,  # Q_B
            negatives=_POOL,  # L_B
            scorer=ByBoth(
                share=0.5,  # lambda
                loss=WithBinary(  # L_C
                    softmax=_SOFTMAX,
                    binary=Bce(temperature=0.05, bias=10.0),
                    weight=0.1,  # of BCE; not in the paper
                ),
                rows=TableConfig(start="text", unit=True, lr=0.01, decay=0.99, optimiser="rmsprop"),  # Psi
                dropout=0.0,  # the paper: 0.1 in g_1 and g_2
            ),
            loss=_SOFTMAX,  # L_D
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=NO_M4,  # Psi is trained above, with Phi
        scores=named(LabelText(search=False), Classifier(joined=True)),  # one search over both, concatenated
        fusion=PLAIN_SUM,  # both scores: the concatenated vectors
    ),
)
