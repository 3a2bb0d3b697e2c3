"""The licences of packages, compared with those that ``rules.toml`` allows.

Metadata state a licence in up to three ways: an SPDX expression (PEP 639), which is believed, or a free text and
classifiers, which must all be allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from typing import Any, Final

from license_expression import Licensing
from packaging.utils import canonicalize_name

from supply.rules import RULES, Rules, spdx
from xc_core.errors import RefusedError

_LONGEST: Final = 100
"""Characters of a licence's name; a longer field is the text of a licence."""
_NO_LICENCE: Final = ("", "unknown", "osi approved", "dfsg approved")
"""Texts and classifiers that name no licence."""
_PARSER: Final = Licensing()


def stated(distribution: Distribution) -> list[str]:
    """Return the licence names in the metadata of a package: the free text first, then classifiers in order."""
    text = " ".join(_field(distribution, "License").split())
    classifiers = distribution.metadata.get_all("Classifier") or ()
    tails = [one.split(" :: ")[-1] for one in classifiers if one.startswith("License ::")]
    names = [*([text] if len(text) <= _LONGEST else []), *sorted(tails)]
    return [name for name in names if name.lower() not in _NO_LICENCE]


def licence(distribution: Distribution, rules: Rules) -> str | None:
    """Return the licence of a package as an SPDX expression; None if it is not known."""
    if expression := _field(distribution, "License-Expression"):
        return spdx(expression)
    names = stated(distribution)
    read = rules.read.get(canonicalize_name(distribution.name))
    if read is not None and read.stated == "; ".join(names):
        return read.licence
    known = [rules.names.get(name.lower()) or spdx(name) for name in names]
    if not known or None in known:
        return None
    parts = _specific(known)
    return spdx(" AND ".join(f"({one})" if " OR " in one else one for one in parts)) if len(parts) > 1 else parts[0]


def _specific(known: Iterable[str | None]) -> list[str]:
    """Return each licence once, without "some BSD licence" beside a BSD licence of a certain kind."""
    different = list(dict.fromkeys(one for one in known if one))
    vague = any(one.startswith("BSD-") for one in different)
    return [one for one in different if not (vague and one == "LicenseRef-BSD")]


def _field(distribution: Distribution, name: str) -> str:
    """Return the first value of a field of the metadata; an empty text if there is none."""
    return str((distribution.metadata.get_all(name) or [""])[0])


def is_allowed(expression: str, allowed: Iterable[str]) -> bool:
    """True if every AND of an SPDX expression holds, and one side of every OR."""
    return _holds(_PARSER.parse(expression), frozenset(allowed))


def _holds(node: Any, allowed: frozenset[str]) -> bool:
    if isinstance(node, _PARSER.AND):
        return all(_holds(part, allowed) for part in node.args)
    if isinstance(node, _PARSER.OR):
        return any(_holds(part, allowed) for part in node.args)
    return str(node) in allowed


def refusals(packages: Iterable[Distribution], rules: Rules) -> Iterator[RefusedError]:
    """Yield an error for each package whose licence is not known or not allowed."""
    for package in packages:
        found = licence(package, rules)
        if found is None:
            yield _refusal(package, _in_words(package), f"name the licence in [licences.read] of {RULES.name}")
        elif not is_allowed(found, rules.allowed):
            yield _refusal(package, found, f"add it to `allowed` in {RULES.name} if the project may use it")


def _in_words(package: Distribution) -> str:
    """Return what the metadata of a package say instead of a known licence."""
    expression = _field(package, "License-Expression")
    names = "; ".join([expression] if expression else stated(package))
    return f"{names!r}, which is no known licence" if names else "no licence in its metadata"


def _refusal(package: Distribution, found: str, remedy: str) -> RefusedError:
    return RefusedError(
        found,
        expected=f"a licence that {RULES.name} allows",
        do=f"read the licence of {package.name}; {remedy}, or else replace the package",
        where=f"{package.name} {package.version}",
    )


def unused(packages: Iterable[Distribution], rules: Rules) -> list[str]:
    """Return the packages in [licences.read] whose metadata no longer say what they said."""
    present = {str(canonicalize_name(one.name)): one for one in packages}
    return [
        name
        for name, read in rules.read.items()
        if name in present
        and (_field(present[name], "License-Expression") or read.stated != "; ".join(stated(present[name])))
    ]


def by_licence(packages: Iterable[Distribution], rules: Rules) -> dict[str, list[str]]:
    """Return the packages of each licence, the most frequent one first."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in packages:
        found[licence(package, rules) or "not known"].append(package.name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))
