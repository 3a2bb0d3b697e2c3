"""Label tables: one trained vector (row) per label."""

from xc_core.classifiers.bias import BiasConfig
from xc_core.classifiers.dropout import dropped
from xc_core.classifiers.foreseen import foreseen_rows
from xc_core.classifiers.label_vectors import TableLabelVectors
from xc_core.classifiers.schedule import schedule
from xc_core.classifiers.shard import Shard
from xc_core.classifiers.storage import MAPPED
from xc_core.classifiers.table import LabelTable, TableConfig
from xc_core.classifiers.table_head import Descent, GradientError, TableHead, gradient_error, marks
from xc_core.classifiers.tables import LabelTables, TablesWriter

__all__ = [
    "MAPPED",
    "BiasConfig",
    "Descent",
    "GradientError",
    "LabelTable",
    "LabelTables",
    "Shard",
    "TableConfig",
    "TableHead",
    "TableLabelVectors",
    "TablesWriter",
    "dropped",
    "foreseen_rows",
    "gradient_error",
    "marks",
    "schedule",
]
