"""All scores by words, and no encoder.

Scores: label trees on words and on parts of words (four characters), the words and the parts that a text and a label
share, and the frequency of the label. Parts of words know inflected, compound and misspelt words, and texts in
languages without spaces; the shared words know labels without train documents.
Fusion: that of ``house``.

As in ``bonsai``, whose score ``lexical`` is the first one, there is an encoder of random weights that no score reads.
Chosen on validation documents of WordNetMini, DebianSeeAlso and DebianTags
(docs/lab-notes/2026-11-29-scores-by-words.md); ``usual_terms`` on one dataset of long texts
(docs/lab-notes/2026-11-30-weights-of-long-texts.md). Each default: docs/defaults.md.
"""

from dataclasses import replace

from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.house import CHARACTERS, FUSION, FUSION_ROWS, LEXICAL, PARTS, TERMS
from xc_core.recipes.shared import NO_ENCODER, NO_M4
from xc_core.scores import Frequency, LabelCharacters, LabelWords

WORDS = register(
    Recipe(
        name="words",
        paper="this project",
        module=__name__,
        encoder=NO_ENCODER,  # no score reads its vectors
        classifier=replace(NO_M4, refit=True, enough=FUSION_ROWS),  # no score reads the rows; refit is for the scores
        scores=named(
            Frequency(),
            LEXICAL,
            CHARACTERS,
            LabelWords(terms=TERMS),
            LabelCharacters(terms=PARTS),
        ),
        fusion=FUSION,
    ),
)
