"""The comparisons. Importing this package registers all of them."""

from typing import Final

from benchmarks.cases import data, encoder_step, fusion, large, lexical, negatives, search, training
from benchmarks.cases.table import CASES

QUICK: Final = (
    "reading",
    "tokens",
    "words",
    "search",
    "encoding",
    "updates",
    "all_labels",
    "tree",
    "ranker",
    "lexical",
    "label_trees",
)
"""Cases of `make bench`."""

__all__ = ["CASES", "QUICK", "data", "encoder_step", "fusion", "large", "lexical", "negatives", "search", "training"]
