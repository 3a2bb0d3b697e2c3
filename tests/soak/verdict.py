"""The end of a client: every answer is compared with the model that it names, and its figures."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.soak.client import Client, Reply
from tests.soak.questions import OPTIONS, Asked
from tests.soak.reference import Expected, Reference

_NEAR: Final = 3
"""Answers of a server before and after a refusal; one of them must be of a model without a dial."""


@dataclass
class Verdict:
    """What the comparison found."""

    mixed: int = 0
    """Answers that are not those of the model that they name."""
    first: str = ""
    """What is wrong with the first of them."""
    asked: Counter[str] = field(default_factory=Counter)
    """Answers to questions with each parameter."""
    changed: Counter[str] = field(default_factory=Counter)
    """Those that the parameter changed: without it the same model answers otherwise."""
    without_dial: set[str] = field(default_factory=set)
    """Versions without a dial that answered."""
    _changed_by: dict[tuple[Asked, str], list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, client: Client, references: Mapping[str, Reference]) -> Verdict:
        """Check every answer of a client; ``references`` by digest."""
        found = cls()
        for (number, body), count in client.answers.items():
            found._check(client.pool[number], json.loads(body), count, references)
        for one in wrongly_refused(client.replies, found.without_dial):
            found._wrong(1, f"refused by a model with a dial: {one}")
        return found

    def _check(self, asked: Asked, reply: dict[str, Any], count: int, references: Mapping[str, Reference]) -> None:
        self.asked.update(dict.fromkeys(asked.kinds(), count))
        reference = references.get(reply["model"]["digest"])
        if reference is None:
            self._wrong(count, f"no champion: {reply['model']}")
            return
        if wrong := reference.wrong(asked, reply):
            self._wrong(count, f"{wrong}; {asked}; {json.dumps(reply)}")
        if reference.curve is None:
            self.without_dial.add(reply["model"]["version"])
        key = (asked, reference.digest)
        names = self._changed_by[key] = self._changed_by.get(key) or changed_by(asked, reference)
        self.changed.update(dict.fromkeys(names, count))

    def _wrong(self, count: int, text: str) -> None:
        self.mixed += count
        self.first = self.first or text


def changed_by(asked: Asked, reference: Reference) -> list[str]:
    """Return the parameters of a question without which the model answers otherwise."""

    def answers(question: Asked) -> list[list[Expected]]:
        return [reference.answer(question, text) for text in asked.texts]

    given = [name for name in OPTIONS if name != "why" and getattr(asked, name) is not None]
    return [name for name in given if answers(replace(asked, **{name: None})) != answers(asked)]


def wrongly_refused(replies: Sequence[Reply], without_dial: set[str]) -> list[Reply]:
    """Return the refusals for want of a dial that came from a server while its model had one."""
    wrong = []
    for own in _by_port(replies):
        for place, one in enumerate(own):
            if not one.version:
                near = (*_named(reversed(own[:place])), *_named(own[place:]))
                wrong += [] if without_dial.intersection(near) else [one]
    return wrong


def gaps(replies: Sequence[Reply]) -> list[float]:
    """Return, per swap of a server, the seconds from the last answer of the old model to the first of the new one."""
    found = []
    for own in _by_port(replies):
        named = [one for one in own if one.version]
        found += [b.at - a.at for a, b in itertools.pairwise(named) if a.version != b.version]
    return found


def _by_port(replies: Sequence[Reply]) -> list[list[Reply]]:
    """Return the replies of each server in the order of time."""
    ordered = sorted(replies, key=lambda one: one.at)
    return [[one for one in ordered if one.port == port] for port in sorted({one.port for one in replies})]


def _named(replies: Iterable[Reply]) -> list[str]:
    """Return the first versions that replies name."""
    return list(itertools.islice((one.version for one in replies if one.version), _NEAR))


def figures(client: Client, references: Mapping[str, Reference]) -> dict[str, Any]:
    """Return what a client saw, after every answer was checked."""
    verdict, swaps = Verdict.of(client, references), gaps(client.replies)
    return {
        "requests": len(client.replies) + len(client.errors),
        "errors": len(client.errors),
        "turned to the other server": client.turned,
        "mixed answers": verdict.mixed,
        **({"first mixed answer": verdict.first} if verdict.mixed else {}),
        "answers by parameter": dict(verdict.asked),
        "answers that the parameter changed": dict(verdict.changed),
        "refused for want of a dial": sum(not one.version for one in client.replies),
        "swaps": len(swaps),
        "swap gap ms": _spread(swaps),
        "answer ms": _spread([one.seconds for one in client.replies]),
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        "median": _ms(statistics.median(ordered)),
        "p99": _ms(ordered[int(0.99 * len(ordered))]),
        "longest": _ms(ordered[-1]),
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
