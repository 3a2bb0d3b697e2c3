"""A vector for every label, learnt from documents."""

from xc_core.classifiers.table import LabelTable, TableConfig

__all__ = ["LabelTable", "TableConfig"]
