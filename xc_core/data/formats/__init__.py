"""Readers of the public dataset layouts.

A new layout is a new module in this folder; importing the package registers all of them.
"""

from xc_core.data.formats.base import (
    LAYOUTS,
    Block,
    Layout,
    ReadOptions,
    Source,
    Texts,
    arrow,
    open_source,
    source_facts,
    text_uid,
)
from xc_core.plugins import import_all

import_all(__name__, __path__)

__all__ = [
    "LAYOUTS",
    "Block",
    "Layout",
    "ReadOptions",
    "Source",
    "Texts",
    "arrow",
    "open_source",
    "source_facts",
    "text_uid",
]
