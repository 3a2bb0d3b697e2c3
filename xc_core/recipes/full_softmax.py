"""Methods whose loss is over all labels: Renee (a classifier) and DEXML (a dual encoder).

``renee`` (Jain et al., MLSys 2023), f_l = w_l . E(x), label texts are train documents, rows trained with the encoder:
    sum_{l in P} log(1 + e^-f_l) + sum_{l not in P} log(1 + e^f_l)
It is computed in blocks of labels, so that neither scores nor targets of all exist at once. A step costs O(B L D).
``dexml`` (Gupta et al., ICLR 2024), s_l = E(x) . E(z_l), decoupled softmax, label texts encoded twice (GradCache):
    1 / |P| sum_{l in P} -log [ e^{s_l / t} / (e^{s_l / t} + sum_{k not in P} e^{s_k / t}) ]
Up to 4,096 labels it is over all of them, as in the paper. Above, it is over a uniform sample of as many and the
batch's positives, as in the paper's approximation, because encoding every label in every step needs many accelerators.

Where each value comes from: docs/defaults.md.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig, Pooling
from xc_core.losses import Bce, DecoupledSoftmax
from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.shared import NO_M4, PLAIN_SUM
from xc_core.sampling import All, Mixture, Random
from xc_core.scores import Classifier, LabelText
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import ByRow, ByText
from xc_core.train.optim import OptimConfig

_ENCODER = EncoderConfig(name="minilm", pooling=Pooling.MEAN, max_length=64, frozen_layers=3)  # E
_OPTIM = OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0)

RENEE = register(
    Recipe(
        name="renee",
        paper="Renee: End-to-end Training of Extreme Classification Models, Jain et al., MLSys 2023",
        module=__name__,
        encoder=EncoderSettings(
            encoder=_ENCODER,
            order=Random(batch_size=256),  # B
            negatives=All(positives=0),  # all l not in P; all of P
            scorer=ByRow(
                rows=TableConfig(start="text", unit=False, lr=0.01, decay=0.99, optimiser="rmsprop"),  # w
            ),
            loss=Bce(temperature=0.05, bias=10.0),  # f = w . E(x) / 0.05 - 10
            optim=_OPTIM,
            augment=True,  # label texts as documents
            epochs=3.0,
        ),
        classifier=NO_M4,  # w is trained above, with E
        scores=named(Classifier()),  # f_l
        fusion=PLAIN_SUM,  # of one score: f_l alone ranks
    ),
)
DEXML = register(
    Recipe(
        name="dexml",
        paper="DEXML: Dual-Encoders for Extreme Multi-Label Classification, Gupta et al., ICLR 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=_ENCODER,
            order=Random(batch_size=1024),  # B
            negatives=Mixture(
                positives=0,  # all of P
                share=True,  # P in the whole pool
                uniform=4096,  # labels per batch; all if there are no more
            ),
            scorer=ByText(cache=True),  # GradCache
            loss=DecoupledSoftmax(
                temperature=0.05,  # t
                forward=1.0,  # documents to labels alone
            ),
            optim=_OPTIM,
            epochs=3.0,
        ),
        classifier=NO_M4,  # there are no rows w_l
        scores=named(LabelText(search=True)),  # s_l
        fusion=PLAIN_SUM,  # of one score: s_l alone ranks
    ),
)
