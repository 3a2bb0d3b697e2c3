"""Kills processes of a project at random moments, and measures how long each server is away."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psutil

from tests.processes import wait_for
from tests.soak.servers import STAGE, TRAINER, Servers, victim, words

PAUSE: Final = (0.3, 4.0)
"""Seconds between two attempts to kill: the shortest and the longest."""
WHILE_STARTING: Final = 0.1
"""Share of attempts that may hit a server which does not answer yet since its last kill."""
_OF_RUNS: Final = 3
"""Processes of runs, which live for seconds, are chosen so many times as often as servers."""


@dataclass
class Killer:
    """Kills processes of ``servers`` until ``kills`` of them have been killed."""

    servers: Servers
    kills: int
    random: random.Random
    say: Callable[[str], None] = print
    killed: Counter[str] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Times of the kills, by kind."""
    away: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds from a kill until the server answered again, by kind."""
    gone: dict[str, float] = field(default_factory=dict)
    """Servers that have not answered since they were killed, with the time of the first kill."""

    @property
    def left(self) -> int:
        """Return the kills that are left to do."""
        return self.kills - self.killed.total()

    @contextmanager
    def at_work(self, limits: Mapping[str, int]) -> Iterator[None]:
        """Kill beside the block, at most so many processes of a kind as ``limits`` says."""
        stop, errors, allowed = threading.Event(), list[BaseException](), Counter(limits)

        def work() -> None:
            try:
                self._loop(allowed, stop)
            except BaseException as error:  # raised again in the thread of the block
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]

    def all_back(self) -> bool:
        """Return True if every server has answered since it was killed."""
        for name, when in list(self.gone.items()):
            if self.servers.answers(name, when):
                self.away[name].append(time.time() - when)
                del self.gone[name]
        return not self.gone

    def _loop(self, allowed: Counter[str], stop: threading.Event) -> None:
        while not stop.wait(self.random.uniform(*PAUSE)):
            self.all_back()
            if self.left <= 0:
                continue
            starting = self.random.random() < WHILE_STARTING
            kinds = [kind for kind in +allowed if (starting or kind not in self.gone) and not self._last(kind)]
            weights = [1 if kind in self.servers.ports else _OF_RUNS for kind in kinds]
            if kinds and self._kill(kind := self.random.choices(kinds, weights)[0]):
                allowed[kind] -= 1

    def _last(self, kind: str) -> bool:
        """Return True for a process of `xc serve` if no other one answers: nobody would be left for the client."""
        serving = self.servers.serving
        return kind in serving and any(other in self.gone for other in serving if other != kind)

    def _kill(self, kind: str) -> bool:
        """Kill a process of a kind; return False if there is none."""
        process = victim(self.servers, kind)
        if process is None:
            return False
        try:
            what = " ".join(words(process)[3:5]) if kind in (STAGE, TRAINER) else ""
            process.kill()
            now = time.time()
            wait_for(lambda: not _alive(process), 60, f"end of the killed {kind}")
        except psutil.NoSuchProcess:
            return False
        self.say(f"  {time.strftime('%T')} kill -9 {kind} {what}{' while it starts' if kind in self.gone else ''}")
        self.killed[kind] += 1
        self.times[kind].append(now)
        if kind in self.servers.ports:
            self.gone.setdefault(kind, now)
        return True


def _alive(process: psutil.Process) -> bool:
    """Return True if a process has not ended; one that was killed listens to its port until it is scheduled again."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
