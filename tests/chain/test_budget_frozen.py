"""The estimate of an encoder with frozen layers: its steps read the states after them, as those of a training do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chain.test_budget_recipes import estimate
from tests.train.test_frozen import FROZEN, bert
from xc_core.chain import Workspace, budget
from xc_core.data.corpus import Corpus


def frozen(workspace: Workspace, name: str, changes: dict[str, Any]) -> budget._Estimate:
    """Return the estimate of a recipe with a tiny BERT whose lowest layers are not trained."""
    own = estimate(workspace, name, changes)
    return replace(own, encoder=bert(own.tokens.tokenizer.vocabulary_size, max_length=16))


def test_no_frozen_layer_is_computed_in_a_timed_step(ready: Workspace) -> None:
    own = frozen(ready, "ngame", {})
    assert len(own._encoder_task().batches(0)) > budget._WARM + budget._TIMED, "each step has a batch of its own"
    encoder: Any = own.encoder
    for module in (encoder.backbone.embeddings, *encoder.backbone.encoder.layer[:FROZEN]):
        module.forward = None
    assert own.trainings()["encoder"] > 0


def test_states_that_are_computed_before_the_first_step_take_a_part_of_an_encoding(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus.open(ready.folder("corpus", "toy"))
    share = len(corpus.rows("train")) / corpus.num_documents
    monkeypatch.setattr(budget, "encoding_seconds", lambda encoder, store: 7.0 if len(store) > 10 else 1.0)
    monkeypatch.setattr(budget, "_epoch_seconds", lambda task: 1.0)
    again, once = (frozen(ready, "dpr", {"encoder": {"epochs": epochs}}).seconds() for epochs in (2.0, 1.0))
    assert again["encoding"] == pytest.approx(7 + 1 + budget._FROZEN * (7 * share + 1))
    assert once["encoding"] == 7 + 1
