"""A client that asks two servers all the while, as behind a proxy, and keeps every answer to be checked."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from tests.soak.questions import Asked

SECONDS: Final = 30.0
"""A question that no server answers in this time is an error."""
USUAL_PACE, FAST_PACE = 0.1, 0.005
"""Seconds between two questions; the second one while a swap is expected, so that its gap can be seen."""


@dataclass(frozen=True)
class Reply:
    """When a server answered, how long that took, and which model it named."""

    port: int
    at: float
    seconds: float
    version: str
    """Empty if the server refused the question because its model has no dial."""


@dataclass
class Client:
    """Asks questions of a pool at random; a server that does not answer is left for the other one."""

    ports: Sequence[int]
    pool: Sequence[Asked]
    seed: int = 0
    replies: list[Reply] = field(default_factory=list)
    answers: Counter[tuple[int, bytes]] = field(default_factory=Counter)
    """How often each body came as answer to each question of the pool."""
    errors: list[str] = field(default_factory=list)
    turned: int = 0
    """Questions that went to the other server."""
    pace: float = USUAL_PACE
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def texts(self) -> list[str]:
        """Return the texts of all questions."""
        return sorted({text for asked in self.pool for text in asked.texts})

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
        chance = random.Random(f"{self.seed} {turn}")
        while not self._stop.wait(self.pace):
            self._ask(chance.randrange(len(self.pool)), turn)

    def _ask(self, number: int, turn: int) -> None:
        """Ask one server, then the others, until one answers."""
        began, asked = time.monotonic(), self.pool[number]
        for attempt in itertools.count(turn):
            port = self.ports[attempt % len(self.ports)]
            started = time.monotonic()
            try:
                status, content = post(port, asked.body())
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - began > SECONDS:
                    self._failed(f"no server answered in {SECONDS:.0f} s: {error!r}")
                    return
                self.turned += 1
                time.sleep(0.02)
                continue
            now = time.monotonic()
            if status == 200:
                version = json.loads(content)["model"]["version"]
                self._keep(number, content, Reply(port, now, now - started, version))
            elif status == 422 and asked.needs_dial and b"for a model without a dial" in content:
                self._keep(number, b"", Reply(port, now, now - started, ""))
            else:
                self._failed(f"{status}: {content!r} to {asked}")
            return

    def _failed(self, text: str) -> None:
        with self._lock:
            self.errors.append(text)

    def _keep(self, number: int, content: bytes, reply: Reply) -> None:
        with self._lock:
            self.replies.append(reply)
            if content:
                self.answers[number, content] += 1

    def versions(self) -> set[str]:
        """Return the version that each server named last."""
        with self._lock:
            named = [one for one in self.replies if one.version]
        return {next((one.version for one in reversed(named) if one.port == port), "") for port in self.ports}


def post(port: int, question: dict[str, Any]) -> tuple[int, bytes]:
    """Send a question to ``/predict``; return status and body. Raises OSError or HTTPException without an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", "/predict", json.dumps(question), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
