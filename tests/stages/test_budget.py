"""A budget scales epochs by a measured time, once, and never lengthens a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xc_core.data.corpus import Corpus
from xc_core.data.tokenizer import TextTokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import build_encoder
from xc_core.errors import DataError, UsageError
from xc_core.fusion import Lexical, LexicalConfig
from xc_core.progress import listen, silence
from xc_core.recipes import RECIPES
from xc_core.stages import Workspace, budget, run_stage
from xc_core.stages.encoder import TOKENIZER
from xc_core.stages.workspace import store_name
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2m ", 120)])
def test_a_duration_is_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert budget.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "0s", "1d", "1m30s", "1e3s"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected: a duration above 0: 90s, 10m, 1\.5h"):
        budget.seconds_of(text)


@pytest.fixture
def ready(workspace: Workspace) -> Workspace:
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    return workspace


@dataclass
class Clock:
    """Two clocks that stand still until something is said to take time."""

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
    """Let the budget read these clocks, as on a machine without an accelerator."""
    made = Clock()
    read = SimpleNamespace(thread_time=lambda: made.thread, perf_counter=lambda: made.wall)
    monkeypatch.setattr(budget, "time", read)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return made


@pytest.fixture
def steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a step of M1 take 20 ms, one of M4 5 ms, and encoding no time; return the names of the steps taken."""
    taken: list[str] = []

    def slow(name: str, seconds: float) -> Callable[..., tuple[float, float]]:
        def step(self: Any, docs: Any, number: int, scale: float) -> tuple[float, float]:
            taken.append(name)
            clock.run(seconds)
            return 0.0, 1.0

        return step

    monkeypatch.setattr(EncoderTask, "step", slow("encoder", 0.02))
    monkeypatch.setattr(ClassifierTask, "step", slow("classifier", 0.005))
    monkeypatch.setattr(budget, "_encoding_seconds", lambda encoder, store: 0.0)
    return taken


def whole_seconds(workspace: Workspace) -> float:
    """Return what both trainings take: 4 epochs of M1, and of M4 6 on all documents and 6 without each half."""
    corpus = Corpus.open(workspace.folder("corpus", "toy"))
    train, published = len(corpus.rows("train")), len(corpus.published_rows())
    batches = math.ceil(train / 32)
    return 4 * batches * 0.02 + 6 * (published + train + published) / train * batches * 0.005


def test_epochs_of_both_trainings_are_scaled_alike_to_fit(ready: Workspace, steps: list[str]) -> None:
    whole, experiment = whole_seconds(ready), ready.experiment("toy", "ngame")
    assert whole == pytest.approx(1.25, abs=0.01)
    for share in (0.5, 0.125):
        found = budget.scaled_epochs(ready, experiment, share * whole)
        assert found["encoder"]["epochs"] == pytest.approx(4 * share, rel=0.01)
        assert found["classifier"]["epochs"] == pytest.approx(6 * share, rel=0.01)
    assert set(steps) == {"encoder", "classifier"}


def test_encoding_and_label_trees_are_taken_from_the_budget(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_encoding_seconds", lambda encoder, store: 0.05)
    monkeypatch.setattr(budget, "_words_seconds", lambda corpus, config, fields, sizes: 0.3)
    half, experiment = whole_seconds(ready) / 2, ready.experiment("toy", "ngame")
    assert experiment.recipe is not None
    words = experiment.recipe.changed({"classifier": {"lexical": {"use": True}}})
    found = budget.scaled_epochs(ready, replace(experiment, recipe=words), half + 2 * 0.05 + 0.3)
    assert found["encoder"]["epochs"] == pytest.approx(2.0, rel=0.01)
    assert found["classifier"]["epochs"] == pytest.approx(3.0, rel=0.01)
    without = budget.scaled_epochs(ready, experiment, half + 2 * 0.05)
    assert without["encoder"]["epochs"] == pytest.approx(2.0, rel=0.01)


def test_where_encoding_leaves_less_than_a_quarter_the_quarter_is_trained_and_said(
    ready: Workspace, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_encoding_seconds", lambda encoder, store: 50.0)
    told: list[str] = []
    listen(told.append)
    try:
        found = budget.scaled_epochs(ready, ready.experiment("toy", "ngame"), 2 * whole_seconds(ready))
    finally:
        silence()
    assert found["encoder"]["epochs"] == pytest.approx(2.0, rel=0.01)
    assert any("encoding cannot be shortened, so it will take about 101 s" in line for line in told), told


def test_the_seconds_of_encoding_are_those_of_all_tokens(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """8 of 240 documents are encoded, at 0.1 ms a token."""
    monkeypatch.setattr(budget, "_ENCODED", 8)
    monkeypatch.setattr(budget, "_FIRST", 2)
    seen: list[int] = []

    def slow(encoder: Any, store: Any, rows: Any, out: Any, what: str) -> None:
        seen.append(len(rows))
        clock.run(1e-4 * float(store.lengths(rows, encoder.config.max_length).sum()))

    monkeypatch.setattr(budget, "embed_rows", slow)
    recipe = ready.experiment("toy", "ngame").recipe
    assert recipe is not None
    config = recipe.encoder.encoder
    folder = ready.folder("tokens", "toy") / store_name(config.tokenizer)
    store = TokenStore.open(folder, "documents")
    tokenizer = TextTokenizer.from_file(config.tokenizer, folder / TOKENIZER)
    found = budget._encoding_seconds(build_encoder(config, tokenizer.vocabulary_size, 0), store)
    assert seen == [2, 8]
    whole = store.lengths(np.arange(len(store)), config.max_length).sum()
    assert found == pytest.approx(1e-4 * whole)


def test_the_seconds_of_label_trees_are_those_of_one_on_some_documents_a_little_more_than_in_proportion(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Its threads are not this one, so it is timed by the wall."""
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    asked: list[tuple[int, int, int]] = []

    def slow(texts: list[str], truth: Any, config: LexicalConfig, label_texts: list[str] | None = None) -> None:
        clock.wait(0.05)
        if label_texts is None:
            raise DataError("too few documents to learn from", expected="", do="")
        asked.append((len(texts), config.trees, sum(map(bool, label_texts))))

    monkeypatch.setattr(budget, "_WORDS", 54)
    monkeypatch.setattr(Lexical, "fit", slow)
    found = budget._words_seconds(corpus, LexicalConfig(trees=3), ("title",), [216, 108])
    assert found == pytest.approx(0.05 * (4**1.2 + 2**1.2))
    [(documents, trees, labels)] = asked
    assert (documents, trees) == (54, 3)
    assert 0 < labels < corpus.num_labels / 2, "a quarter of the labels' texts belongs to a quarter of the documents"


def test_a_corpus_without_words_has_no_label_trees_to_time(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corpus, "own_texts", lambda corpus, side, rows, fields: [""] * len(rows))
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    assert budget._words_seconds(corpus, LexicalConfig(), ("title",), [216]) == 0.0


def test_a_recipe_that_fits_is_left_as_it_is(ready: Workspace, steps: list[str]) -> None:
    experiment = ready.experiment("toy", "ngame")
    assert budget.scaled_epochs(ready, experiment, 3600) == {}


def test_the_same_budget_gives_the_same_epochs_and_times_nothing_again(ready: Workspace, steps: list[str]) -> None:
    experiment = ready.experiment("toy", "ngame")
    first = budget.scaled_epochs(ready, experiment, 0.2)
    timed = len(steps)
    assert budget.scaled_epochs(ready, experiment, 0.2) == first
    assert len(steps) == timed
    budget.scaled_epochs(ready, experiment, 0.2, anew=True)
    assert len(steps) == 2 * timed


@pytest.mark.parametrize(("seconds", "said"), [(0.02, True), (0.004, False)])
def test_time_in_which_a_step_waits_for_other_work_is_not_counted_and_much_of_it_is_said(
    seconds: float, said: bool, ready: Workspace, steps: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the wall a step of M1 takes twice as long as it runs, or a fifth longer."""
    quick = EncoderTask.step

    def waits(self: Any, *step: Any) -> tuple[float, float]:
        clock.wait(seconds)
        return quick(self, *step)

    experiment = ready.experiment("toy", "ngame")
    alone = budget.scaled_epochs(ready, experiment, 0.2)
    monkeypatch.setattr(EncoderTask, "step", waits)
    told: list[str] = []
    listen(told.append)
    try:
        beside = budget.scaled_epochs(ready, experiment, 0.2, anew=True)
    finally:
        silence()
    assert beside == alone
    assert any("times as long as they run, for other work runs here" in line for line in told) == said, told


@pytest.mark.parametrize(
    "name", ["astra", "astra-classifier-hard", "astra-label-curriculum", "unidec", "ngame", "ance"]
)
@pytest.mark.parametrize("epochs", [1.2, 2.0, 2.5])
def test_clusters_and_searches_begin_before_a_scaled_training_ends(name: str, epochs: float) -> None:
    """Else all the strategies of ASTRA's table 5 would be one training under seven names."""
    stage = RECIPES[name].encoder
    share = epochs / stage.epochs
    scaled = RECIPES[name].changed({"encoder": {"epochs": epochs, **budget.shortened(stage, epochs)}}).encoder
    seen = range(math.ceil(epochs))
    assert any(scaled.order.due(epoch) for epoch in seen) or not stage.order.clusters
    assert any(scaled.negatives.due(epoch) for epoch in seen) or not stage.negatives.searches
    assert scaled.negatives.curriculum == pytest.approx(stage.negatives.curriculum * share, rel=1e-2)


def test_epochs_that_are_rounded_to_whole_ones_still_search(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.004 of 4 epochs of astra are declared as 2.0, whose last is epoch 1, not 2."""
    experiment = ready.experiment("toy", "ngame")
    monkeypatch.setattr(budget, "_remembered", lambda *args, **how: {"encoder": 1000.0, "encoding": 0.0})
    found = budget.scaled_epochs(ready, replace(experiment, recipe=RECIPES["astra"]), 501.0)["encoder"]
    assert found["epochs"] == 2.0
    scaled = RECIPES["astra"].changed({"encoder": found}).encoder
    assert any(scaled.negatives.due(epoch) for epoch in range(2))


def test_what_begins_in_time_as_it_is_stays_and_one_epoch_is_too_few_for_anything() -> None:
    assert budget.shortened(RECIPES["astra"].encoder, 3.0) == {}
    assert budget.shortened(RECIPES["astra"].encoder, 1.0) == {}
    assert budget.shortened(RECIPES["astra"].encoder, 2.0) == {"negatives": {"warmup_epochs": 1, "ahead": 0}}


def test_a_training_that_ends_before_its_first_clustering_says_so(ready: Workspace) -> None:
    said: list[str] = []
    listen(said.append)
    try:
        for epochs in (1, 2):
            ready.declare_experiment(
                "toy", "ngame", "ngame", {"encoder": {"encoder": {"name": "bag"}, "epochs": epochs}}
            )
            run_stage(ready, "encoder", "toy", "ngame")
    finally:
        silence()
    told = [line for line in said if "before the first" in line]
    assert told == ["encoder: 1 epochs end before the first clustering, so that all batches are random"]
