"""Questions that arrive together share a pass; a full queue, a late or a bad question hurts nobody else."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, cast

import pytest

from xc_core.infer.explained import Question
from xc_core.serve.batcher import Answers, Batcher, QueueFullError
from xc_core.serve.limits import Limits
from xc_core.serve.models import Served

ONE, OTHER = cast(Served, "one"), cast(Served, "other")
"""Two models; the batcher only tells them apart."""


class PanicError(BaseException):
    """As a library in Rust raises it."""


class Work:
    """Answers each text with itself and its model; a pass waits while ``gate`` is closed."""

    def __init__(self) -> None:
        self.passes: list[tuple[Any, list[str]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def __call__(self, served: Served, questions: list[Question]) -> list[Answers]:
        self.entered.set()
        assert self.gate.wait(20)
        texts = [text for question in questions for text in question.texts]
        self.passes.append((served, texts))
        if "bad" in texts:
            raise ValueError("bad")
        if "panic" in texts:
            raise PanicError("bad")
        return [cast(Answers, [f"{served} {text}" for text in question.texts]) for question in questions]

    def hold(self, batcher: Batcher) -> None:
        """Let the batcher be in a pass until ``gate`` is set."""
        self.gate.clear()
        self.entered.clear()
        batcher.submit(ONE, Question(("held",)), 20)
        assert self.entered.wait(20)


Make = Callable[..., Batcher]


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def make(work: Work) -> Iterator[Make]:
    made: list[Batcher] = []

    def run(**limits: Any) -> Batcher:
        made.append(Batcher(Limits(**{"max_wait_ms": 0.0, **limits}), work))
        return made[-1]

    yield run
    work.gate.set()
    for batcher in made:
        batcher.stop()


def got(futures: list[Future[Answers]]) -> list[Any]:
    return [text for future in futures for text in future.result(20)]


def test_questions_that_wait_share_a_pass(make: Make, work: Work) -> None:
    batcher = make(max_batch=4)
    work.hold(batcher)
    asked = [batcher.submit(ONE, Question((f"t{i}",)), 20) for i in range(6)]
    assert batcher.waiting == 6
    work.gate.set()
    assert [got(one) for one in asked] == [[f"one t{i}"] for i in range(6)]
    assert [texts for _, texts in work.passes] == [["held"], ["t0", "t1", "t2", "t3"], ["t4", "t5"]]


def test_a_question_waits_for_others_only_as_long_as_it_may(make: Make, work: Work) -> None:
    batcher = make(max_batch=2, max_wait_ms=20_000.0)
    first = batcher.submit(ONE, Question(("a",)), 20)
    second = batcher.submit(ONE, Question(("b",)), 20)
    assert (got(first), got(second)) == (["one a"], ["one b"]), "a full batch does not wait"
    assert [texts for _, texts in work.passes] == [["a", "b"]]
    patient = make(max_wait_ms=50.0)
    started = time.monotonic()
    got(patient.submit(ONE, Question(("c",)), 20))
    assert time.monotonic() - started >= 0.05


def test_no_pass_mixes_two_models(make: Make, work: Work) -> None:
    batcher = make()
    work.hold(batcher)
    asked = [batcher.submit(served, Question((f"t{i}",)), 20) for i, served in enumerate([ONE, ONE, OTHER, OTHER, ONE])]
    work.gate.set()
    assert [got(one)[0] for one in asked] == ["one t0", "one t1", "other t2", "other t3", "one t4"]
    assert work.passes[1:] == [("one", ["t0", "t1"]), ("other", ["t2", "t3"]), ("one", ["t4"])]


def test_a_large_question_is_answered_in_parts_in_its_order(make: Make, work: Work) -> None:
    texts = tuple(f"t{i}" for i in range(7))
    assert got(make(max_batch=3).submit(ONE, Question(texts), 20)) == [f"one {text}" for text in texts]
    assert [len(texts) for _, texts in work.passes] == [3, 3, 1]


def test_a_question_that_fills_more_than_is_left_waits_for_the_next_pass(make: Make, work: Work) -> None:
    """An answer must not depend on who shares its pass, which holds if at most so many texts do."""
    batcher = make(max_batch=4)
    work.hold(batcher)
    asked = [batcher.submit(ONE, Question(tuple(texts)), 20) for texts in ("abc", "de", "fg")]
    work.gate.set()
    assert [len(got(one)) for one in asked] == [3, 2, 2]
    assert [texts for _, texts in work.passes[1:]] == [["a", "b", "c"], ["d", "e", "f", "g"]]


def test_a_pass_is_reported_with_its_texts_and_not_with_its_questions(work: Work) -> None:
    reported: list[int] = []
    batcher = Batcher(Limits(max_wait_ms=0.0), work, lambda texts, _: reported.append(texts))
    try:
        got(batcher.submit(ONE, Question(("a", "b", "c")), 20))
    finally:
        batcher.stop()  # which waits for what follows a pass
    assert reported == [3]


def test_a_full_queue_takes_all_of_a_question_or_nothing(make: Make, work: Work) -> None:
    batcher = make(queue=4, max_batch=2)
    work.hold(batcher)
    kept = batcher.submit(ONE, Question(("a", "b", "c")), 20)
    with pytest.raises(QueueFullError):
        batcher.submit(ONE, Question(("d", "e")), 20)
    assert batcher.waiting == 3
    last = batcher.submit(ONE, Question(("f",)), 20)
    work.gate.set()
    assert got(kept) + got(last) == ["one a", "one b", "one c", "one f"]


class Model:
    """A model that can be watched."""


def test_a_model_that_is_no_longer_current_is_not_kept_in_memory(make: Make, work: Work) -> None:
    """Otherwise the swap after the next one needs memory for three."""
    batcher, own = make(), Model()
    assert len(got(batcher.submit(cast(Served, own), Question(("a",)), 20))) == 1
    work.passes.clear()
    held = weakref.ref(own)
    del own
    for _ in range(100):
        gc.collect()
        if held() is None:
            return
        time.sleep(0.05)
    raise AssertionError("the batcher keeps the model of its last pass")


@pytest.mark.parametrize(("text", "error"), [("bad", ValueError), ("panic", RuntimeError)])
def test_a_bad_question_fails_alone(make: Make, work: Work, text: str, error: type[Exception]) -> None:
    batcher = make()
    work.hold(batcher)
    good, bad, other = (batcher.submit(ONE, Question((own,)), 20) for own in ("a", text, "b"))
    work.gate.set()
    assert got(good) + got(other) == ["one a", "one b"]
    with pytest.raises(error, match="bad"):
        got(bad)
    assert got(batcher.submit(ONE, Question(("after",)), 20)) == ["one after"]


def test_what_nobody_waits_for_is_not_computed(make: Make, work: Work) -> None:
    batcher = make()
    work.hold(batcher)
    late = batcher.submit(ONE, Question(("late",)), -1)
    gone = batcher.submit(ONE, Question(("gone",)), 20)
    gone[0].cancel()
    last = batcher.submit(ONE, Question(("last",)), 20)
    work.gate.set()
    assert got(last) == ["one last"]
    assert late[0].cancelled()
    assert [texts for _, texts in work.passes] == [["held"], ["last"]]


def test_a_question_is_dropped_after_its_own_time(make: Make, work: Work) -> None:
    batcher = make()
    work.hold(batcher)
    late = batcher.submit(ONE, Question(("late",)), 0.05)
    time.sleep(0.06)
    work.gate.set()
    with pytest.raises(CancelledError):
        got(late)


def test_a_cancelled_question_leaves_its_place_in_the_queue(make: Make, work: Work) -> None:
    batcher = make(queue=1)
    work.hold(batcher)
    batcher.submit(ONE, Question(("gone",)), 20)[0].cancel()
    kept = batcher.submit(ONE, Question(("kept",)), 20)
    work.gate.set()
    assert got(kept) == ["one kept"]


def test_a_cancelled_and_a_refused_question_do_not_end_the_thread(make: Make, work: Work) -> None:
    """The batch that waits for others is empty then."""
    batcher = make(queue=1, max_batch=2, max_wait_ms=200.0)
    gone = batcher.submit(ONE, Question(("gone",)), 20)
    time.sleep(0.05)  # the thread waits for others to share the pass
    gone[0].cancel()
    with pytest.raises(QueueFullError):
        batcher.submit(ONE, Question(("a", "b")), 20)
    time.sleep(0.3)
    assert got(batcher.submit(ONE, Question(("kept",)), 20)) == ["one kept"]


def test_stopping_answers_what_waits_and_takes_no_more(make: Make, work: Work) -> None:
    batcher = make()
    work.hold(batcher)
    waiting = batcher.submit(ONE, Question(("a",)), 20)
    stopping = threading.Thread(target=batcher.stop)
    stopping.start()
    work.gate.set()
    stopping.join(20)
    assert got(waiting) == ["one a"]
    with pytest.raises(QueueFullError):
        batcher.submit(ONE, Question(("b",)), 20)
