"""Scores of (document, label) pairs, one module each, or one for several that are alike.

To add a score, add a module to this folder; importing the package registers all of them.
"""

from xc_core.plugins import import_all
from xc_core.scores.base import SCORES, FittedScore, Footprint, NewLabels, Query, Sample, Score, ScoreData, Size
from xc_core.scores.biased_rows import BiasedRows
from xc_core.scores.classifier import Classifier
from xc_core.scores.frequency import Frequency, Prior
from xc_core.scores.label_text import LabelText
from xc_core.scores.label_words import LabelCharacters, LabelWords
from xc_core.scores.lexical import Characters, Lexical
from xc_core.scores.neighbours import Neighbours
from xc_core.scores.noise import Noise
from xc_core.scores.prototype import Prototype
from xc_core.scores.store import Scores, ScoresWriter, open_packed

import_all(__name__, __path__)

__all__ = [
    "SCORES",
    "BiasedRows",
    "Characters",
    "Classifier",
    "FittedScore",
    "Footprint",
    "Frequency",
    "LabelCharacters",
    "LabelText",
    "LabelWords",
    "Lexical",
    "Neighbours",
    "NewLabels",
    "Noise",
    "Prior",
    "Prototype",
    "Query",
    "Sample",
    "Score",
    "ScoreData",
    "Scores",
    "ScoresWriter",
    "Size",
    "open_packed",
]
