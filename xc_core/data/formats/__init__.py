"""Readers of the public dataset layouts, one file a layout; importing this fills the table."""

from xc_core.data.formats import pecos, tabular, xc_json, xc_text
from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, Source, open_source

__all__ = [
    "LAYOUTS",
    "Block",
    "Layout",
    "ReadOptions",
    "Source",
    "open_source",
    "pecos",
    "tabular",
    "xc_json",
    "xc_text",
]
