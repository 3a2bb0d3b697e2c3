"""Methods whose loss is over all labels: Renee (a classifier) and DEXML (a dual encoder).

``renee`` (Jain et al., MLSys 2023): table rows trained with the encoder by BCE over all labels, in blocks, so that
neither scores nor targets of all labels exist at once; label texts are train documents. A step costs O(B L D).
``dexml`` (Gupta et al., ICLR 2024): label texts through the encoder, decoupled softmax, GradCache. Up to 4,096 labels
it is over all of them, as in the paper. Above, it is over a uniform sample of as many and the batch's positives, as in
the paper's approximation, because encoding every label in every step needs many accelerators.

Epochs, frozen layers and learning rate are those of ``ngame``. Rows' learning rate, temperature and bias are guesses.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import Sum
from xc_core.losses import Bce, DecoupledSoftmax
from xc_core.recipes.base import RECIPES, Recipe, named
from xc_core.recipes.settings import FusionSettings
from xc_core.sampling import All, Mixture, Random
from xc_core.scores import Classifier, LabelText
from xc_core.train.encoder import EncoderSettings
from xc_core.train.heads import ByRow, ByText
from xc_core.train.optim import OptimConfig
from xc_core.train.table import ClassifierSettings

RENEE = RECIPES.add(
    "renee",
    Recipe(
        name="renee",
        paper="Renee: End-to-end Training of Extreme Classification Models, Jain et al., MLSys 2023",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(frozen_layers=3),
            order=Random(batch_size=256),
            negatives=All(positives=0),
            scorer=ByRow(rows=TableConfig(start="text", unit=False, lr=0.01)),
            loss=Bce(temperature=0.05, bias=10.0),
            optim=OptimConfig(lr=4e-4),
            augment=True,
            epochs=3.0,
        ),
        classifier=ClassifierSettings(epochs=0.0),
        scores=named(Classifier()),
        fusion=FusionSettings(rule=Sum()),
    ),
)
DEXML = RECIPES.add(
    "dexml",
    Recipe(
        name="dexml",
        paper="DEXML: Dual-Encoders for Extreme Multi-Label Classification, Gupta et al., ICLR 2024",
        module=__name__,
        encoder=EncoderSettings(
            encoder=EncoderConfig(frozen_layers=3),
            order=Random(batch_size=1024),
            negatives=Mixture(positives=0, share=True, uniform=4096),
            scorer=ByText(cache=True),
            loss=DecoupledSoftmax(temperature=0.05),
            optim=OptimConfig(lr=4e-4),
            epochs=3.0,
        ),
        classifier=ClassifierSettings(epochs=0.0),
        scores=named(LabelText()),
        fusion=FusionSettings(rule=Sum()),
    ),
)
