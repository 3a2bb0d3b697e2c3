"""What the client asks: questions that are drawn from all that ``/predict`` offers, alone and together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.conftest import TOPICS, ToyWorld

QUESTIONS: Final = 400
"""Different questions of a client."""
SIZES: Final = (1, 1, 2, 3, 3, 5, 8, 40)
"""Texts of a batch; 40 are more than share a pass through the model."""
_TAILS: Final = (0.0, 0.25, 0.5, 1.0)
_BOUNDS: Final = (0.0, 0.05, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True)
class Asked:
    """A question; what is None is left out of it."""

    texts: tuple[str, ...]
    single: bool = False
    k: int | None = None
    tail: float | None = None
    min_probability: float | None = None
    exclude: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    why: bool | None = None

    def body(self) -> dict[str, Any]:
        """Return what is sent."""
        texts: dict[str, Any] = {"text": self.texts[0]} if self.single else {"texts": self.texts}
        return texts | {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}

    def kinds(self) -> list[str]:
        """Return the names of what is sent."""
        return list(self.body())

    @property
    def needs_dial(self) -> bool:
        """True if a model without a dial refuses it."""
        return bool(self.tail or self.min_probability)


OPTIONS: Final = ("k", "tail", "min_probability", "exclude", "only", "why")


def pool(seed: int) -> list[Asked]:
    """Return the questions of a client about the toy world's test documents and the labels that all models have."""
    texts = [f"{one['title']} {one['content']}" for one in ToyWorld.make().test]
    return drawn(random.Random(seed), texts, [f"L{place}" for place in range(len(TOPICS))], QUESTIONS)


def drawn(chance: random.Random, texts: Sequence[str], uids: Sequence[str], count: int) -> list[Asked]:
    """Return different questions about ``texts``; filters name labels of ``uids``, which every model must have."""
    found: dict[Asked, None] = {}
    while len(found) < count:
        found[_drawn(chance, texts, uids)] = None
    return list(found)


def _drawn(chance: random.Random, texts: Sequence[str], uids: Sequence[str]) -> Asked:
    single = chance.random() < 0.25
    size = 1 if single else min(chance.choice(SIZES), len(texts))
    exclude = tuple(chance.sample(uids, chance.randint(1, len(uids) // 2)))
    only = tuple(chance.sample(uids, chance.randint(1, len(uids) - 1)))
    sent = {name for name in OPTIONS if chance.random() < 0.4}
    if {"exclude", "only"} <= sent and set(only) <= set(exclude):  # it would be refused: no label is left
        sent.remove("exclude")
    values = {
        "k": chance.randint(1, len(uids)), "tail": chance.choice(_TAILS), "min_probability": chance.choice(_BOUNDS),
        "exclude": exclude, "only": only, "why": chance.random() < 0.5,
    }  # fmt: skip
    return Asked(tuple(chance.sample(texts, size)), single, **{name: values[name] for name in values if name in sent})
