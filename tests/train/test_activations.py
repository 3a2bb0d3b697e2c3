"""Without memory for the activations of a step, M1 encodes texts twice and learns the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.conftest import TOPICS, train
from tests.train.steps import RECIPES, m1, tiny_bert
from xc_core import memory
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokenizer import load
from xc_core.data.tokens import TokenStore
from xc_core.devices import CPU
from xc_core.distributed import World
from xc_core.train import activations
from xc_core.train.activations import fits, kept_bytes, step_bytes
from xc_core.train.encoder import EncoderTask

REPORT = "encoder: a step would take about"


def short_of_memory(monkeypatch: pytest.MonkeyPatch, limit: int = 1) -> None:
    monkeypatch.setattr(memory, "total_bytes", lambda: limit)


@pytest.mark.parametrize("name", RECIPES)
def test_a_training_that_does_not_fit_learns_the_same(
    name: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {}
    for limit in (1 << 40, 1):
        short_of_memory(monkeypatch, limit)
        task = m1(name, CPU, small, bert=True)
        reads_texts = task.settings.scorer.reads_texts
        assert task.settings.cache == (limit == 1)
        assert getattr(task.settings.scorer, "cache", False) == (reads_texts and (limit == 1 or name == "dexml"))
        losses[limit] = train(task, tmp_path / str(limit)).losses
    assert losses[1] == pytest.approx(losses[1 << 40], rel=1e-4, abs=1e-5) and losses[1]


def test_an_encoder_that_draws_numbers_has_the_same_gradient(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second pass with other dropout gave the gradient of other vectors: a cosine of 0.7, with the same loss."""
    gradients, after = [], []
    for twice in (False, True):
        task = m1("house", CPU, small, bert=True, cache=twice, scorer={"cache": twice})
        task.encoder.tokens_per_pass = 64
        layer = task.encoder.backbone.encoder.layer[1]
        layer.register_forward_hook(lambda *given: torch.nn.functional.dropout(given[2], 0.3))
        torch.manual_seed(1)
        monkeypatch.setattr(task.optimizer, "step", lambda *_: torch.tensor(1.0))
        task.step(task.batches(0)[0], 0, 1.0)
        gradients.append([weight.grad for weight in task.encoder.parameters() if weight.grad is not None])
        after.append(torch.get_rng_state())
    assert gradients[0]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
    assert torch.equal(*after), "later steps draw other numbers"


def test_what_does_not_fit_is_reported_once(small: Any, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    m1("ngame", CPU, small, bert=True)
    assert lines == []
    short_of_memory(monkeypatch)
    m1("ngame", CPU, small, bert=True)
    (line,) = lines
    assert line.startswith(REPORT) and "encoder.cache" in line
    m1("ngame", CPU, small, bert=True, cache=True, scorer={"cache": True})
    assert len(lines) == 1, "nothing can be spared any more"


def test_the_limit_is_above_the_activations(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = m1("house", CPU, small, bert=True)
    monkeypatch.setattr(activations, "step_bytes", lambda _: 5e9)
    needed = 1.3 * 5e9 + 1.7e9
    for limit, enough in ((needed + 1, True), (needed - 1, False)):
        monkeypatch.setattr(memory, "total_bytes", lambda limit=limit: limit)
        assert fits(task) is enough


def test_activations_of_a_small_part_of_the_memory_are_kept(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small encoder trained with 0.4 GB; in a container of 1 GB it began to encode twice, and said 1.7 GB."""
    short_of_memory(monkeypatch, 1 << 30)
    task = m1("ngame", CPU, small, bert=True)
    for kept, is_enough in ((0.09, True), (0.11, False)):
        monkeypatch.setattr(activations, "step_bytes", lambda _, kept=kept: kept * (1 << 30) / 1.3)
        assert fits(task) is is_enough


def test_cards_and_parts_of_a_batch_are_not_looked_at(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = m1("ngame", CPU, small, bert=True)
    short_of_memory(monkeypatch)
    monkeypatch.setattr(activations, "step_bytes", lambda _: pytest.fail("a step was measured"))
    assert fits(replace_world(task, World(0, 2)))
    task.encoder = SimpleNamespace(device=torch.device("meta"))  # type: ignore[assignment]
    assert fits(task)


def replace_world(task: EncoderTask, world: World) -> EncoderTask:
    return SimpleNamespace(world=world, encoder=task.encoder)  # type: ignore[return-value]


def test_without_documents_nothing_is_needed(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = m1("ngame", CPU, small, bert=True)
    for batches in ([], [np.zeros(0, np.int64)]):
        monkeypatch.setattr(task, "batches", lambda _, batches=batches: batches)
        assert step_bytes(task) == 0


def test_an_encoder_that_skips_padding_on_a_cpu_is_not_counted(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = m1("ngame", CPU, small, bert=True)
    monkeypatch.setattr(type(task.encoder), "skips_padding", True)
    assert step_bytes(task) == 0


def test_documents_that_are_encoded_twice_already_are_not_counted(small: Any) -> None:
    both = step_bytes(m1("house", CPU, small, bert=True))
    labels = step_bytes(m1("house", CPU, small, bert=True, cache=True))
    documents = step_bytes(m1("house", CPU, small, bert=True, scorer={"cache": True}))
    assert 0 < labels < both and 0 < documents < both
    assert step_bytes(m1("house", CPU, small, bert=True, cache=True, scorer={"cache": True})) == 0


def kept_by_autograd(make: Callable[[], torch.Tensor]) -> int:
    """Return the bytes of all tensors that the graph of a result keeps, by walking through it."""
    seen: dict[int, int] = {}
    nodes, done = [make().grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in done:
            continue
        done.add(node)
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(kept := getattr(node, name), torch.Tensor):
                seen[kept.untyped_storage().data_ptr()] = kept.untyped_storage().nbytes()
        nodes += [below for below, _ in node.next_functions]
    return sum(seen.values())


def test_the_bytes_of_a_pass_are_those_that_its_graph_keeps() -> None:
    encoder, _, _ = tiny_bert("fp32")
    encoder.use_attention("eager")
    ids = torch.randint(5, 50, (9, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids, dtype=torch.bool)
    weights = sum(p.untyped_storage().nbytes() for p in encoder.parameters())
    kept = kept_by_autograd(lambda: encoder(ids, mask))
    assert kept_bytes(encoder, ids, mask) <= kept <= kept_bytes(encoder, ids, mask) + weights
    four = kept_bytes(encoder, ids.repeat(4, 1), mask.repeat(4, 1))
    assert four == pytest.approx(4 * kept_bytes(encoder, ids, mask), rel=0.05)
    long = torch.ones((2, 200), dtype=torch.int64)
    per_token = [kept_bytes(encoder, long[:, :t], long[:, :t].bool()) / t for t in (50, 200)]
    assert per_token[1] > 1.5 * per_token[0], "attention"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_of_the_shape_of_a_weight_count(precision: str) -> None:
    """The model has matrices of 32 x 16 and 16 x 16: of passes of 32 and 16 tokens up to a third was left out."""
    encoder, _, _ = tiny_bert(precision)
    sizes = {}
    for texts in (3, 4, 5, 2, 1):
        ids = torch.ones((texts, 8), dtype=torch.int64)
        sizes[texts] = kept_bytes(encoder, ids, ids.bool())
    steps = np.diff([sizes[texts] for texts in sorted(sizes)])
    assert steps == pytest.approx(steps[-1], rel=0.03), "each text takes as much"
    assert sizes[1] - steps[-1] < 5_000, "ids of all positions, and no weights (16 kB, in bf16 8 kB)"


def test_nothing_is_kept_after_looking() -> None:
    """A hook that returns what it was given would keep the whole pass for ever."""
    encoder, ids, mask = tiny_bert("fp32")
    activations_: list[weakref.ref[Any]] = []
    encoder.backbone.encoder.layer[0].register_forward_hook(lambda *given: activations_.append(weakref.ref(given[2])))
    kept_bytes(encoder, ids, mask)
    assert activations_ and all(state() is None for state in activations_)


def test_looking_draws_no_number() -> None:
    """A model with dropout of a kind that is not switched off would draw other numbers afterwards."""
    encoder, ids, mask = tiny_bert("fp32")
    encoder.train().backbone.embeddings.dropout.p = 0.5
    before = torch.random.get_rng_state()
    kept_bytes(encoder, ids, mask)
    assert torch.equal(torch.random.get_rng_state(), before) and encoder.training
    encoder(ids, mask)
    assert not torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("name", "changes"), [
    ("ance", {}), ("unidec", {}), ("unidec", {"warmup_epochs": 0}), ("ance", {"positives": 3}),
])  # fmt: skip
def test_labels_that_a_search_adds_in_a_later_epoch_count(name: str, changes: dict[str, int], many_labels: Any) -> None:
    """Only pools of the first epoch were counted, or with a search before it all positives instead of the sampled."""
    task = m1(name, CPU, many_labels, bert=True, negatives=changes)
    docs_B, labels = task.batches(0)[0], many_labels.truth.num_labels
    size, hard = (len(task.data.rows_N), 4), np.arange(4 * len(task.data.rows_N)) * 7 % labels
    task.negatives.load({**task.negatives.arrays(), "hard": hard.reshape(size).astype(np.int32)})
    drawn = len(task.negatives.pool(docs_B, 0).labels_U)
    assert len(activations._pooled_labels(task, docs_B)) == pytest.approx(drawn, rel=0.1)
    task.negatives.load({**task.negatives.arrays(), "hard": np.zeros((size[0], 0), np.int32)})
    assert len(task.negatives.pool(docs_B, 0).labels_U) < 0.8 * drawn, "the pool of the first epoch"


@pytest.fixture
def many_labels(small: Any) -> Any:
    """The documents of ``small`` with ten random labels of 500 each."""
    size, random = len(small.rows_N), np.random.default_rng(0)
    pairs = np.repeat(np.arange(size), 10), random.integers(0, 500, 10 * size)
    truth = LabelMatrix.from_pairs(*pairs, (size, 500))
    words = load("wordpiece", [[*TOPICS] * 3], 200)
    labels = TokenStore.of_texts([TOPICS[i % 5] for i in range(500)], words)
    return replace(small, labels=labels, truth=truth, vocabulary=max(small.vocabulary, words.vocabulary_size))


def test_a_source_that_is_fitted_first_counts_with_its_draws(many_labels: Any) -> None:
    """All positives of the batch were counted, and none of the draws."""
    settings = {"kind": "tree", "positives": 2, "draws": 3}
    task = m1("house", CPU, many_labels, bert=True, negatives=settings)
    task.negatives.tree = None  # type: ignore[attr-defined]
    docs_B = task.batches(0)[0]
    assert 4 * len(docs_B) < len(activations._pooled_labels(task, docs_B)) <= 8 * len(docs_B)


def test_a_pool_that_needs_a_refresh_counts_as_the_labels_of_the_batch(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that is fitted at the start of M1 has nothing to draw with before."""
    task = m1("house", CPU, small, bert=True)
    in_batch = step_bytes(task)
    monkeypatch.setattr(type(task.settings.negatives), "due", lambda *_: True)
    monkeypatch.setattr(task.negatives, "pool", lambda *_: pytest.fail("drawn"))
    assert step_bytes(task) == pytest.approx(in_batch, rel=0.1), "its pool has no other labels"


def test_a_step_is_estimated_by_its_longest_texts(small: Any) -> None:
    """Rather too much than too little; these texts are so short that what a text takes beside its tokens counts."""
    task = m1("house", CPU, small, bert=True)
    ready = task.prepare(task.batches(0)[0], 0)
    assert ready.texts is not None
    batches = [*ready.documents.batches, *ready.texts.batches]
    all_passes = sum(kept_bytes(task.encoder, *batch) for batch in batches)
    assert 0.99 * all_passes <= step_bytes(task) <= 1.3 * all_passes
    assert step_bytes(replaced(task)) < step_bytes(task), "one that takes no labels"


def test_the_rows_of_the_batch_and_the_longest_texts_are_looked_at(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are rows of the store, not positions among those that are trained on; most texts here are short."""
    words = load("wordpiece", [[*TOPICS] * 3], 200)
    texts = [" ".join(TOPICS[:1] * (45 if row == 44 else 3 if row in small.rows_N else 1)) for row in range(45)]
    rows = np.append(small.rows_N[:-1], 44)
    task = m1("house", CPU, replace(small, documents=TokenStore.of_texts(texts, words), rows_N=rows), bert=True)
    task.encoder.tokens_per_pass = 64
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(activations, "kept_bytes", lambda _, ids, mask: seen.append(mask) or ids.numel())
    monkeypatch.setattr(task, "batches", lambda _: [np.arange(len(rows))])
    total = step_bytes(task)
    ready = task.prepare(np.arange(len(rows)), 0)
    assert ready.texts is not None
    batches = [*ready.documents.batches, *ready.texts.batches]
    assert [mask.shape[1] for mask in seen] == [task.data.documents.lengths(np.array([44]), 64)[0]]
    tokens: list[int] = [batch[0].numel() for batch in batches]
    assert total == sum(tokens) and len(tokens) > 3


def replaced(task: EncoderTask) -> EncoderTask:
    """Return the same training with a head that does not encode label texts once."""
    settings = replace(task.settings, scorer=task.settings.scorer.sparing())
    return replace(task, head=settings.scorer.build(settings.loss, task.encoder, task.data.truth.num_labels))
