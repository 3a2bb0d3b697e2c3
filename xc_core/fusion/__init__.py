"""Several scores of a label become one; importing this fills the tables of features and rules."""

from xc_core.fusion import features, rules
from xc_core.fusion.boosting import BoostedTrees, Boosting
from xc_core.fusion.features import BY_WORDS, FEATURES, LEXICAL, NOISE, VOTES, Query, Sources, feature_table
from xc_core.fusion.lexical import Lexical, LexicalConfig
from xc_core.fusion.neighbours import Neighbours
from xc_core.fusion.rules import FUSIONS, Fusion, FusionConfig, load_fusion, parts_of, worth
from xc_core.fusion.tree import RegressionTree

__all__ = [
    "BY_WORDS",
    "FEATURES",
    "FUSIONS",
    "LEXICAL",
    "NOISE",
    "VOTES",
    "BoostedTrees",
    "Boosting",
    "Fusion",
    "FusionConfig",
    "Lexical",
    "LexicalConfig",
    "Neighbours",
    "Query",
    "RegressionTree",
    "Sources",
    "feature_table",
    "features",
    "load_fusion",
    "parts_of",
    "rules",
    "worth",
]
