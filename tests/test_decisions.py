"""The index of the decisions names every decision, in the order of its page and with its date."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_index_has_every_decision_of_every_page() -> None:
    decided = {
        f"decisions/{page.name}": [
            f"{date} {title}"
            for title, date in re.findall(r"^## (.+)\n\n(?:\*(\d{4}-\d\d-\d\d))?", page.read_text(), re.M)
        ]
        for page in (DOCS / "decisions").glob("*.md")
    }
    parts = re.split(r"^## \[.+\]\((.+)\)$", (DOCS / "decisions.md").read_text(), flags=re.M)[1:]
    indexed = {page: re.findall(r"^- (.+)$", lines, re.M) for page, lines in zip(parts[::2], parts[1::2], strict=True)}
    assert all(decided.values())
    assert indexed == decided
