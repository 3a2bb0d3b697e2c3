"""Methods whose loss is over all labels: Renee (a classifier) and DEXML (a dual encoder).

Takes: nothing.            Gives: the recipes ``renee`` and ``dexml``.
May import: recipes.base and the configs it is made of.  Never: code; a method is data.

``renee`` (Jain et al., MLSys 2023): table rows trained with the encoder by BCE over all labels, block by block, so
that neither scores nor targets of all labels exist at once; label texts are train documents. A step costs O(B L D).
``dexml`` (Gupta et al., ICLR 2024): label texts through the encoder, decoupled softmax, GradCache. Up to 4,096 labels
it is over all of them, as the paper is; above, over a uniform sample of as many and the batch's positives, as in its
approximation: encoding every label in every step is for machines with many accelerators.

Epochs, frozen layers and step size are those found on WordNetMini's validation rows (docs/benchmarks.md).
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import FusionConfig
from xc_core.losses import LossConfig
from xc_core.recipes.base import RECIPES, ClassifierStage, EncoderStage, IndexStage, Recipe
from xc_core.sampling import NegativesConfig, OrderConfig
from xc_core.train.optim import OptimConfig

RENEE = RECIPES.add(
    "renee",
    Recipe(
        name="renee",
        paper="Renee: End-to-end Training of Extreme Classification Models, Jain et al., MLSys 2023",
        module=__name__,
        encoder=EncoderStage(
            encoder=EncoderConfig(frozen_layers=3),
            order=OrderConfig(kind="random", batch_size=256, cluster_size=1),
            negatives=NegativesConfig(kind="all", positives=0),
            optim=OptimConfig(lr=4e-4),
            text_share=0.0,
            table=TableConfig(start="text", unit=False, lr=0.01),
            table_loss=LossConfig(name="bce", temperature=0.05, bias=10.0),
            augment=True,
            epochs=3.0,
        ),
        classifier=ClassifierStage(epochs=0.0),
        index=IndexStage(texts=False),
        fusion=FusionConfig(kind="sum", add=("classifier",)),
    ),
)
DEXML = RECIPES.add(
    "dexml",
    Recipe(
        name="dexml",
        paper="DEXML: Dual-Encoders for Extreme Multi-Label Classification, Gupta et al., ICLR 2024",
        module=__name__,
        encoder=EncoderStage(
            encoder=EncoderConfig(frozen_layers=3),
            order=OrderConfig(kind="random", batch_size=1024, cluster_size=1),
            negatives=NegativesConfig(kind="mixture", positives=0, share=True, uniform=4096),
            loss=LossConfig(name="decoupled-softmax", temperature=0.05),
            optim=OptimConfig(lr=4e-4),
            cache=True,
            epochs=3.0,
        ),
        classifier=ClassifierStage(epochs=0.0),
        index=IndexStage(texts=False),
        fusion=FusionConfig(kind="sum", add=("label_text",)),
    ),
)
