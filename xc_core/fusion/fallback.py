"""The part of a fusion, one score or the plain sum, that is better than its rule on documents new to the rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xc_core.metrics.paired import PairedDifference, differences
from xc_core.metrics.ranking import PerDocument

_DIGITS: Final = 9
_EQUAL: Final = 10**-_DIGITS
"""Points; sums of the same hits in another order differ by less."""


def better_part(
    rule: str, compared: Mapping[str, Mapping[str, float]], documents: Mapping[str, PerDocument]
) -> str | None:
    """Return the part that is better than ``rule``, the best by P@1, then P@5, then PSP@5; None if there is none.

    ``compared`` has the figures of the rule and of each part in percent, ``documents`` the same per document. Better
    means in one figure, and worse in none; or clearly in P@1 or P@5, and clearly worse in none.
    """
    parts = [
        name
        for name, figures in documents.items()
        if name != rule
        and (_no_worse(compared[name], compared[rule]) or _clearly_better(differences(figures, documents[rule])))
    ]
    return max(parts, key=lambda name: _in_order(compared[name]), default=None)


def _in_order(figures: Mapping[str, float]) -> list[float]:
    """Return the figures by which parts are sorted; few documents often have the same P@1."""
    return [round(figures[metric], _DIGITS) for metric in ("P_at_1", "P_at_5", "PSP_at_5")]


def _no_worse(part: Mapping[str, float], rule: Mapping[str, float]) -> bool:
    """Return True if a part is better than the rule in one figure and worse in none."""
    no_worse = all(part[metric] > rule[metric] - _EQUAL for metric in rule)
    return no_worse and any(part[metric] > rule[metric] + _EQUAL for metric in rule)


def _clearly_better(difference_of: Mapping[str, PairedDifference]) -> bool:
    """Return True if a part is clearly better than the rule in P@1 or P@5, and clearly worse in no figure.

    More PSP@5 is no reason: the dial gives the rule that.
    """
    better = {metric for metric, difference in difference_of.items() if difference.clear and difference.points > 0}
    worse = any(difference.clear and difference.points < 0 for difference in difference_of.values())
    return not worse and not better.isdisjoint(("P_at_1", "P_at_5"))
