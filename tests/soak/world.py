"""The data that arrive in the month: the toy world, more of it, and data that are wrong in some way."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.conftest import TOPICS, ToyWorld

NEW_TOPIC: Final = "meadow"
"""A topic that the first dataset does not have; its documents are N000 and so on."""
ALL_TOPICS: Final = (*TOPICS, NEW_TOPIC)
ADDED: Final = (("A1", "river0 glacier1"), ("A2", "falcon2 saddle3"))
"""Labels without documents: uid and text."""
FORGOTTEN: Final = 307
"""Number of the document that is forgotten."""
_RARE, _BROAD, _TOPICS_OF_BROAD = 8, 60, 6
"""Rare labels, documents with two of them each, and topics of such a document."""
_TESTS: Final = range(240, 280)
"""Numbers of the test documents of the first dataset."""


def documents(numbers: Iterable[int], mark: str = "") -> list[dict[str, Any]]:
    """Return train documents of the toy world by number; ``mark`` changes their texts."""
    numbers = [number for number in numbers if number not in _TESTS]
    rows = ToyWorld.make(documents=max(numbers) + 1, tests=0).train
    return [{**rows[number], "content": f"{rows[number]['content']}{mark}"} for number in numbers]


def about_the_new_topic(count: int = 24) -> list[dict[str, Any]]:
    """Return documents about the new topic alone."""
    target, rows = [len(TOPICS)], []
    for number in range(count):
        words = [f"{NEW_TOPIC}{(number + step) % 4}" for step in range(3)]
        rows.append({"uid": f"N{number:03}", "title": words[0], "content": f"{' '.join(words[1:])} m{number}",
                     "target_ind": target, "target_rel": [1.0]})  # fmt: skip
    return rows


def world(
    train: list[dict[str, Any]], topics: Sequence[str] = TOPICS, test: list[dict[str, Any]] | None = None
) -> ToyWorld:
    """Return a world of these documents and topics."""
    labels = [{"uid": f"L{i}", "title": name, "content": f"{name}0 {name}1"} for i, name in enumerate(topics)]
    return ToyWorld(train, test or [], labels)


def first() -> ToyWorld:
    """Return the dataset of the first day."""
    return with_broad(ToyWorld.make())


def with_broad(found: ToyWorld) -> ToyWorld:
    """Return a world with documents about many topics, which have rare labels too.

    They have more labels than the first five places hold, so rare labels that rank higher improve PSP@5, and the dial
    of a model has something to turn. In the toy world alone it has not.
    """
    rare = len(found.labels)
    labels = [{"uid": f"R{i}", "title": f"rare{i}", "content": f"rare{i}0"} for i in range(_RARE + 2)]
    rows = []
    for number in range(_BROAD):
        # two labels are much rarer than the others: scores may not know how rare the rarest label is
        own = [_RARE + number // 2] if number < 4 else [(2 * number + step) % _RARE for step in range(2)]
        words = [f"{TOPICS[topic]}{(number + topic) % 4}" for topic in range(_TOPICS_OF_BROAD)]
        words += [f"rare{i}{number % 2}" for i in own]
        targets = [*range(_TOPICS_OF_BROAD), *(rare + i for i in own)]
        rows.append({"uid": f"B{number:03}", "title": words[0], "content": f"{' '.join(words[1:])} b{number}",
                     "target_ind": targets, "target_rel": [1.0] * len(targets)})  # fmt: skip
    return ToyWorld([*found.train, *rows], found.test, [*found.labels, *labels])


def whole() -> ToyWorld:
    """Return a complete dataset that has nearly all documents and labels of the month so far, and some more."""
    numbers = [number for number in range(360) if number != FORGOTTEN]
    found = with_broad(world([*documents(numbers), *about_the_new_topic()], ALL_TOPICS, ToyWorld.make().test))
    found.labels += [{"uid": uid, "title": text, "content": ""} for uid, text in ADDED]
    return found


def poisoned() -> ToyWorld:
    """Return train documents that are copies of test documents, with one label."""
    return world(
        [{**row, "uid": f"P{row['uid']}", "target_ind": [0], "target_rel": [1.0]} for row in ToyWorld.make().test]
    )


def disordered(numbers: Iterable[int], chance: random.Random) -> ToyWorld:
    """Return documents with the labels of others."""
    rows = documents(numbers)
    targets = [row["target_ind"] for row in rows]
    chance.shuffle(targets)
    return world(
        [{**row, "target_ind": own, "target_rel": [1.0] * len(own)} for row, own in zip(rows, targets, strict=True)]
    )


def cut(folder: Path) -> Path:
    """Cut a file of a dataset in half, as a copy that was broken off."""
    path = folder / "trn.json.gz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return folder
