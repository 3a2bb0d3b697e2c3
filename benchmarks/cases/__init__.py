"""The comparisons. Importing this package registers all of them."""

from benchmarks.cases import data, fusion, large, search, training
from benchmarks.cases.table import CASES

__all__ = ["CASES", "data", "fusion", "large", "search", "training"]
