"""The model that a server answers with, and the swap to a new champion: loaded beside, tried, then exchanged.

A question keeps the model that it came for, so no answer mixes two models.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from xc_core import artifacts
from xc_core.errors import CorruptError, in_words
from xc_core.infer.bundle import Model, ModelFacts
from xc_core.infer.champion import Champion, Source
from xc_core.infer.explained import Question, explained
from xc_core.infer.predictor import Predictor
from xc_core.progress import report

RETRY_SECONDS: Final = 60.0
"""A version that could not be loaded is tried again after this time: somebody may have repaired it."""
_PROBE_TEXT: Final = "a small dog with long hair"
_VARIES: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""Numbers in a reason, as of a process or in the name of a temporary file: each poll may find others."""


@dataclass(frozen=True)
class Served:
    """A loaded model."""

    version: str
    digest: str
    """Digest of its content."""
    facts: ModelFacts
    predictor: Predictor

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each label, by uid."""
        return {uid: label for label, uid in enumerate(self.predictor.uids)}

    @property
    def has_dial(self) -> bool:
        """True if positions of the dial are answered, even if they change nothing."""
        return self.predictor.ranker.fusion.dial is not None

    @property
    def name(self) -> dict[str, str]:
        """What an answer says of its model."""
        return {
            "dataset": self.facts.dataset,
            "version": self.version,
            "recipe": self.facts.recipe,
            "digest": self.digest,
        }


@dataclass(frozen=True)
class Refusal:
    """A version that could not be loaded."""

    version: str
    reason: str
    attempted: float
    """Time of the attempt (``time.monotonic``)."""


def load(champion: Champion) -> Served:
    """Return the champion, loaded and tried with one text.

    Raises MissingError, CorruptError; any other exception is a fault of the model's files too.
    """
    with champion.opening() as folder:
        served = artifacts.steady(folder, lambda: _open_model(champion, folder))
    _ = served.ids  # built here, not by the first request
    # a model of words alone proposes no label for a text without words of its documents, but each label has a score
    questions = [Question((_PROBE_TEXT,), k=1), Question((_PROBE_TEXT,), k=1, only=frozenset((0,)))]
    (proposed,), (scored,) = explained(served.predictor, questions)
    if not scored or not all(math.isfinite(label.score) for label in (*proposed, *scored)):
        raise CorruptError(
            f"no finite score for a text by version {served.version}",
            expected="a score for each label",
            do="train again; until then the old model answers",
        )
    return served


def _open_model(champion: Champion, folder: Path) -> Served:
    model = Model.open(folder, champion.dataset)
    if champion.digest not in ("", model.digest):
        raise CorruptError(
            f"content {model.digest[:12]} of version {champion.version}",
            expected=f"{champion.digest[:12]}, which was registered",
            do="register the model again: xc promote with --recipe",
        )
    return Served(champion.version, model.digest, model.facts, model.predictor())


def log(line: str) -> None:
    """Report a line; whoever reads the server's log may end before the server does."""
    with suppress(BrokenPipeError):
        report(line)


@dataclass(frozen=True)
class Watch:
    """Functions that are called when something happens to the model, for metrics."""

    swapped: Callable[[Served, float], None] = lambda served, seconds: None
    """Takes the new model and the seconds that loading it took."""
    refused: Callable[[Refusal], None] = lambda refusal: None
    unanswered: Callable[[], None] = lambda: None
    """Called if the source does not answer."""


class Models:
    """The current model of a server; ``poll`` swaps it. Raises the source's and the model's errors at the start."""

    def __init__(self, source: Source, watch: Watch | None = None) -> None:
        self.watch = watch or Watch()
        self.refusal: Refusal | None = None
        """The version that could not be loaded, None if the current model is the source's."""
        self.source_error = ""
        """Why the source did not answer when it was last asked; empty if it did."""
        self._source = source
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        start = time.monotonic()
        self.current = load(champion := source())
        self.watch.swapped(self.current, time.monotonic() - start)
        if champion.unconfirmed:
            self._note_unanswered(champion.unconfirmed)

    def poll(self) -> None:
        """Ask the source once; load its champion if it is another one, and exchange it if it works. Never raises."""
        try:
            champion = self._source()
        except Exception as error:
            self._note_unanswered(in_words(error))
            return
        if champion.unconfirmed:
            self._note_unanswered(champion.unconfirmed)
            return
        if self.source_error:
            log(f"the model to serve is known again: version {champion.version}")
        self.source_error = ""
        if champion.version == self.current.version and champion.digest in ("", self.current.digest):
            self.refusal = None
            return
        refused = self.refusal
        if refused and refused.version == champion.version and time.monotonic() - refused.attempted < RETRY_SECONDS:
            return
        self._swap(champion)

    def start(self, seconds: float) -> None:
        """Poll every ``seconds`` in a thread."""
        self._thread = threading.Thread(target=self._loop, args=(seconds,), name="models", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; wait up to 5 seconds for a model that is being loaded."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _loop(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self.poll()

    def _swap(self, champion: Champion) -> None:
        start = time.monotonic()
        try:
            served = load(champion)
        except BaseException as error:  # whatever is wrong with a new model, the old one goes on; also a panic in Rust
            reason = in_words(error)
            self.refusal = Refusal(champion.version, reason, time.monotonic())
            self.watch.refused(self.refusal)
            log(f"version {champion.version} cannot be served: {reason}; version {self.current.version} stays")
            return
        if self._is_replaced(champion):
            log(f"version {champion.version} is no longer champion; version {self.current.version} stays")
            return
        old_version, self.current, self.refusal = self.current.version, served, None
        seconds = time.monotonic() - start
        self.watch.swapped(served, seconds)
        log(f"version {served.version} answers now, instead of {old_version}; loaded in {seconds:.1f} s")

    def _is_replaced(self, champion: Champion) -> bool:
        """Return True if the source names another version by now: somebody may have rolled back during the load."""
        with suppress(Exception):
            return self._source().version != champion.version
        return False

    def _note_unanswered(self, reason: str) -> None:
        if _VARIES.sub("", reason) != _VARIES.sub("", self.source_error):
            log(f"there is no model to swap to ({reason}); version {self.current.version} stays")
        self.source_error = reason
        self.watch.unanswered()
