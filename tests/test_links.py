"""Links between the pages of the documentation, and those in code and messages, lead to a file and to a heading."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
CODE = [path for package in ("xc_core", "assets", "pipelines", "deploy") for path in ROOT.glob(f"{package}/**/*.*")]


def written(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = [re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.+)$", written(page), re.M)]
    names = ["".join(c for c in one.lower().replace(" ", "-") if c.isalnum() or c in "-_") for one in plain]
    seen: Counter[str] = Counter()
    found = set()
    for name in names:
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def leads(target: Path, anchor: str) -> bool:
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", written(page)) if "://" not in link]
    lost = [f"{name}#{anchor}" for name, _, anchor in links if not leads(page.parent / name if name else page, anchor)]
    assert not lost


def test_each_page_that_code_and_messages_name_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), *link)
        for path in CODE
        if path.suffix in (".py", ".yaml", ".sh", ".html")
        for link in re.findall(r"(docs/[\w/.-]+\.md)(?:#([\w-]+))?", path.read_text("utf-8"))
    }
    assert len(named) > 10
    assert not [one for one in sorted(named) if not leads(ROOT / one[1], one[2])]


def test_each_test_that_a_page_names_is_there() -> None:
    named = {
        (path, name)
        for page in PAGES
        for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text("utf-8"))
    }
    assert len(named) > 50
    texts = {path: (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else "" for path, _ in named}
    assert not [
        one for one in sorted(named) if not re.search(rf"^def {one[1]}\b" if one[1] else ".", texts[one[0]], re.M)
    ]
