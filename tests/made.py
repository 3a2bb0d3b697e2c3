"""Parts from tables, whose settings the type of the table does not know."""

from __future__ import annotations

from typing import Any

from xc_core.plugins import Table


def made(table: Table[Any], kind: str, **settings: Any) -> Any:
    """Return the part ``kind`` with these settings."""
    return table[kind](**settings)
