"""The project's own recipe: what the papers use separately, combined.

Order: random. A softmax sees all labels of its batch, and a large batch of M4 holds hard negatives anyway.
Negatives: in M1 two sampled positives per document, and every positive in the pool is learnt from (pick some labels,
UniDEC); in M4 the positives of a large batch.
Scores: label text, a table row, the vote of the nearest train documents (needs no training), and the four of ``words``,
which err on other documents than an encoder does: linear label trees on words and on parts of words (four characters),
and the words and the parts that text and label share.
Loss: decoupled softmax (DEXML, UniDEC) in M1, NGAME's triplet in M4. L_B: the labels of a batch's pool; P_i: all
positives of document i; P_i^B: those in L_B. With s_ik = E(x_i) . E(z_k) and the temperature t, M1 minimises
    sum_i 1 / |P_i^B| sum_{l in P_i^B} log [ 1 + sum_{k in L_B, not in P_i} e^{(s_ik - s_il) / t} ]
With rows w that start at E(z), unit vectors, f_ik = w_k . E(x_i) and E frozen, M4 minimises
    sum_i sum_{l in P'_i} sum_{k in N_i} a_ilk [ f_ik - f_il + gamma ]_+
P'_i: the five lowest of P_i; N_i: the five highest of L_B that are not in P_i; a_ilk: a softmax of f_ik / t over the
k in N_i whose bracket is above 0, held constant in the gradient.
Fusion: a linear model of all scores and the frequency, which reads the logarithm of the probabilities ``lexical`` and
``characters``, corrected by trees of LightGBM; both are fitted to the order of a document's candidates (the trees by
LambdaRank). A label without train documents gets at least the fused score that others have on average at its plain
sum. The default of the dial between P@k and PSP@k costs at most one point of P@1 on validation documents.

A softmax with a bias per label in M4 (``biased_rows`` beside the triplet, or instead of it), the score ``prototype``
and averaged rows are options: none of them paid on three datasets (docs/lab-notes/2026-11-22-frequency-in-m4.md).

Texts are read up to 128 tokens (docs/lab-notes/2026-11-23-length-of-texts.md). Five of MiniLM's six layers are trained
(docs/lab-notes/2026-11-28-frozen-layers-of-house.md).

Chosen on validation documents of WordNetMini; the fusion on those of DebianSeeAlso and DebianTags too, the number of
its documents on YSOFinna's, label trees on FinnaRelated's (their passes on parts of YSOFinna's), the length of texts
on DebianSeeAlso's and DebianTags's, the frozen layers on WordNetMini's and parts of WordNetTags, DebianTags and
YSOFinna, parts of words on those of nine datasets (docs/lab-notes/2026-11-29-parts-of-words-in-house.md),
``usual_terms`` on one dataset of long texts (docs/lab-notes/2026-11-30-weights-of-long-texts.md). The encoder was
all-MiniLM-L6-v2, but bag for the fusion on DebianTags. Each default: docs/defaults.md.
"""

from dataclasses import replace
from typing import Any

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig, Pooling
from xc_core.fusion import LightGBM, Objective
from xc_core.losses import DecoupledSoftmax, Triplet
from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.settings import FusionSettings
from xc_core.sampling import InBatch, Random
from xc_core.scores import (
    Characters,
    Classifier,
    Frequency,
    LabelCharacters,
    LabelText,
    LabelWords,
    Lexical,
    Neighbours,
)
from xc_core.scores.terms import TermSettings
from xc_core.train.classifier import ClassifierSettings
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import ByText
from xc_core.train.optim import OptimConfig

FUSION_ROWS = 4_500
"""Documents that the fusion is fitted on, which one held-out training gives on large data."""
TERMS = TermSettings(ngrams=2, min_documents=2, terms=300_000, characters=0)
"""The words that scores by words read."""
PARTS = replace(TERMS, characters=4)
"""The parts of words that scores by parts of words read."""
_TREES: dict[str, Any] = {
    "trees": 3,
    "clusters": 100,
    "depth": 3,
    "passes": 5,
    "tolerance": 0.01,
    "threshold": 0.1,
    "usual_terms": 250,
    "beam": 10,
    "labels": 100,
}
LEXICAL = Lexical(terms=TERMS, **_TREES)
"""Label trees on words."""
CHARACTERS = Characters(terms=PARTS, **_TREES)
"""The same label trees on parts of words."""

FUSION = FusionSettings(
    rule=LightGBM(
        objective=Objective.LAMBDARANK,
        linear=True,
        log_probabilities=True,
        rounds=50,
        leaves=7,
        min_leaf=100,
        penalty=10.0,
        shrinkage=0.1,
        truncation=10,
    ),
    rows=FUSION_ROWS,
    candidates=100,
    fallback=True,
    new_by_sum=True,
    tail_cost=1.0,
)
"""The rule of all recipes of this project: a linear model, corrected by trees."""

HOUSE = register(
    Recipe(
        name="house",
        paper="this project",
        module=__name__,
        encoder=EncoderSettings(  # M1
            encoder=EncoderConfig(name="minilm", pooling=Pooling.MEAN, max_length=128, frozen_layers=1),
            order=Random(batch_size=256),
            negatives=InBatch(positives=2, share=True),  # L_B: two of each P_i; P_i^B
            scorer=ByText(),  # E(z)
            loss=DecoupledSoftmax(temperature=0.05, forward=1.0),  # t; documents to labels alone
            optim=OptimConfig(lr=4e-4, warmup=0.1, weight_decay=0.01, clip=1.0),
            epochs=3.0,
        ),
        classifier=ClassifierSettings(  # M3, M4
            order=Random(batch_size=1024),
            negatives=InBatch(positives=0, unseen=128),  # L_B: all P_i, and 128 labels without documents
            loss=Triplet(margin=0.2, hardest=5, positives=5, temperature=0.1),  # gamma, |N_i|, |P'_i|, t
            table=TableConfig(start="text", unit=True, lr=0.02, decay=0.99, optimiser="rmsprop"),
            epochs=30.0,
            warmup=0.03,
            dropout=0.3,
            refit=True,
            enough=FUSION_ROWS,
        ),
        scores=named(
            LabelText(search=True),
            Classifier(),
            Frequency(),
            Neighbours(nearest=30, temperature=0.05, exact_up_to=50_000, probes=128),
            LEXICAL,
            LabelWords(terms=TERMS),
            CHARACTERS,
            LabelCharacters(terms=PARTS),
        ),
        fusion=FUSION,
    ),
)
