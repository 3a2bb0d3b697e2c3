"""A vector for every label, learnt from documents."""

from xc_core.classifiers.foreseen import foreseen_rows
from xc_core.classifiers.one_vs_rest import BLOCK, Descent, TableHead, gradient_error, marks
from xc_core.classifiers.table import LabelTable, TableConfig

__all__ = ["BLOCK", "Descent", "LabelTable", "TableConfig", "TableHead", "foreseen_rows", "gradient_error", "marks"]
