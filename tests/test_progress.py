"""Progress: nothing for a short step, a line every few seconds for a long one, a bar on a terminal."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from xc_core import progress
from xc_core.errors import CorruptError, StorageError
from xc_core.progress import Meter, Steps, duration, listen, pace, quiet, report, report_paced, silence


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(progress, "_listeners", [])
    monkeypatch.setattr(progress, "_pace", progress.LINE_SECONDS)
    heard: list[str] = []
    listen(heard.append)
    yield heard
    silence()


def test_every_listener_receives_every_line_until_silence(lines: list[str]) -> None:
    second: list[str] = []
    listen(second.append)
    report("one")
    silence()
    report("two")
    assert lines == second == ["one"]


def test_a_quiet_block_reports_nothing_and_only_the_block(lines: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), quiet():
        report("one")
        raise ZeroDivisionError
    report("two")
    assert lines == ["two"]


def test_a_step_that_an_error_ends_is_not_done(lines: list[str], clock: Clock) -> None:
    with pytest.raises(KeyboardInterrupt), Meter("training", 200, "steps") as meter:
        meter.update(50)
        clock.now += 10
        raise KeyboardInterrupt
    assert lines == ["training: stopped at 25 % (50 of 200 steps) after 10 s, 5.0 steps/s"]


def test_lines_that_come_often_are_paced_by_kind(lines: list[str], clock: Clock) -> None:
    pace(15)
    for second in range(40):
        report_paced("refresh of encoder", f"encoder {second}")
        if second in (1, 20):
            report_paced("refresh of classifier", f"classifier {second}")
        clock.now += 1
    assert lines == ["encoder 0", "classifier 1", "encoder 15", "classifier 20", "encoder 30"]


def test_a_short_step_reports_nothing(lines: list[str], clock: Clock) -> None:
    with Meter("encode", 100) as meter:
        for _ in range(100):
            clock.now += progress.QUIET_SECONDS / 101
            meter.update()
    assert lines == []


def test_a_long_step_reports_a_line_every_few_seconds_and_one_at_the_end(lines: list[str], clock: Clock) -> None:
    with Meter("encode", 100, "texts") as meter:
        for _ in range(100):
            clock.now += 0.2
            meter.update(note="loss 0.5")
    assert 3 <= len(lines) - 1 <= 20 / progress.LINE_SECONDS
    assert all(line.startswith("encode") and "loss 0.5" in line for line in lines)
    assert lines[0] == "encode: 25 % (25 of 100 texts), 5.0 texts/s, 15 s left, loss 0.5"
    assert lines[-1] == "encode: done in 20 s, 5.0 texts/s, loss 0.5"


def test_a_process_sets_how_often_progress_is_reported(lines: list[str], clock: Clock) -> None:
    pace(15.0)
    times = []
    listen(lambda line: times.append(clock.now))
    with Meter("encode", 1000, "texts") as meter:
        for _ in range(1000):
            clock.now += 0.1
            meter.update()
    assert len(times) == 7, "100 seconds, and the end"
    assert all(later - earlier >= 15 - 1e-6 for earlier, later in pairwise(times[:-1]))


def test_a_slow_step_shows_its_rate_and_the_time_left(lines: list[str], clock: Clock) -> None:
    with Meter("train", 1000, "steps") as meter:
        clock.now += 200
        meter.update(9)
    assert lines[0] == "train: 1 % (9 of 1,000 steps), 0.045 steps/s, 6 h 7 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (86_399, "23 h 59 min"),
        (97_200, "1 d 3 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_step_is_named_as_it_begins_once_the_work_has_lasted_a_while(lines: list[str], clock: Clock) -> None:
    with Steps("fitting", 4) as steps:
        for name in ("quick", "slow", "slower"):
            steps.begin(name)
            clock.now += 1.6
        steps.begin("last")
    assert lines == ["fitting: 3 of 4, slower", "fitting: 4 of 4, last"]


def test_a_first_step_that_lasts_is_named_while_it_is_at_work(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the recipe words label trees begin at once; they took minutes without a line."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.5)
    with Steps("fitting", 2) as steps:
        steps.begin("quick")
        steps.begin("long")
        deadline = time.monotonic() + 60
        while not lines and time.monotonic() < deadline:
            time.sleep(0.02)
    assert lines == ["fitting: 2 of 2, long"]
    with Steps("fitting", 1) as steps:
        steps.begin("short")
    time.sleep(0.8)
    assert len(lines) == 1, "short work reports nothing"


def test_what_listeners_write_to_is_not_changed_while_they_write(lines: list[str]) -> None:
    begun, end, changed = threading.Event(), threading.Event(), list[int]()

    def slow(_: str) -> None:
        begun.set()
        end.wait(60)

    def change() -> None:
        with progress.between_lines():
            changed.append(len(lines))

    listen(slow)
    threads = [threading.Thread(target=report, args=["one"]), threading.Thread(target=change)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    time.sleep(0.2)
    assert changed == []
    end.set()
    for thread in threads:
        thread.join(60)
    assert changed == [1]


def test_work_done_before_a_resume_does_not_count_as_speed(lines: list[str], clock: Clock) -> None:
    with Meter("train", 100, "steps", already=90) as meter:
        clock.now += 10
        assert "90/100 [00:10<?, ? steps/s]" in meter.bar(clock.now), "none was done yet"
        meter.update(10)
    assert lines[-1] == "train: done in 10 s, 1.0 steps/s"
    assert lines[0] == "train: 100 % (100 of 100 steps), 1.0 steps/s, 0 s left"


def test_other_work_within_a_step_does_not_count_as_its_time(
    lines: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training once showed seven hours left after a refresh of ten minutes, and ended in two."""
    with Meter("train", 100, "steps") as meter:
        with meter.other_work():
            clock.now += 600
        clock.now += 20
        meter.update(10)
        bar = meter.bar(clock.now)
    assert lines == [
        "train: 10 % (10 of 100 steps), 0.5 steps/s, 3 min 0 s left",
        "train: done in 10 min 20 s, 0.5 steps/s",
    ]
    assert "10:20<03:00" in bar


def test_on_a_terminal_a_bar_is_drawn_and_erased(
    lines: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Meter("encode", 10) as meter:
        for _ in range(10):
            clock.now += 1
            meter.update()
    shown = screen.getvalue().split("\r\x1b[2K")
    assert "encode: 100%" in shown[-2]
    assert shown[-1] == "", "the bar must be gone at the end"
    assert lines == ["encode: done in 10 s, 1.0 items/s"]


@pytest.mark.parametrize(("columns", "longest"), [(200, 100), (80, 79), (20, 19), (1, 100), (0, 100)])
def test_a_bar_takes_one_line_of_the_terminal(
    columns: int, longest: int, lines: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 80 columns the first line of each bar of 100 characters stayed, five per second."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    with os.fdopen(master, "rb"), os.fdopen(slave, "w") as screen, Meter("training encoder", 10, "steps") as meter:
        monkeypatch.setattr(sys, "stderr", screen)
        clock.now += 10
        meter.update(5, "loss 0.1234")
        assert len(meter.bar(clock.now)) == longest


def test_without_a_listener_there_is_no_output(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_listeners", [])
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Meter("encode", 10) as meter:
        for _ in range(10):
            clock.now += 1
            meter.update()
    assert screen.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_a_step_of_unknown_size_does_not_divide_by_zero(lines: list[str], clock: Clock) -> None:
    with Meter("read", 0) as meter:
        clock.now += 10
        meter.update(3)
    assert lines[0] == "read: 3 items, 0.3 items/s"
    assert len(lines) == 2


def test_one_of_a_unit_has_its_singular(lines: list[str], clock: Clock) -> None:
    """A rate that rounds to 1 is 1.0 per second."""
    with Meter("read", 0, "documents") as meter:
        clock.now += 1.001 * 10
        meter.update(10)
        meter.done = 1
        shown = meter.sentence(clock.now)
    assert lines[0] == "read: 10 documents, 1.0 documents/s"
    assert shown.startswith("read: 1 document, ")


def test_only_an_error_of_the_disk_is_a_note(lines: list[str]) -> None:
    with progress.optional("it is not kept"):
        raise StorageError("a full disk", expected="space", do="free some")
    assert lines == ["note: it is not kept: a full disk"]
    with pytest.raises(CorruptError), progress.optional("it is not kept"):
        raise CorruptError("a damaged file", expected="a whole one", do="make it again")
