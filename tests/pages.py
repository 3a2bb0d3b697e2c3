"""Tables of the docs that commands write: they stand between two markers of a page."""

from __future__ import annotations

from pathlib import Path


def filled(page: str, name: str, content: str) -> str:
    """Return ``page`` with ``content`` between the markers of ``name``; raise ValueError if they are missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"found no markers {begin} and {end}; put them where the table belongs")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def between(page: str, name: str) -> str:
    """Return what stands between the markers of ``name``."""
    rest = page.partition(f"<!-- {name}: begin -->")[2]
    return rest.partition(f"<!-- {name}: end -->")[0].strip()


def fill(path: Path, name: str, content: str) -> None:
    """Write ``content`` between the markers of ``name`` in a file."""
    path.write_text(filled(path.read_text("utf-8"), name, content), "utf-8")
