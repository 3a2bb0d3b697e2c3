"""Micro-batching: questions that arrive together share one pass through the model, in one thread.

A pass costs much the same for one text as for a few. An answer does not depend on who shares its pass, if at most 32
texts do (``ann.both``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from xc_core.infer.explained import Explained, Question, explained
from xc_core.serve.limits import Limits
from xc_core.serve.models import Served

Answers: TypeAlias = list[list[Explained]]
"""The labels of each text of a question."""
Work: TypeAlias = Callable[[Served, list[Question]], list[Answers]]


class QueueFullError(Exception):
    """Too many texts wait for the model."""


@dataclass(frozen=True)
class _Job:
    """A question with no more texts than a batch has, the model it is for, and where its answer goes."""

    served: Served
    question: Question
    deadline: float
    """Time after which nobody waits for the answer (``time.monotonic``)."""
    future: Future[Answers] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return len(self.question.texts)


def answer(served: Served, questions: list[Question]) -> list[Answers]:
    """Return what ``served`` answers to each question."""
    return explained(served.predictor, questions)


class Batcher:
    """A queue of questions and the thread that answers them."""

    def __init__(self, limits: Limits, work: Work = answer, passed: Callable[[int, float], None] | None = None) -> None:
        """``passed`` is called with the number of texts and the seconds of each pass, for metrics."""
        self._limits, self._work, self._passed = limits, work, passed or (lambda texts, seconds: None)
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of texts that wait for the model."""
        with self._changed:
            return sum(job.size for job in self._jobs)

    def submit(self, served: Served, question: Question, seconds: float) -> list[Future[Answers]]:
        """Queue a question; return the futures of its answers, one per ``max_batch`` texts, in their order.

        A future that is not started after ``seconds`` is dropped. Raises QueueFullError.
        """
        deadline, step = time.monotonic() + seconds, self._limits.max_batch
        parts = [question.texts[start : start + step] for start in range(0, len(question.texts), step)]
        jobs = [_Job(served, replace(question, texts=part), deadline) for part in parts]
        with self._changed:
            queued = [*(job for job in self._jobs if not job.future.cancelled()), *jobs]
            if self._stopping or sum(job.size for job in queued) > self._limits.queue:
                raise QueueFullError
            self._jobs = deque(queued)
            self._changed.notify_all()
        return [job.future for job in jobs]

    def stop(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._pass(self._next()):
            pass

    def _pass(self, batch: list[_Job]) -> bool:
        """Answer a batch; return False for an empty one.

        Between two passes nothing refers to a job: it would keep a model in memory that is no longer current.
        """
        if live := [job for job in batch if self._is_wanted(job)]:
            self._answer(live)
        return bool(batch)

    def _next(self) -> list[_Job]:
        """Wait for jobs and return those that share the next pass; none if the queue is empty and stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            deadline = time.monotonic() + self._limits.max_wait_ms / 1000
            while not self._stopping and sum(job.size for job in self._jobs) < self._limits.max_batch:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            batch: list[_Job] = []
            while self._jobs and self._fits(batch, self._jobs[0]):
                batch.append(self._jobs.popleft())
            return batch

    def _fits(self, batch: list[_Job], job: _Job) -> bool:
        """Return True if ``job`` can share the pass: there is space, and it is for the same model."""
        if not batch:
            return True
        return (
            job.served is batch[0].served and sum(queued.size for queued in batch) + job.size <= self._limits.max_batch
        )

    @staticmethod
    def _is_wanted(job: _Job) -> bool:
        if time.monotonic() > job.deadline:
            job.future.cancel()
        return job.future.set_running_or_notify_cancel()

    def _answer(self, jobs: list[_Job]) -> None:
        """Answer all jobs in one pass; if that fails, each alone, so that a bad question fails by itself."""
        start = time.monotonic()
        results: list[Any]
        try:
            results = self._work(jobs[0].served, [job.question for job in jobs])
        except BaseException as error:  # also a panic of a library in Rust, which would end the thread for good
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
            else:
                is_exception = isinstance(error, Exception)
                jobs[0].future.set_exception(
                    error if is_exception else RuntimeError(f"{type(error).__name__}: {error}")
                )
            return
        self._passed(sum(job.size for job in jobs), time.monotonic() - start)
        for job, answers in zip(jobs, results, strict=True):
            job.future.set_result(answers)
