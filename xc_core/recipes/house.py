"""The house recipe: what the papers leave apart, put together.

Takes: nothing.            Gives: the recipe ``house``.
May import: recipes.base and the configs it is made of.  Never: code; a method is data.

Order: random, for a softmax looks at all labels of its batch and a large batch of M4 holds hard ones anyway.
Negatives: M1 two sampled positives a document, and every positive in the pool learnt from (pick some labels, UniDEC);
M4 the positives of a large batch.
Scorer: label text, a table row, the vote of the nearest train documents, which costs no training, and two by words,
which err on other documents than an encoder does: a linear label tree, and the words that text and label share.
Loss: decoupled softmax (DEXML, UniDEC) in M1, NGAME's triplet in M4.
Fusion: boosted trees over six features, a rare positive being worth more, and a tenth of the sum of five of them.

Chosen on validation rows of WordNetMini, the fusion on those of DebianSeeAlso and FinnaRelated too, its documents on
those of YSOFinna (docs/benchmarks.md), the encoder being all-MiniLM-L6-v2.
"""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import FusionConfig, LexicalConfig
from xc_core.losses import LossConfig
from xc_core.recipes.base import RECIPES, ClassifierStage, EncoderStage, Recipe
from xc_core.sampling import NegativesConfig, OrderConfig
from xc_core.train.optim import OptimConfig

HOUSE = RECIPES.add(
    "house",
    Recipe(
        name="house",
        paper="this project",
        module=__name__,
        encoder=EncoderStage(
            encoder=EncoderConfig(frozen_layers=3),
            order=OrderConfig(kind="random", batch_size=256),
            negatives=NegativesConfig(kind="in-batch", positives=2, share=True),
            loss=LossConfig(name="decoupled-softmax", temperature=0.05),
            optim=OptimConfig(lr=4e-4),
            epochs=3.0,
        ),
        classifier=ClassifierStage(
            order=OrderConfig(kind="random", batch_size=1024),
            negatives=NegativesConfig(kind="in-batch", positives=0, unseen=128),
            loss=LossConfig(name="triplet", margin=0.2, negatives=5, positives=5),
            table=TableConfig(lr=0.02),
            epochs=30.0,
            dropout=0.3,
            lexical=LexicalConfig(use=True),
            refit=True,
        ),
        fusion=FusionConfig(
            kind="boosted",
            depth=4,
            weight=0.1,
            tail=0.25,
            rows=4_500,
            features=("label_text", "classifier", "frequency", "neighbours", "lexical", "label_words"),
            add=("label_text", "classifier", "neighbours", "lexical", "label_words"),
        ),
    ),
)
