"""What a registered model answers to any question, computed without its server: filters, dial and bounds of its own.

The scores of each label for each text come from the library, text by text. All that a question changes about them is
computed here again, by plain loops, from the numbers in the model's files.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.soak.questions import Asked

K: Final = 5
"""Labels of a question that names no number."""
_ROUNDING: Final = 1e-4
"""Answers differ by rounding, depending on what shares a pass."""
_TURNED: Final = 1e-3
"""The same for probabilities and scores at the dial: the curve is steep in places."""


@dataclass(frozen=True)
class Curve:
    """The model's curve from scores to the log of a probability, and what its dial does."""

    scores: tuple[float, ...]
    logs: tuple[float, ...]
    log_weights: Mapping[str, float]
    reach: float
    default: float = 0.0

    def log_probability(self, score: float) -> float:
        return float(np.interp(score, self.scores, self.logs))

    def probability(self, score: float) -> float:
        return math.exp(min(self.log_probability(score), self.logs[-2]))  # the last point is far out

    def turned(self, uid: str, score: float, tail: float) -> float:
        """Return the score of a label at a position of the dial."""
        if not tail * self.reach:
            return score
        shifted = self.log_probability(score) + tail * self.reach * self.log_weights[uid]
        return float(np.interp(shifted, self.logs, self.scores))


@dataclass(frozen=True)
class Known:
    """What the scores say of the labels for a text."""

    fused: Mapping[str, float]
    """Fused score of every label."""
    values: Mapping[str, Mapping[str, float]]
    """Value of each score, of every label."""
    proposed: frozenset[str]
    """Labels that are ranked if a question does not say which."""


@dataclass(frozen=True)
class Expected:
    """A label in an answer."""

    uid: str
    score: float
    probability: float | None


@dataclass(frozen=True)
class Reference:
    """A model: how it ranks all labels for each text."""

    digest: str
    titles: Mapping[str, str]
    weights: Mapping[str, float]
    """Weight of each score that is added."""
    known: Mapping[str, Known]
    curve: Curve | None
    """None for a model without a dial."""

    @classmethod
    def of(cls, folder: Path, texts: Sequence[str]) -> Reference:
        """Return what the packed model in ``folder`` says of ``texts``."""
        from xc_core.infer.bundle import Model

        model, content = Model.open(folder), json.loads((folder / "fusion.json").read_text("utf-8"))
        unknown = {"derived", "logarithms"} & {name for name, value in content.items() if value}
        assert not unknown, f"what a label adds is not known here for a fusion with {unknown}"
        predictor, curve = model.predictor(), None
        uids = list(predictor.uids)
        if "dial" in content:
            logs = dict(zip(uids, np.load(folder / "log_weights.npy").tolist(), strict=True))
            dial = content["dial"]
            curve = Curve(tuple(dial["score_R"]), tuple(dial["log_share_R"]), logs, dial["reach"], dial["default"])
        weights = dict(zip(content["add"], content["weights"] or [1.0] * len(content["add"]), strict=True))
        known = {text: _known(predictor, text) for text in texts}
        return cls(model.digest, dict(zip(uids, predictor.titles, strict=True)), weights, known, curve)

    def tail(self, asked: Asked) -> float:
        """Return the position of the dial."""
        default = self.curve.default if self.curve else 0.0
        return default if asked.tail is None else asked.tail

    def ranked(self, asked: Asked, text: str) -> list[Expected]:
        """Return the labels that the filters of a question leave, best first, whatever their probability."""
        known, tail = self.known[text], self.tail(asked)
        rows = [(uid, known.fused[uid]) for uid in self._left(asked, known)[0]]
        if (curve := self.curve) is None:
            found = [Expected(uid, score, None) for uid, score in rows]
        else:
            found = [Expected(uid, curve.turned(uid, score, tail), curve.probability(score)) for uid, score in rows]
        return sorted(found, key=lambda one: -one.score)

    @staticmethod
    def _left(asked: Asked, known: Known) -> tuple[set[str], int]:
        """Return the labels that the filters leave, and how many of them are ranked: one more than k beside a bound.

        If they leave fewer than there would be without ``exclude``, all other labels take the places.
        """
        k, excluded = (asked.k or K) + bool(asked.min_probability), set(asked.exclude or ())
        if asked.only is not None:
            return set(asked.only) - excluded, k
        left, others = known.proposed - excluded, known.fused.keys() - excluded
        wanted = min(k, len(known.proposed), len(others))
        return (set(left), k) if len(left) >= wanted else (set(others), wanted)

    def answer(self, asked: Asked, text: str) -> list[Expected]:
        """Return the labels of a text."""
        likely = [one for one in self.ranked(asked, text) if _at_least(one, asked.min_probability or 0.0)]
        return likely[: min(asked.k or K, self._left(asked, self.known[text])[1])]

    def wrong(self, asked: Asked, reply: Mapping[str, Any]) -> str:
        """Return the first thing that is wrong with a reply, an empty string if nothing is."""
        if not math.isclose(reply["tail"], self.tail(asked)):
            return f"the dial at {reply['tail']}"
        if len(reply["answers"]) != len(asked.texts):
            return f"{len(reply['answers'])} answers to {len(asked.texts)} texts"
        for place, (text, labels) in enumerate(zip(asked.texts, reply["answers"], strict=True)):
            if found := next(self._wrong(asked, text, labels, place in reply.get("cut", ())), ""):
                return f"{text!r}: {found}"
        return ""

    def _wrong(self, asked: Asked, text: str, labels: list[dict[str, Any]], cut: bool) -> Iterator[str]:
        """Yield what is wrong with the labels of a text."""
        ranked, bound = self.ranked(asked, text), asked.min_probability or 0.0
        most = self._left(asked, self.known[text])[1]
        k = min(asked.k or K, most)
        sure = {one.uid: one for one in ranked if _at_least(one, bound + _TURNED * bool(bound))}
        possible = {one.uid: one for one in ranked if _at_least(one, bound - _TURNED)}
        uids = [label["uid"] for label in labels]
        yield from (f"{uid} filtered out or too unlikely" for uid in uids if uid not in possible)
        if len(set(uids)) < len(uids) or len(uids) > k:
            yield f"{uids} for k = {k}"
        for label in labels:
            yield from self._wrong_label(asked, text, label, possible[label["uid"]])
        yield from (f"{a['uid']} before {b['uid']}" for a, b in itertools.pairwise(labels)
                    if a["score"] < b["score"] - _ROUNDING)  # fmt: skip
        least = labels[-1]["score"] + 2 * _TURNED if len(labels) == k else -math.inf
        yield from (f"{one.uid} is missing" for one in sure.values() if one.uid not in uids and one.score > least)
        must, may = (bound and most > k and len(one) > k for one in (sure, possible))
        if (must and not cut) or (cut and not may):
            yield f"cut is {cut}"

    def _wrong_label(self, asked: Asked, text: str, label: dict[str, Any], right: Expected) -> Iterator[str]:
        uid, known, tail = label["uid"], self.known[text], self.tail(asked)
        if abs(label["score"] - right.score) > (_TURNED if tail else _ROUNDING):
            yield f"{uid} has the score {label['score']}, not {right.score}"
        probability = label["probability"]
        if not _near(probability, right.probability, _TURNED):
            yield f"{uid} has the probability {probability}, not {right.probability}"
        if label["title"] != self.titles[uid]:
            yield f"{uid} has the title {label['title']!r}"
        if ("why" in label) != (asked.why is not False):
            yield f"reasons of {uid}"
        elif "why" in label:
            dial = right.score - known.fused[uid]
            points = [reason["adds"] or 0.0 for reason in label["why"]]
            points += [label["trees"] or 0.0, label["dial"], label.get("by_sum", 0.0)]
            if abs(label["dial"] - dial) > _TURNED or abs(sum(points) - label["score"]) > _TURNED:
                yield f"{uid}: {points} for {label['score']}"
            least = known.proposed.union(asked.only or ())
            yield from self._wrong_reasons(label["why"], uid, known, least, least | self._left(asked, known)[0])

    def _wrong_reasons(
        self, reasons: list[dict[str, Any]], uid: str, known: Known, least: frozenset[str], most: frozenset[str]
    ) -> Iterator[str]:
        """Yield what is wrong with the reasons of a label, which has a rank among ``least`` to ``most`` candidates."""
        if [reason["score"] for reason in reasons] != list(known.values):
            yield f"reasons of {uid}: {[reason['score'] for reason in reasons]}"
            return
        for reason in reasons:
            values = known.values[reason["score"]]
            value, bounds = values[uid], ((least, _ROUNDING), (most, -_ROUNDING))
            ranks = [1 + sum(values[one] > value + by for one in candidates - {uid}) for candidates, by in bounds]
            adds = value * weight if (weight := self.weights.get(reason["score"])) else None
            if abs(reason["value"] - value) > _ROUNDING or not ranks[0] <= reason["rank"] <= ranks[1]:
                yield f"{uid}: {reason}, not {value} and a rank of {ranks}"
            if not _near(reason["adds"], adds, _ROUNDING):
                yield f"{uid}: {reason}, not {adds} points"


def _near(found: float | None, right: float | None, by: float) -> bool:
    return found is right or (found is not None and right is not None and abs(found - right) <= by)


def _at_least(label: Expected, bound: float) -> bool:
    return bound <= 0 or (label.probability is not None and label.probability >= bound)


def _known(predictor: Any, text: str) -> Known:
    """Ask the scores about one text alone."""
    from xc_core.infer.ranker import values
    from xc_core.scores import Query

    uids, fusion = list(predictor.uids), predictor.ranker.fusion
    ids_NK = np.arange(len(uids), dtype=np.int32)[None]
    values_NKF = values(predictor.ranker.scores, Query(predictor.embed([text]), [text]), ids_NK)
    fused = dict(zip(uids, fusion.scores(values_NKF)[0].tolist(), strict=True))
    (proposed,) = predictor.predict([text], len(uids), 0.0)
    for one in proposed:
        assert abs(fused[one.uid] - one.score) < _ROUNDING, f"{one.uid} has two scores for {text!r}"
    by_score = {
        name: dict(zip(uids, values_NKF[0, :, place].tolist(), strict=True)) for place, name in enumerate(fusion.names)
    }
    return Known(fused, by_score, frozenset(one.uid for one in proposed))
