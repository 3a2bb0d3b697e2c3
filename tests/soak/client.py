"""A client that asks two servers all the while, as behind a proxy, and keeps every answer to be checked."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

SECONDS: Final = 30.0
"""A question that no server answers in this time is an error."""
USUAL_PACE, FAST_PACE = 0.1, 0.005
"""Seconds between two questions; the second one while a swap is expected, so that its gap can be seen."""

Answer: TypeAlias = tuple[tuple[str, float], ...]
"""(uid, score) of the labels of a text, best first."""


@dataclass(frozen=True)
class Reply:
    """When a server answered, how long that took, and which model it named."""

    port: int
    at: float
    seconds: float
    version: str


@dataclass
class Client:
    """Asks for the labels of several texts at a time; a server that does not answer is left for the other one."""

    ports: Sequence[int]
    texts: Sequence[str]
    k: int = 3
    replies: list[Reply] = field(default_factory=list)
    answers: Counter[tuple[str, str, str, Answer]] = field(default_factory=Counter)
    """How often each answer came: version, digest, text, labels."""
    errors: list[str] = field(default_factory=list)
    turned: int = 0
    """Questions that went to the other server."""
    pace: float = USUAL_PACE
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Ask from now on, with a thread per server."""
        self._threads = [
            threading.Thread(target=self._loop, args=(turn,), daemon=True) for turn in range(len(self.ports))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop asking."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)

    def _loop(self, turn: int) -> None:
        for number in itertools.count():
            if self._stop.wait(self.pace):
                return
            first = (number + turn) % len(self.texts)
            self._ask([self.texts[(first + step) % len(self.texts)] for step in range(3)], turn)

    def _ask(self, texts: list[str], turn: int) -> None:
        """Ask one server, then the others, until one answers."""
        began = time.monotonic()
        for attempt in itertools.count(turn):
            port = self.ports[attempt % len(self.ports)]
            asked = time.monotonic()
            try:
                status, content = post(port, {"texts": texts, "k": self.k, "why": False})
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - began > SECONDS:
                    self._failed(f"no server answered in {SECONDS:.0f} s: {error!r}")
                    return
                self.turned += 1
                time.sleep(0.02)
                continue
            if status != 200:
                self._failed(f"{status}: {content}")
            else:
                now = time.monotonic()
                self._keep(texts, content, Reply(port, now, now - asked, content["model"]["version"]))
            return

    def _failed(self, text: str) -> None:
        with self._lock:
            self.errors.append(text)

    def _keep(self, texts: list[str], content: Any, reply: Reply) -> None:
        model = content["model"]
        with self._lock:
            self.replies.append(reply)
            for text, labels in zip(texts, content["answers"], strict=True):
                answer = tuple((str(label["uid"]), float(label["score"])) for label in labels)
                self.answers[model["version"], model["digest"], text, answer] += 1

    def versions(self) -> set[str]:
        """Return the version that each server named last."""
        with self._lock:
            return {next((one.version for one in reversed(self.replies) if one.port == p), "") for p in self.ports}


def post(port: int, question: dict[str, Any]) -> tuple[int, Any]:
    """Send a question to ``/predict``; return status and content. Raises OSError or HTTPException without an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", "/predict", json.dumps(question), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def gaps(replies: Sequence[Reply]) -> list[float]:
    """Return, per swap of a server, the seconds from the last answer of the old model to the first of the new one."""
    found = []
    for port in {one.port for one in replies}:
        own = sorted((one for one in replies if one.port == port), key=lambda one: one.at)
        found += [b.at - a.at for a, b in itertools.pairwise(own) if a.version != b.version]
    return found


def mixed(
    answers: Counter[tuple[str, str, str, Answer]], references: dict[str, dict[str, dict[str, float]]], k: int
) -> int:
    """Return how many answers are not those of the model that they name.

    ``references`` has the scores of labels per digest and text. A score may differ by rounding, and so may the order of
    labels whose scores are equal but for rounding.
    """
    return sum(
        count
        for (_, digest, text, answer), count in answers.items()
        if not _fits(answer, references.get(digest, {}).get(text), k)
    )


def _fits(answer: Answer, scores: dict[str, float] | None, k: int) -> bool:
    if scores is None or len(answer) != min(k, len(scores)) or len({uid for uid, _ in answer}) != len(answer):
        return False
    least = sorted(scores.values(), reverse=True)[len(answer) - 1]
    close = all(uid in scores and abs(scores[uid] - score) < _ROUNDING for uid, score in answer)
    order = all(a[1] >= b[1] - _ROUNDING for a, b in itertools.pairwise(answer))
    return close and order and all(score >= least - _ROUNDING for _, score in answer)


_ROUNDING: Final = 1e-4
