"""The dial between P@k and PSP@k that a user turns at prediction time; it works for every fusion.

P@k is highest if labels are ranked by the probability p that they are positive, PSP@k if they are ranked by p * w with
the inverse propensity w (Jain et al., KDD 2016). The dial ranks by p * w^(tail * reach).

Files: ``log_weights.npy``, log w of each label; the rest is in ``fusion.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy  # its parts are imported when they are used

from xc_core.data.labels import LabelMatrix
from xc_core.errors import UsageError
from xc_core.metrics.paired import PairedDifference, differences
from xc_core.metrics.ranking import PerDocument, per_document
from xc_core.shapes import F32, F64, I32, PAD_ID, Bool, Shortlist

_WEIGHTS: Final = "log_weights.npy"
_TOP: Final = 5
_P: Final = "P_at_1"
_PSP: Final = "PSP_at_5"
_BINS: Final = 20
"""Bins of scores for which the share of positives is counted, at most."""
_LEAST: Final = 10
"""Positives per bin, at least."""
_FAR: Final = 1e3
"""The curve goes on by its mean slope for this many times its length; scores outside the knots keep their order."""
POWERS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Exponents among which ``reach`` is chosen."""
TAILS: Final = tuple(step / 10 for step in range(11))
"""Positions of the dial that are measured."""
_MOST: Final = 2
"""By the upper end of its 95 % interval, a position may cost this many times the allowed points of P@1.

The interval is wide for few documents.
Docs: docs/lab-notes/2026-11-30-few-documents-and-later-ones.md."""


@dataclass(frozen=True)
class Dial:
    """A curve from fused scores to log p, and what a position of the dial means."""

    score_R: F64
    """Ascending."""
    log_share_R: F64
    """Log of the share of positives at each of these scores; ascending, without ties."""
    log_weight_L: F32
    """Log of each label's inverse propensity."""
    reach: float = 1.0
    """Exponent of the inverse propensity at dial 1: the one with the highest PSP@5 on validation documents.

    0 if the fusion's own order has the highest; the dial then changes nothing."""
    default: float = 0.0
    """Position of the dial if a prediction names none."""

    def turned(self, ids_NK: I32, fused_NK: F32, tail: float | None) -> F32:
        """Return the scores at dial ``tail`` (N x K), in the unit of the fused score; at 0 they are unchanged.

        The new score of a label is the fused score at which a label has the probability p * w^(tail * reach). Raises
        UsageError for a position outside 0 to 1.
        """
        tail = self.default if tail is None else checked(tail)
        if not tail * self.reach:
            return fused_NK
        log_p_NK = np.interp(fused_NK, self.score_R, self.log_share_R)
        log_p_NK += tail * self.reach * self.log_weight_L[ids_NK]
        return np.interp(log_p_NK, self.log_share_R, self.score_R).astype(np.float32)

    def probability(self, ids_NK: I32, turned_NK: F32, tail: float | None) -> F32:
        """Return the probability that each label is positive, given its score at dial ``tail`` (N x K); 0 for a hole.

        It is the share of positives among the candidates of validation documents with such a fused score, and at most
        the largest share of a bin. The dial moves labels, not their probability.
        """
        tail = self.default if tail is None else checked(tail)
        log_p_NK = np.interp(turned_NK, self.score_R, self.log_share_R)
        if tail * self.reach:
            log_p_NK -= tail * self.reach * self.log_weight_L[ids_NK]
        largest = self.log_share_R[-2]  # the last point is far out
        return np.where(ids_NK == PAD_ID, 0, np.exp(np.minimum(log_p_NK, largest))).astype(np.float32)

    def extended(self, weights_L: F64) -> Dial:
        """Return the dial for more labels, given the inverse propensities of all; the weights that it has stay."""
        new_weights = np.log(weights_L[len(self.log_weight_L) :]).astype(np.float32)
        return replace(self, log_weight_L=np.concatenate([self.log_weight_L, new_weights]))

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights into ``folder``; return the rest as plain values."""
        np.save(folder / _WEIGHTS, self.log_weight_L)
        lists = {"score_R": self.score_R.tolist(), "log_share_R": self.log_share_R.tolist()}
        return {**lists, "reach": self.reach, "default": self.default}

    @classmethod
    def read(cls, folder: Path, content: dict[str, Any]) -> Dial:
        """Return the dial from its file and from what ``write`` returned."""
        weights = np.load(folder / _WEIGHTS, allow_pickle=False)
        score_R, log_share_R = (np.array(content[name], np.float64) for name in ("score_R", "log_share_R"))
        return cls(score_R, log_share_R, weights, float(content["reach"]), float(content["default"]))


@dataclass(frozen=True)
class DialFigures:
    """Figures, in percent, on validation documents at one position of the dial."""

    tail: float
    P_at_1: float
    P_at_5: float
    PSP_at_5: float

    @classmethod
    def of(cls, tail: float, figures: PerDocument) -> DialFigures:
        """Return the figures of all documents at a position."""
        total = figures.total()
        return cls(tail, total["P_at_1"], total["P_at_5"], total[_PSP])


def fit_dial(
    short: Shortlist, truth: LabelMatrix, weights_L: F64, cost: float
) -> tuple[Dial, list[dict[str, float]]] | None:
    """Return the dial for documents that the fusion has not seen, and its figures at each position; or None.

    ``short`` has all their candidates with fused scores, ``truth`` their positives. ``default`` is the position with
    the highest PSP@5, of those that gain clearly over position 0 and cost little: P@1 falls by at most ``cost`` points
    up to there, and by at most twice that by its 95 % interval. It is 0 if there is none, or ``cost`` is 0. None if the
    fused score does not tell positives from negatives, as for a few documents.
    """
    filled_NK = short.ids_NK != PAD_ID
    positive_NK = truth.contains(np.arange(len(short))[:, None], short.ids_NK)
    curve = _curve(short.scores_NK[filled_NK].astype(np.float64), positive_NK[filled_NK])
    if curve is None:
        return None
    dial = Dial(*curve, np.log(weights_L).astype(np.float32))
    by_power = [_figures(replace(dial, reach=power), 1.0, short, truth, weights_L).total()[_PSP] for power in POWERS]
    dial = replace(dial, reach=POWERS[int(np.argmax(by_power))])
    figures = {tail: _figures(dial, tail, short, truth, weights_L) for tail in TAILS}
    positions = [DialFigures.of(tail, found) for tail, found in figures.items()]
    default = 0.0
    if dial.reach:
        default = _default_tail(positions, cost, partial(_gain, figures), partial(_most_lost, figures))
    return replace(dial, default=default), [asdict(position) for position in positions]


def checked(tail: float) -> float:
    """Return ``tail``; raise UsageError unless it is a number from 0 to 1."""
    return _from_0_to_1("tail", tail, "a number from 0 (best P@k) to 1 (best PSP@k)")


def checked_probability(least: float) -> float:
    """Return ``least``, a bound on probabilities; raise UsageError unless it is a number from 0 to 1."""
    return _from_0_to_1("min_probability", least, "a number from 0 to 1")


def _from_0_to_1(name: str, value: float, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        is_percent = isinstance(value, int | float) and 1 < value <= 100
        do = f"fix the number; {value:g} % is {value / 100:g}" if is_percent and name != "tail" else "fix the number"
        raise UsageError(f"{name} {value!r}", expected=expected, do=do)
    return float(value)


def _default_tail(
    positions: list[DialFigures], cost: float, gain: Callable[[float], PairedDifference], loss: Callable[[float], float]
) -> float:
    """Return the position with the highest PSP@5 before P@1 falls more than ``cost`` points below that of the first.

    Of equal ones it is the first. A position is passed over if its ``gain`` in PSP@5 over the first is not clear, or if
    its ``loss`` of P@1 may be above ``_MOST`` times ``cost``: among few documents, one alone can make any position the
    best, and none may show what a position costs.
    """
    if not cost:
        return 0.0
    floor = positions[0].P_at_1 - cost
    allowed = takewhile(lambda position: position.P_at_1 >= floor, positions)
    for position in sorted(allowed, key=lambda position: -position.PSP_at_5):
        if not position.tail or (gain(position.tail).clear and loss(position.tail) <= _MOST * cost):
            return position.tail
    return 0.0


def _gain(figures: Mapping[float, PerDocument], tail: float) -> PairedDifference:
    """Return the gain in PSP@5 of a position over position 0, from the figures at both."""
    there, first = (figures[position].only((_PSP,)) for position in (tail, 0.0))
    return differences(there, first)[_PSP]


def _most_lost(figures: Mapping[float, PerDocument], tail: float) -> float:
    """Return the points of P@1 that a position loses at most against position 0, with 97.5 % confidence.

    It is the end of an interval for the difference of two shares of the same documents, with four documents added of
    which one is lost and one won, as ``of_few`` in xc_core/metrics/bootstrap.py adds them. A bootstrap is of no use: if
    hardly any document differs, its interval is narrow, however few documents there are.
    """
    right_N, first_N = (figures[position].num[_P] > 0 for position in (tail, 0.0))
    lost, won = (np.count_nonzero(one_N & ~other_N) + 1 for one_N, other_N in ((first_N, right_N), (right_N, first_N)))
    size = len(right_N) + 4
    error = np.sqrt(lost + won - (lost - won) ** 2 / size)
    return float(100 * (lost - won + scipy.special.ndtri(0.975) * error) / size)


def _figures(dial: Dial, tail: float, short: Shortlist, truth: LabelMatrix, weights_L: F64) -> PerDocument:
    """Return the figures of each document at one position."""
    ranked = Shortlist.ranked(short.ids_NK, dial.turned(short.ids_NK, short.scores_NK, tail)).top(_TOP)
    return per_document(ranked, truth, weights_L)


def _curve(scores_M: F64, positive_M: Bool) -> tuple[F64, F64] | None:
    """Return scores and the log of the share of positives there, both ascending; None if there are fewer than 2.

    Bins hold about equally many positives; neighbouring bins whose shares fall are joined (isotonic regression).
    """
    bins = min(_BINS, int(positive_M.sum()) // _LEAST)
    if bins < 2:
        return None
    edges = np.unique(np.quantile(scores_M[positive_M], np.arange(1, bins) / bins))
    bin_M = np.searchsorted(edges, scores_M, side="right")
    used = np.unique(bin_M)
    count_R, positives_R, total_R = (
        np.bincount(bin_M, weights=weights)[used] for weights in (None, positive_M, scores_M)
    )
    share_R = (positives_R + 0.5) / (count_R + 1)
    first = scipy.optimize.isotonic_regression(share_R, weights=count_R).blocks[:-1]
    share_R = np.add.reduceat(share_R * count_R, first) / np.add.reduceat(count_R, first)
    score_R = np.add.reduceat(total_R, first) / np.add.reduceat(count_R, first)
    return _with_far_points(score_R, np.log(share_R)) if len(first) > 1 else None


def _with_far_points(score_R: F64, log_share_R: F64) -> tuple[F64, F64]:
    """Return the curve with one more point far out on either side, continuing its mean slope."""
    return tuple(  # type: ignore[return-value]
        np.concatenate([[values[0] - _FAR * length], values, [values[-1] + _FAR * length]])
        for values, length in ((values, values[-1] - values[0]) for values in (score_R, log_share_R))
    )
