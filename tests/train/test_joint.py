"""An encoder and a table trained together: gradients of both shares, two heads, GradCache, label texts, resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.conftest import train
from xc_core.classifiers import LabelTable, TableConfig, dropped, gradient_error
from xc_core.encoders import EncoderConfig, build_encoder, embed_rows, encode_rows
from xc_core.losses import AugmentReduce, Bce, DecoupledSoftmax, Loss
from xc_core.sampling import All, Clustered, Importance, Mined, Negatives, Order, Random
from xc_core.seeds import generator, torch_generator
from xc_core.train import encoder as encoder_module
from xc_core.train import heads as heads_module
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import ByBoth, ByRow, ByText, Scorer
from xc_core.train.loop import Plan, fit
from xc_core.train.optim import OptimConfig

Make = Callable[..., EncoderTask]
SOFTMAX = DecoupledSoftmax(temperature=0.2)
BINARY = Bce(temperature=0.2, bias=2.0)
EVERY = All(positives=0, share=True)
ESTIMATE = Importance(
    positives=0, share=True, hard=1, uniform=2, search_in="rows", ahead=1, warmup_epochs=2, refresh_every=1
)


def scorer_of(share: float, loss: Loss, rows: TableConfig, *, cache: bool, dropout: float = 0.0) -> Scorer:
    """Return a scorer by label texts for share 1, by rows for share 0, else by both."""
    if share == 1:
        return ByText(cache=cache)
    if share:
        return ByBoth(share=share, loss=loss, rows=rows, cache=cache, dropout=dropout)
    return ByRow(rows=rows, dropout=dropout)


@pytest.fixture
def joint(small: Any) -> Make:
    """Return a function that builds a task: share x ``text_loss`` on label texts + (1 - share) x ``loss`` on rows."""

    def make(
        share: float = 0.5,
        *,
        heads: int = 1,
        negatives: Negatives | None = None,
        loss: Loss = BINARY,
        text_loss: Loss = SOFTMAX,
        table: TableConfig | None = None,
        data: EncoderData | None = None,
        cache: bool = False,
        dropout: float = 0.0,
        order: Order | None = None,
    ) -> EncoderTask:
        searched = "texts" if share else "rows"
        settings = EncoderSettings(
            encoder=EncoderConfig(name="bag", width=16, precision="fp32", heads=heads),
            order=order or Random(batch_size=8),
            negatives=negatives or Mined(positives=1, share=True, hard=1, search=2, search_in=searched),
            scorer=scorer_of(share, loss, table or TableConfig(lr=0.05), cache=cache, dropout=dropout),
            loss=text_loss if share else loss,
            optim=OptimConfig(lr=0.02),
        )
        encoder = build_encoder(settings.encoder, small.vocabulary, 0)
        return encoder_task(settings, encoder, data or small.data())

    return make


def table_of(task: EncoderTask) -> LabelTable:
    """Return the table that is trained along."""
    assert task.head.rows is not None
    return task.head.rows.table


def vectors(task: EncoderTask) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return vectors of the train documents, and of label texts as they are searched."""
    docs = np.zeros((len(task.data.rows_N), task.encoder.width), np.float32)
    labels = np.zeros((task.data.truth.num_labels, task.encoder.width), np.float32)
    embed_rows(task.encoder, task.data.documents, task.data.rows_N, docs, "x")
    embed_rows(task.encoder, task.data.labels, np.arange(len(labels)), labels, "x")
    return docs, task.encoder.as_label(torch.from_numpy(labels)).numpy()


def gradients(task: EncoderTask, docs: Any) -> dict[str, torch.Tensor]:
    """Return the encoder's gradient in one step, which does not change its weights."""
    kept: dict[str, torch.Tensor] = {}

    def keep(scale: float, usable: torch.Tensor) -> torch.Tensor:
        kept.update({name: p.grad.clone() for name, p in task.encoder.named_parameters() if p.grad is not None})
        task.optimizer.adam.zero_grad(set_to_none=True)
        return torch.zeros(())

    task.start_epoch(0)
    task.optimizer.step = keep  # type: ignore[method-assign]
    task.step(docs, 0, 1.0)
    return kept


DOCS = np.arange(8)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("share", "heads"), [(0.0, 1), (0.3, 1), (0.3, 2), (1.0, 1)])
def test_the_gradient_is_that_of_both_losses_in_one_graph(
    joint: Make, share: float, heads: int, dropout: float
) -> None:
    """The twin computes the whole loss as one expression and differentiates it with autograd."""
    task = joint(share, heads=heads, dropout=dropout)
    found = gradients(task, DOCS)
    twin = joint(share, heads=heads)
    twin.start_epoch(0)
    pool = twin.negatives.pool(DOCS, 0)
    chosen, known = torch.from_numpy(pool.chosen_BU), torch.from_numpy(pool.known_BU)
    docs = encode_rows(twin.encoder, twin.data.documents, twin.data.rows_N[DOCS])
    texts = encode_rows(twin.encoder, twin.data.labels, pool.labels_U)
    (for_text, for_rows), (label, _) = twin.encoder.views(docs), twin.encoder.views(texts)
    whole = torch.zeros(())
    if share:
        total, count = SOFTMAX.build()(for_text @ label.T, chosen, known)
        whole = whole + share * total / count
    if share < 1:
        rows = torch.nn.functional.normalize(table_of(twin).rows_LD[pool.labels_U], dim=1)
        kept = torch.rand(for_rows.shape, generator=torch_generator(0, "dropout", 0)) >= dropout
        total, count = BINARY.build()((for_rows * kept / (1 - dropout)) @ rows.T, chosen, known)
        whole = whole + (1 - share) * total / count
    whole.backward()
    expected = {name: p.grad for name, p in twin.encoder.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6), name


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_mask_of_a_step_depends_on_seed_and_step_alone(
    joint: Make, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def spy(doc_BD: torch.Tensor, dropout: float, random: torch.Generator) -> torch.Tensor:
        seen.append(dropped(torch.ones_like(doc_BD), dropout, random))
        return doc_BD

    monkeypatch.setattr(heads_module, "dropped", spy)
    for seed, step in ((0, 5), (0, 5), (0, 6), (1, 5)):
        task = joint(share, dropout=0.3)
        task.start_epoch(0)
        task.settings = replace(task.settings, seed=seed)
        task.step(DOCS, step, 1.0)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[3])


@pytest.mark.parametrize("heads", [1, 2])
def test_gradcache_computes_the_gradient_of_one_graph(joint: Make, heads: int) -> None:
    plain, cached = (gradients(joint(0.5, heads=heads, cache=cache), DOCS) for cache in (False, True))
    assert plain.keys() == cached.keys()
    for name, value in plain.items():
        assert torch.allclose(cached[name], value, atol=1e-6), name


@pytest.mark.parametrize(
    ("settings", "by"),
    [
        ({"share": 0.5, "heads": 2}, "sum"),
        ({"share": 0.5, "heads": 1, "cache": True}, "sum"),
        ({"share": 0.0, "negatives": EVERY}, "rows"),
        ({"share": 0.0, "negatives": ESTIMATE}, "rows"),
    ],
)
def test_ten_documents_can_be_overfitted(joint: Make, ten: Any, tmp_path: Path, settings: Any, by: str) -> None:
    task = joint(**{"data": ten.data(), **settings})
    history = train(task, tmp_path / "run", epochs=40)
    assert np.mean(history.losses[-10:]) < 0.3 * np.mean(history.losses[:5])
    docs, texts = vectors(task)
    scored = np.asarray(task.vectors.rows()) + (texts if by == "sum" else 0)
    best = np.argsort(-(docs @ scored.T), axis=1)[:, :1]
    assert task.data.truth.contains(np.arange(10)[:, None], best).all()


@pytest.mark.parametrize("loss", [BINARY, SOFTMAX], ids=["binary", "softmax"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_batch_without_labels_is_a_step_with_a_finite_loss(joint: Make, small: Any, share: float, loss: Loss) -> None:
    """Neither loss counts anything then, or only one does."""
    data = replace(small.data(), truth=small.truth.where(small.truth.pairs()[0] >= 8))
    task = joint(share, loss=loss, data=data)
    task.start_epoch(0)
    found, count = task.step(DOCS, 0, 1.0)
    assert found.isfinite() and (loss is BINARY or (found, count) == (0.0, 0.0))


def test_a_training_on_rows_alone_reads_no_label_text(joint: Make, small: Any) -> None:
    class Unreadable:
        """A store that fails if it is read."""

        def __len__(self) -> int:
            return len(small.labels)

        def lengths(self, *_: Any) -> Any:
            raise AssertionError("a label text is read")

        batch = lengths

    task = joint(0.0, negatives=EVERY, table=TableConfig(start="zero", unit=False))
    task.data = EncoderData(small.documents, Unreadable(), small.rows_N, small.truth)
    task.start_epoch(0)
    assert np.isfinite(task.step(DOCS, 0, 1.0)[0])


@pytest.mark.parametrize("heads", [1, 2])
def test_rows_start_at_the_vectors_they_are_scored_with(joint: Make, heads: int) -> None:
    task = joint(0.5, heads=heads)
    task.start_epoch(0)
    full = np.zeros((5, task.encoder.width), np.float32)
    embed_rows(task.encoder, task.data.labels, np.arange(5), full, "x")
    expected = task.encoder.views(torch.from_numpy(full))[1]
    assert torch.allclose(table_of(task).rows_LD, expected, atol=1e-6)


def test_with_two_heads_the_product_with_the_sum_of_both_vectors_is_the_sum_of_both_scores(joint: Make) -> None:
    task = joint(0.5, heads=2)
    task.start_epoch(0)
    docs, texts = vectors(task)
    rows = np.asarray(task.vectors.rows())
    for_text, for_rows = (view.numpy() for view in task.encoder.views(torch.from_numpy(docs)))
    unit = torch.nn.functional.normalize(table_of(task).rows_LD, dim=1).numpy()
    np.testing.assert_allclose(np.linalg.norm(docs, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(docs @ texts.T, for_text @ texts[:, :16].T / np.sqrt(2), atol=1e-5)
    np.testing.assert_allclose(docs @ rows.T, for_rows @ unit.T / np.sqrt(2), atol=1e-5)
    np.testing.assert_allclose(docs @ (texts + rows).T, docs @ texts.T + docs @ rows.T, atol=1e-5)


def test_label_texts_are_documents_of_their_label_and_nothing_is_copied(small: Any) -> None:
    data = EncoderData.with_label_texts(small.documents, small.labels, small.rows_N, small.truth)
    size = len(small.rows_N)
    assert len(data.rows_N) == len(data.truth) == size + 5
    assert [data.truth.row(size + i).tolist() for i in range(5)] == [[i] for i in range(5)]
    assert [data.truth.row(i).tolist() for i in range(size)] == [small.truth.row(i).tolist() for i in range(size)]
    mixed = np.array([size + 4, 0, size + 1, 7])
    found = data.documents.batch(data.rows_N[mixed], 6)
    for at, place in enumerate(mixed.tolist()):
        store, row = (small.labels, place - size) if place >= size else (small.documents, small.rows_N[place])
        alone = store.batch(np.array([row]), 6)
        length = alone.ids_BT.shape[1]
        assert found.ids_BT[at, :length].tolist() == alone.ids_BT[0].tolist()
        assert found.lengths_B[at] == length == data.documents.lengths(data.rows_N[mixed], 6)[at]
        assert (found.ids_BT[at, length:] == small.documents.pad_id).all()


@pytest.mark.parametrize("crash", [1, 4, 9])
@pytest.mark.parametrize(
    "settings",
    [
        {"share": 0.5, "heads": 2},
        {"share": 0.0, "negatives": replace(ESTIMATE, curriculum=2.0)},
        {"share": 0.0, "negatives": EVERY, "loss": AugmentReduce(temperature=0.2)},
        {"share": 1.0, "text_loss": AugmentReduce(temperature=0.2)},
        {"share": 0.5, "text_loss": AugmentReduce(temperature=0.2), "loss": AugmentReduce(temperature=0.4)},
    ],
)
def test_a_crash_does_not_change_the_result(
    joint: Make, tmp_path: Path, crash: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(epochs=3, warmup=0.05, checkpoint_seconds=-1)
    whole = joint(**settings)
    expected = fit(whole, plan, Checkpoints(tmp_path / "whole", "x")).losses
    first = joint(**settings)
    step = first.step
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(first, "step", lambda docs, at, scale, ready: step(docs, at, scale / (at != crash), ready))
        fit(first, plan, Checkpoints(tmp_path / "run", "x"))
    second = joint(**settings)
    assert fit(second, plan, Checkpoints(tmp_path / "run", "x")).losses == expected
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value), name


def test_with_two_heads_theorem_1_is_measured_on_the_one_of_label_texts(
    joint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters, given = Clustered(batch_size=8, size=4, refresh_every=1, warmup_epochs=1), list[Any]()
    task = joint(heads=2, order=clusters)
    train(task, tmp_path, epochs=1)
    for name in ("theorem1", "missed_by_pools"):
        real = getattr(encoder_module, name)
        monkeypatch.setattr(
            encoder_module,
            name,
            lambda both, *rest, real=real, **named: given.append(both) or real(both, *rest, **named),
        )
    task.start_epoch(1)
    by_text, by_row = (head.numpy() for head in task.encoder.views(torch.from_numpy(task.documents.numpy())))
    assert len(given) == 2
    for docs, labels in given:
        np.testing.assert_allclose(docs[:], by_text, rtol=1e-6)
        assert not np.allclose(docs[:], by_row)
        assert np.array_equal(labels, task.texts.numpy())


def test_each_search_logs_the_error_of_the_gradients_of_documents_batch_and_rows(
    joint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the sample and of as many uniform labels; the first search is used in the third epoch."""
    task, measured = joint(0.0, negatives=ESTIMATE, dropout=0.2), []
    task.settings, drawn = replace(task.settings, seed=5), []
    monkeypatch.setattr(encoder_module, "generator", lambda *own: drawn.append(own) or generator(*own))
    monkeypatch.setattr(encoder_module, "gradient_error", lambda *own: measured.append(own) or gradient_error(*own))
    history = train(task, tmp_path)
    assert drawn == [(5, "gradient")]
    for _, _, docs, _, _, labels in measured:  # so few that no sample is drawn
        assert docs.tolist() == list(range(len(task.data.rows_N)))
        assert labels.tolist() == list(range(task.data.truth.num_labels))
    assert [refresh["epoch"] for refresh in history.refreshes] == [2.0]
    figures = history.refreshes[0]
    names = [f"{name}{of}" for name in ("gradient_error", "gradient_error_uniform") for of in ("", "_batch", "_rows")]
    assert [name for name in figures if name.startswith("gradient_error")] == names
    assert all(0 < figures[name] < np.inf for name in names)


def test_no_error_of_gradients_is_measured_before_a_step_has_computed_vectors(joint: Make) -> None:
    """A curriculum has figures before the first epoch too, when the latest vectors of all documents are zeros."""
    task = joint(0.0, negatives=replace(ESTIMATE, curriculum=2.0))
    assert task.start_epoch(0) == {"hard_used": 0.0}
    task.step(DOCS, 0, 1.0)
    assert task.start_epoch(1)["gradient_error"] > 0


def test_a_curriculum_of_no_hard_negatives_has_no_figures(joint: Make, tmp_path: Path) -> None:
    """Nothing is searched then, so the training keeps no vectors of documents to measure errors with."""
    task = joint(0.0, negatives=Importance(positives=0, hard=0, uniform=3, curriculum=2.0))
    assert train(task, tmp_path).refreshes == []
