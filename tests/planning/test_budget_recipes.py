"""Every kind of recipe can be timed: the estimate takes real steps of the objects that its trainings build."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chain.toy import set_content
from tests.conftest import TOY_CHANGES
from tests.train.test_frozen import bert
from xc_core.chain import Workspace
from xc_core.data import tokenizer
from xc_core.data.corpus import Corpus
from xc_core.params import deep_merged
from xc_core.planning import budget
from xc_core.recipes import RECIPES
from xc_core.train.encoder import EncoderTask
from xc_core.train.frozen import WithStates


def estimate(workspace: Workspace, name: str, changes: dict[str, Any]) -> budget._Estimate:
    """Return the estimate of a recipe with a small encoder."""
    encoder = {"encoder": deepcopy(TOY_CHANGES["encoder"]["encoder"]), "order": {"batch_size": 16}}
    classifier: dict[str, Any] = {"order": {"batch_size": 16}} if RECIPES[name].classifier.epochs else {}
    small = deep_merged({"encoder": encoder, "classifier": classifier}, changes)
    experiment = workspace.params.experiment("toy", "ngame")
    return budget._Estimate.of(workspace, replace(experiment, recipe=RECIPES[name].changed(small)))


FEW: dict[str, Any] = {"hard": 3, "uniform": 4}
CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "clusters, in-batch negatives": ("ngame", {}, {"encoder", "classifier"}),
    "clusters before the first epoch": ("tas", {}, {"encoder", "classifier"}),
    "searches, stored hard negatives": ("ance", {}, {"encoder", "classifier"}),
    "a fitted tree": ("adversarial", {}, {"encoder", "classifier"}),
    "a tree fitted in M1": ("dpr", {"encoder": {"negatives": "tree"}}, {"encoder", "classifier"}),
    "an encoder that is not trained": ("adversarial-pretrained", {}, {"classifier"}),
    "a sample of all labels": ("anr", {"classifier": {"negatives": FEW}}, {"encoder", "classifier"}),
    "label texts as documents": ("ngame", {
        "classifier": {"augment": True, "order": {"kind": "random", "batch_size": 16}}}, {"encoder", "classifier"}),
    "rows trained with the encoder": ("astra-label-curriculum", {"encoder": {"negatives": FEW}}, {"encoder"}),
    "label texts and rows": ("unidec", {"encoder": {"order": {"size": 4}}}, {"encoder"}),
}  # fmt: skip


def test_an_estimate_is_for_a_corpus_and_the_tokens_that_the_recipe_reads(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a recipe with another tokenizer would give all others new epochs, so that they were trained again."""
    timed: list[int] = []
    parts = {"encoding": 1.0, "scores": 0.0, "encoder": 9.0, "classifier": 1.0}
    monkeypatch.setattr(budget._Estimate, "seconds", lambda self: timed.append(1) or parts)

    def times() -> int:
        budget.scaled_epochs(ready, ready.params.experiment("toy", "ngame"), 1.0)
        return len(timed)

    assert (times(), times()) == (1, 1)
    monkeypatch.setattr(tokenizer, "load", lambda name: None)  # a hub cannot be asked
    ready.params.declare_experiment("toy", "other", "ngame", {"encoder": {"encoder": {"name": "mpnet"}}})
    assert ready.params.dataset("toy").tokens.tokenizers == ("minilm", "wordpiece", "mpnet")
    assert times() == 1
    set_content(ready.folder("tokens", "toy") / "wordpiece")
    assert times() == 2
    set_content(ready.folder("corpus", "toy"))
    assert times() == 3


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_is_timed_in_the_parts_that_it_trains(case: str, ready: Workspace) -> None:
    name, changes, trained = CASES[case]
    found = estimate(ready, name, changes).seconds()
    assert found.keys() == {"encoding", "scores"} | trained
    assert all(found[part] > 0 for part in trained | {"encoding"})
    assert found["scores"] == 0


def test_nothing_is_timed_for_a_recipe_without_epochs(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """Label trees of few documents would be timed by training them once more."""
    monkeypatch.setattr(budget, "_Estimate", None)
    experiment = replace(ready.params.experiment("toy", "ngame"), recipe=RECIPES["bonsai"])
    assert budget.scaled_epochs(ready, experiment, 1.0) == {}
    assert lines == ["budget: bonsai has no epochs to scale; xc plan estimates its time"]


def test_vectors_that_are_needed_before_the_first_epoch_are_encoded_twice(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train documents and labels before the training, all documents and labels after it."""
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    share = len(corpus.rows("train")) / corpus.num_documents
    assert 0.5 < share < 0.9
    monkeypatch.setattr(budget, "encoding_seconds", lambda encoder, store: 7.0 if len(store) > 10 else 1.0)
    monkeypatch.setattr(budget, "_epoch_seconds", lambda task: 1.0)
    assert estimate(ready, "dpr", {}).seconds()["encoding"] == 7 + 1
    assert estimate(ready, "ngame", {}).seconds()["encoding"] == pytest.approx(7 + 1 + 7 * share + 1)


def test_label_texts_as_documents_make_every_training_of_the_classifier_longer(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_epoch_seconds", lambda task: 2.0)
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    train, labels = len(corpus.rows("train")), corpus.num_labels
    order = {"kind": "random", "batch_size": 16}
    plain = {"classifier": {"epochs": 5.0, "refit": False, "order": order}}
    augmented = {"classifier": {**plain["classifier"], "augment": True}}
    assert estimate(ready, "ngame", plain).seconds()["classifier"] == pytest.approx(5 * 2)
    found = estimate(ready, "ngame", augmented).seconds()["classifier"]
    assert found == pytest.approx(5 * 2 * (train + labels) / train)
    refitted = {"classifier": {**augmented["classifier"], "refit": True}}
    documents = 3 * len(corpus.published_rows()) - len(corpus.rows("validation"))
    found = estimate(ready, "ngame", refitted).seconds()["classifier"]
    assert found == pytest.approx(5 * 2 * (documents + 3 * labels) / train), "two trainings leave out a half each"


def test_a_step_is_timed_with_as_many_hard_negatives_as_a_search_keeps(ready: Workspace) -> None:
    made = estimate(ready, "ance", {"encoder": {"negatives": {"search": 5}}})
    task = made._encoder_task
    hard = task.negatives.arrays()["hard"]
    assert hard.shape == (len(task.data.rows_N), 5)
    assert len(np.unique(hard)) > 1


def test_a_step_is_timed_with_the_states_of_frozen_layers(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are encoded before the first step: with the banks if there are any, else three layers of six, or one."""
    made = estimate(ready, "ngame", {})
    made = replace(made, encoder=bert(made.tokens.tokenizer.vocabulary_size))
    task = made._encoder_task
    assert isinstance(task.data.documents, WithStates)
    assert isinstance(task.data.labels, WithStates)
    assert made.seconds()["encoder"] > 0

    share = len(task.data.rows_N) / made.corpus.num_documents
    monkeypatch.setattr(budget, "encoding_seconds", lambda encoder, store: 7.0 if len(store) > 10 else 1.0)
    monkeypatch.setattr(budget, "_epoch_seconds", lambda task: 1.0)
    assert made.seconds()["encoding"] == pytest.approx(7 + 1 + 7 * share + 1)
    other = replace(estimate(ready, "dpr", {}), encoder=made.encoder)
    layered = {"encoder": {"encoder": {"name": "minilm", "frozen_layers": 3}}}  # bag has no layers
    other = replace(other, recipe=other.recipe.changed(layered))
    assert other.seconds()["encoding"] == pytest.approx(7 + 1 + (7 * share + 1) / 2)
    one = replace(other, recipe=other.recipe.changed({"encoder": {"encoder": {"frozen_layers": 1}}}))
    assert one.seconds()["encoding"] == pytest.approx(7 + 1 + (7 * share + 1) / 6)


def test_a_timing_writes_nothing_beside_the_corpus(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named file there would be part of the artefact; some disks have no unnamed ones."""
    folders: list[Path] = []
    monkeypatch.setattr(EncoderTask, "keep_states", lambda task, folder, timed: folders.append(folder))
    estimate(ready, "ngame", {}).trainings()
    assert folders == [ready.root]
