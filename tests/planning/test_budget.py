"""A budget scales epochs by a measured time, once, and never lengthens a training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xc_core import devices, memory
from xc_core.chain import Workspace
from xc_core.chain.costs import processor
from xc_core.chain.experiment import Experiment
from xc_core.data.corpus import Corpus
from xc_core.data.tokens import Tokenised, store_name
from xc_core.encoders import build_encoder
from xc_core.errors import DataError, UsageError
from xc_core.planning import budget, step_memory
from xc_core.recipes import RECIPES
from xc_core.scores import Lexical, Sample, ScoreData
from xc_core.scores import base as scores
from xc_core.scores.lexical import LabelTrees
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2m ", 120)])
def test_a_duration_is_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert budget.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "0s", "1d", "1m30s", "1e3s"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected: a duration above 0: 90s, 10m, 1\.5h"):
        budget.seconds_of(text)


@dataclass
class Clock:
    """Two clocks that stand still until a test lets something take time."""

    thread: float = 0.0
    wall: float = 0.0

    def run(self, seconds: float) -> None:
        """Pass time in which this thread works."""
        self.thread, self.wall = self.thread + seconds, self.wall + seconds

    def wait(self, seconds: float) -> None:
        """Pass time in which this thread waits."""
        self.wall += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let the budget and the scores read these clocks, as on a machine without an accelerator."""
    made = Clock()
    read = SimpleNamespace(thread_time=lambda: made.thread, perf_counter=lambda: made.wall)
    monkeypatch.setattr(budget, "time", read)
    monkeypatch.setattr(devices, "time", read)
    monkeypatch.setattr(scores, "time", read)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return made


@pytest.fixture
def steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a step of M1 take 20 ms, one of M4 5 ms, and encoding no time; return the names of the steps taken."""
    taken: list[str] = []

    def slow(name: str, seconds: float) -> Callable[..., tuple[float, float]]:
        def step(self: Any, docs: Any, number: int, scale: float, ready: Any = None) -> tuple[float, float]:
            taken.append(name)
            clock.run(seconds)
            return 0.0, 1.0

        return step

    monkeypatch.setattr(EncoderTask, "step", slow("encoder", 0.02))
    monkeypatch.setattr(ClassifierTask, "step", slow("classifier", 0.005))
    monkeypatch.setattr(budget, "encoding_seconds", lambda encoder, store: 0.0)
    return taken


def experiment_of(workspace: Workspace) -> Experiment:
    return workspace.params.experiment("toy", "ngame")


def whole_seconds(workspace: Workspace) -> float:
    """Return what both trainings take: 4 epochs of M1, and of M4 6 on all documents and 6 without each half."""
    corpus = Corpus.open(workspace.folder("corpus", "toy"))
    train, published = len(corpus.rows("train")), len(corpus.published_rows())
    batches = math.ceil(train / 32)
    return 4 * batches * 0.02 + 6 * (published + train + published) / train * batches * 0.005


def encoding_passes(workspace: Workspace) -> float:
    """Return how often a side is encoded: train documents and labels before M1, all documents and labels after it."""
    corpus = Corpus.open(workspace.folder("corpus", "toy"))
    return len(corpus.rows("train")) / corpus.num_documents + 3


def test_epochs_of_both_trainings_are_scaled_alike_to_fit(ready: Workspace, steps: list[str]) -> None:
    whole, experiment = whole_seconds(ready), experiment_of(ready)
    assert whole == pytest.approx(1.25, abs=0.01)
    for share in (0.5, 0.125):
        found = budget.scaled_epochs(ready, experiment, share * whole)
        assert found["encoder"]["epochs"] == pytest.approx(4 * share, rel=0.01)
        assert found["classifier"]["epochs"] == pytest.approx(6 * share, rel=0.01)
    assert set(steps) == {"encoder", "classifier"}


def test_what_a_step_keeps_is_for_the_training_to_report(
    ready: Workspace, steps: list[str], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is short the line came twice."""
    monkeypatch.setattr("xc_core.memory.total_bytes", lambda: 1)
    budget.scaled_epochs(ready, experiment_of(ready), whole_seconds(ready) / 2)
    assert lines and not any("a step would take" in line for line in lines)


def test_whoever_gave_a_budget_is_not_told_to_give_one(ready: Workspace, steps: list[str], lines: list[str]) -> None:
    """``--budget 3h`` was advised also after ``--budget 3h``."""
    budget.scaled_epochs(ready, experiment_of(ready), whole_seconds(ready) / 2)
    assert lines[-1] == "budget: a larger --budget trains more of the epochs, --budget none all of them"


def test_encoding_and_scores_that_take_time_are_taken_from_the_budget(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(budget, "encoding_seconds", lambda encoder, store: 0.05)
    monkeypatch.setattr(Lexical, "cost", lambda score, sample: 0.3)
    half, experiment, encoding = whole_seconds(ready) / 2, experiment_of(ready), 0.05 * encoding_passes(ready)
    words = experiment.recipe.changed({"scores": {"lexical": {}}})
    found = budget.scaled_epochs(ready, replace(experiment, recipe=words), half + encoding + 0.3)
    assert found["encoder"]["epochs"] == pytest.approx(2.0, rel=0.01)
    assert found["classifier"]["epochs"] == pytest.approx(3.0, rel=0.01)
    assert "of it for encoding and scores;" in lines[0]
    without = budget.scaled_epochs(ready, experiment, half + encoding)
    assert without["encoder"]["epochs"] == pytest.approx(2.0, rel=0.01)


def test_if_encoding_leaves_less_than_a_quarter_the_quarter_is_trained_and_reported(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(budget, "encoding_seconds", lambda encoder, store: 50.0)
    whole = whole_seconds(ready)
    found = budget.scaled_epochs(ready, experiment_of(ready), 2 * whole)
    assert found["encoder"]["epochs"] == pytest.approx(2.0, rel=0.01)
    seconds = f"{50 * encoding_passes(ready) + whole / 2:.0f}"
    assert any(f"encoding cannot be shortened, so it will take about {seconds} s" in line for line in lines), lines


def test_a_recipe_that_fits_is_left_as_it_is(ready: Workspace, steps: list[str]) -> None:
    assert budget.scaled_epochs(ready, experiment_of(ready), 3600) == {}


def test_the_same_budget_gives_the_same_epochs_and_times_nothing_again(
    ready: Workspace, steps: list[str], lines: list[str]
) -> None:
    experiment = experiment_of(ready)
    first = budget.scaled_epochs(ready, experiment, 0.2)
    timed = len(steps)
    assert budget.scaled_epochs(ready, experiment, 0.2) == first
    assert len(steps) == timed
    assert "budget: using the timings of an earlier call; --force times, and trains, again" in lines
    budget.scaled_epochs(ready, experiment, 0.2, again=True)
    assert len(steps) == 2 * timed
    (kept,) = (ready.state / "budget").iterdir()
    whole = json.loads(kept.read_text())
    damaged = [whole | {"encoder": None}, whole | {"encoder": math.nan}, {"encoder": 1.0}, {}, []]
    for content in ("", *map(json.dumps, damaged)):
        kept.write_text(content)
        assert budget.scaled_epochs(ready, experiment, 0.2) == first
    assert len(steps) == (2 + 6) * timed


def test_an_estimate_is_for_the_processor_that_it_was_made_on(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project that was copied to another machine, or is mounted on two, used the timings of the first one."""
    experiment, used = experiment_of(ready), list[int]()
    for name in ("slow", "fast", "slow"):
        monkeypatch.setattr(budget, "processor", lambda name=name: name)
        budget.scaled_epochs(ready, experiment, 0.2)
        used.append(len(steps))
    assert used == [used[0], 2 * used[0], 2 * used[0]]


@pytest.mark.parametrize("old", [False, True])
def test_an_estimate_is_for_a_training_that_keeps_activations_or_for_one_that_does_not(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """A step that encodes texts twice takes longer, and memory may be limited later; on a card nothing is decided."""
    experiment, used = experiment_of(ready), list[int]()
    if old:
        scaled_before_processors_counted(ready, experiment, monkeypatch)
    before = len(steps)
    monkeypatch.setattr(step_memory, "activation_bytes", lambda case: 5e9)
    for limit in (9e9, 8e9, 9e9, 7e9):
        monkeypatch.setattr(memory, "total_bytes", lambda limit=limit: limit)
        budget.scaled_epochs(ready, experiment, 0.2)
        used.append(len(steps) - before)
    once = used[1] - used[0]
    assert once > 0
    assert used == [n * once for n in ((0, 1, 1, 1) if old else (1, 2, 2, 2))]


def test_an_estimate_from_before_processors_counted_is_used(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that was killed then resumes only with the same epochs."""
    experiment = experiment_of(ready)
    first = scaled_before_processors_counted(ready, experiment, monkeypatch)
    timed = len(steps)
    assert budget.scaled_epochs(ready, experiment, 0.2) == first
    assert len(steps) == timed


def test_force_times_again_whatever_an_estimate_from_before_processors_counted_says(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of(ready)
    scaled_before_processors_counted(ready, experiment, monkeypatch)
    (old,) = (ready.state / "budget").iterdir()
    old.write_text(json.dumps({part: 2 * seconds for part, seconds in json.loads(old.read_text()).items()}))
    timed = len(steps)
    found = budget.scaled_epochs(ready, experiment, 0.2, again=True)
    assert len(steps) == 2 * timed
    assert budget.scaled_epochs(ready, experiment, 0.2) == found, "not that of the old estimate"
    assert len(steps) == 2 * timed


def scaled_before_processors_counted(
    workspace: Workspace, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the changes of a budget whose timings are kept as before the processor was part of their key."""
    with monkeypatch.context() as before:
        before.setattr(json, "dumps", lambda content, dumps=json.dumps, **how: dumps(drop_processor(content), **how))
        return budget.scaled_epochs(workspace, experiment, 0.2)


def drop_processor(content: Any) -> Any:
    return content[:-1] if isinstance(content, list) and content[-1:] == [processor()] else content


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({"fusion": {"rows": 7}}, False),
        ({"negatives": {"index": "exact"}}, False),
        ({"encoder": {"loss": {"margin": 0.5}}}, True),
        ({"classifier": {"epochs": 5.0}}, True),
        ({"scores": {"frequency": None}}, True),
    ],
)
def test_an_estimate_is_for_the_settings_that_it_depends_on(
    changes: dict[str, Any], again: bool, ready: Workspace, steps: list[str]
) -> None:
    experiment = experiment_of(ready)
    budget.scaled_epochs(ready, experiment, 0.2)
    timed = len(steps)
    budget.scaled_epochs(ready, replace(experiment, recipe=experiment.recipe.changed(changes)), 0.2)
    assert (len(steps) > timed) == again


@pytest.mark.parametrize(("seconds", "reported"), [(0.02, True), (0.004, False)])
def test_time_in_which_a_step_waits_for_other_work_is_not_counted_and_much_of_it_is_reported(
    seconds: float,
    reported: bool,
    ready: Workspace,
    steps: list[str],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
) -> None:
    """By the wall a step of M1 takes twice as long as it runs, or a fifth longer."""
    quick = EncoderTask.step

    def waits(self: Any, *step: Any) -> tuple[float, float]:
        clock.wait(seconds)
        return quick(self, *step)

    alone = budget.scaled_epochs(ready, experiment_of(ready), 0.2)
    monkeypatch.setattr(EncoderTask, "step", waits)
    lines.clear()
    assert budget.scaled_epochs(ready, experiment_of(ready), 0.2, again=True) == alone
    said = "budget: other processes are running, so training the encoder may take 2.0 times as long as estimated"
    assert (said in lines) == reported, lines


# encoding and scores


def test_the_seconds_of_encoding_are_those_of_all_tokens(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """8 of 240 documents are encoded, at 0.1 ms a token."""
    monkeypatch.setattr(budget, "_TIMED_TEXTS", 8)
    monkeypatch.setattr(budget, "_WARMUP_TEXTS", 2)
    seen: list[int] = []

    def slow(encoder: Any, store: Any, rows: Any, out: Any, what: str) -> None:
        seen.append(len(rows))
        clock.run(1e-4 * float(store.lengths(rows, encoder.config.max_length).sum()))

    monkeypatch.setattr(budget, "embed_rows", slow)
    config = experiment_of(ready).recipe.encoder.encoder
    tokens = Tokenised.open(ready.folder("tokens", "toy") / store_name(config.tokenizer))
    store = tokens.side("documents")
    found = budget.encoding_seconds(build_encoder(config, tokens.tokenizer.vocabulary_size, 0), store)
    assert seen == [2, 8]
    whole = store.lengths(np.arange(len(store)), config.max_length).sum()
    assert found == pytest.approx(1e-4 * whole)


@pytest.fixture
def sample(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Sample]:
    """Return the sample that scores are timed on, for the toy experiment with changes."""

    def make(changes: dict[str, Any]) -> Sample:
        experiment = experiment_of(ready)
        own = replace(experiment, recipe=experiment.recipe.changed(changes))
        return budget._Estimate.of(ready, own)._sample()

    return make


def test_the_seconds_of_label_trees_are_those_of_one_fit_on_some_documents_a_little_more_than_in_proportion(
    ready: Workspace,
    sample: Callable[[dict[str, Any]], Sample],
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
) -> None:
    """Its threads are not this one, so it is timed by the wall."""
    asked: list[tuple[int, int, int]] = []

    def slow(score: Lexical, data: ScoreData) -> LabelTrees:
        clock.wait(0.05)
        if len(data.truth) <= 9:
            raise DataError("too few documents to learn from", expected="", do="")
        asked.append((len(data.texts()), score.trees, sum(map(bool, data.label_texts()))))
        return LabelTrees(score, 0, None, ())  # type: ignore[arg-type]

    monkeypatch.setattr(budget, "_SAMPLE_DOCUMENTS", 54)
    monkeypatch.setattr(budget, "_WARMUP_TEXTS", 9)
    monkeypatch.setattr(Lexical, "fit", slow)
    made = sample({"classifier": {"refit": False}})
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    assert made.sizes == (len(corpus.rows("train")),)
    found = Lexical(trees=3).cost(replace(made, sizes=(216, 108)))
    assert found == pytest.approx(0.05 * (4**1.2 + 2**1.2))
    [(documents, trees, labels)] = asked
    assert (documents, trees) == (54, 3)
    assert 0 < labels < corpus.num_labels / 2, "a quarter of the labels' texts belongs to a quarter of the documents"


def test_scores_are_timed_for_every_fold_and_on_no_document_twice(
    sample: Callable[[dict[str, Any]], Sample], ready: Workspace
) -> None:
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    published, halves = len(corpus.published_rows()), corpus.validation_halves()
    sizes = [published - len(half) for half in halves]
    made = sample({})
    assert made.sizes == (*sizes, published)
    assert made.data.texts() == corpus.texts_of("documents", corpus.published_rows())
    assert sample({"classifier": {"enough": 1}}).sizes == (sizes[0], published)


def test_a_corpus_without_words_has_no_label_trees_to_time(
    sample: Callable[[dict[str, Any]], Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Corpus, "texts_of", lambda corpus, side, rows: [""] * len(rows))
    assert Lexical().cost(sample({})) == 0.0


def test_scores_without_a_cost_take_no_time(sample: Callable[[dict[str, Any]], Sample]) -> None:
    assert {kind: score.cost(sample({})) for kind, score in RECIPES["ngame"].scores.items()} == {
        "label_text": 0.0, "classifier": 0.0, "frequency": 0.0}  # fmt: skip
