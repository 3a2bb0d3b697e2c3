"""The table of docs/defaults.md, made from the recipes: ``python -m tests.recipes.defaults`` writes it again.

The last column, where a value comes from, is written by hand and kept as long as setting and value stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from xc_core.plugins import HasUnused, Part
from xc_core.recipes import RECIPES, Recipe

PAGE: Final = Path(__file__).parents[2] / "docs" / "defaults.md"
HEAD: Final = ("| setting | value | recipes | from |", "| --- | --- | --- | --- |")
GUESS: Final = "guess"
STAGES: Final = ("encoder", "clusters", "negatives", "classifier", "scores", "fusion")
ASIDE: Final = {"code_version", "seed", "precision", "tokens_per_pass", "index"}
"""Settings that choose no result: they change speed, rounding, or the random numbers."""
Key = tuple[str, str]
"""A setting and its value."""


def own_recipes() -> list[Recipe]:
    """Return the recipes of this package, not those of plug-ins."""
    return [RECIPES[name] for name in RECIPES.names() if RECIPES[name].module.startswith("xc_core.recipes.")]


def values(recipe: Recipe) -> Iterator[Key]:
    """Yield each setting that a result of ``recipe`` depends on, with its value."""
    unread = recipe.classifier.unread()
    for stage in STAGES:
        if stage not in unread:
            yield from _flat(getattr(recipe, stage), stage)


def _flat(config: Any, place: str, unused: frozenset[str] = frozenset()) -> Iterator[Key]:
    """Yield the settings of a config, of a mapping of configs, or one value; ``unused`` are left out."""
    if isinstance(config, Mapping):
        for name, part in config.items():
            yield from _flat(part, f"{place}.{name}")
    elif dataclasses.is_dataclass(config):
        if isinstance(config, Part):
            yield place, config.kind
        unused |= config.unused() if isinstance(config, HasUnused) else frozenset()
        for name in (field.name for field in dataclasses.fields(config)):
            within = frozenset(other.removeprefix(f"{name}.") for other in unused if other.startswith(f"{name}."))
            if name not in unused | ASIDE:
                yield from _flat(getattr(config, name), f"{place}.{name}", within)
    else:
        yield place, _text(config)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value.value if isinstance(value, Enum) else value)


def table(recipes: list[Recipe]) -> dict[Key, str]:
    """Return the recipes that have each setting with each value: names, files in recipes/, or "all" that use it."""
    found: dict[Key, set[str]] = {}
    for recipe in recipes:
        for key in values(recipe):
            found.setdefault(key, set()).add(recipe.name)
    users: dict[str, set[str]] = {}
    for (setting, _), names in found.items():
        users.setdefault(setting, set()).update(names)
    files: dict[str, set[str]] = {}
    for recipe in recipes:
        files.setdefault(f"{recipe.module.rsplit('.', 1)[1]}.py", set()).add(recipe.name)
    ordered = sorted(found, key=lambda key: (STAGES.index(key[0].split(".")[0]), key[0], -len(found[key]), key[1]))
    return {key: _named(found[key], users[key[0]], files) for key in ordered}


def _named(names: set[str], users: set[str], files: dict[str, set[str]]) -> str:
    if names == users and len(names) > 3:
        return "all" if names == set().union(*files.values()) else "all that use it"
    whole = {file: own for file, own in files.items() if len(own) > 1 and own <= names}
    rest = names.difference(*whole.values())
    return ", ".join(f"`{name}`" for name in [*sorted(whole), *sorted(rest)])


def written(page: Path = PAGE) -> dict[Key, tuple[str, str]]:
    """Return the recipes and the source of each row of the page."""
    lines = page.read_text("utf-8").splitlines()
    rows = lines[lines.index(HEAD[1]) + 1 :] if HEAD[1] in lines else []
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows if line.startswith("| ")]
    return {(row[0].strip("`"), row[1]): (row[2], row[3]) for row in cells}


def page(recipes: list[Recipe], kept: Mapping[Key, tuple[str, str]], intro: str) -> str:
    """Return the page: ``intro``, and the table with the sources that are ``kept``; a new row is a guess."""
    rows = [
        f"| `{setting}` | {value} | {names} | {kept.get((setting, value), ('', GUESS))[1]} |"
        for (setting, value), names in table(recipes).items()
    ]
    return "\n".join([intro.rstrip(), "", *HEAD, *rows, ""])


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(page(own_recipes(), written(), text.split(HEAD[0])[0]), "utf-8")
