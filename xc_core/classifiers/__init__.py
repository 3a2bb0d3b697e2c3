"""Label tables: one trained vector (row) per label."""

from xc_core.classifiers.foreseen import foreseen_rows
from xc_core.classifiers.one_vs_rest import BLOCK, Descent, GradientError, TableHead, gradient_error, marks
from xc_core.classifiers.table import LabelTable, TableConfig
from xc_core.classifiers.tables import LabelTables, TablesWriter

__all__ = [
    "BLOCK",
    "Descent",
    "GradientError",
    "LabelTable",
    "LabelTables",
    "TableConfig",
    "TableHead",
    "TablesWriter",
    "foreseen_rows",
    "gradient_error",
    "marks",
]
