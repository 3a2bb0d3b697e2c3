"""UniDEC: unified dual encoder and classifier training (2024), and DEPSL, its dual encoder alone.

Batches B from clusters of documents, every tau epochs; pool L_B: beta positives and eta of H_i for each document of B,
H_i being the nearest labels that are no positives. P_i^B = P_i in L_B: pick some labels (section 3.1). For a score s:
    L_PSL = sum_i 1 / |P_i^B| sum_{l in P_i^B} log [ 1 + sum_{k in L_B, not in P_i} e^{(s_ik - s_il) / t} ]
in both directions, documents to labels with lambda_D and labels to documents with 1 - lambda_D (table 4).
    L = lambda L_D + (1 - lambda) L_C
L_D on label texts, s = Phi_D(x) . Phi_D(z); L_C on rows, s = Phi_C(x) . Psi_l, plus BCE (table 3). Inference: a search
over N(Phi_D(z)) and N(Psi) concatenated, the sum of both scores.

Table 3 trains rows without normalising them and searches them normalised; here they are unit vectors in training too.
Where each value comes from: docs/defaults.md.
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
from xc_core.train.heads import ByBoth, ByText
from xc_core.train.optim import OptimConfig
from xc_core.train.table import ClassifierSettings

_ORDER = Clustered(batch_size=256, size=8, double_every=1, refresh_every=1, warmup_epochs=1)  # |B|; C; tau
_POOL = Mined(
    positives=2,  # beta
    share=True,  # P_i^B
    hard=2,  # eta
    search=20,  # |H_i|
    search_in="texts",
    refresh_every=1,  # tau
    warmup_epochs=1,
)
_SOFTMAX = DecoupledSoftmax(temperature=0.05, forward=0.5)  # t; lambda_D = lambda_C
_OPTIM = OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0)
_NO_M4 = ClassifierSettings(epochs=0.0)

DEPSL = RECIPES.add(
    "depsl",
    Recipe(
        name="depsl",
        paper="DEPSL, of UniDEC, 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(name="minilm", max_length=64, frozen_layers=3, projection=384),  # g_1
            order=_ORDER,
            negatives=_POOL,  # L_B
            scorer=ByText(),
            loss=_SOFTMAX,  # L_D
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
            encoder=EncoderConfig(name="minilm", max_length=64, frozen_layers=3, projection=384, heads=2),  # g_1, g_2
            order=_ORDER,
            negatives=_POOL,  # L_B
            scorer=ByBoth(
                share=0.5,  # lambda
                loss=WithBinary(softmax=_SOFTMAX, binary=Bce(temperature=0.05, bias=10.0), weight=0.1),  # L_C
                rows=TableConfig(start="text", unit=True, lr=0.01, decay=0.99),  # Psi
                dropout=0.0,
            ),
            loss=_SOFTMAX,  # L_D
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=_NO_M4,
        scores=named(LabelText(search=False), Classifier(joined=True)),
        fusion=FusionSettings(rule=Sum(), candidates=100),
    ),
)
