"""An encoder and a table trained together: gradients of both shares, two heads, GradCache, label texts, resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.encoders import EncoderConfig, build_encoder, embed_rows, encode_rows
from xc_core.losses import LossConfig
from xc_core.sampling import NEGATIVES, ORDERS, NegativesConfig, OrderConfig
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.encoder import EncoderData, EncoderTask
from xc_core.train.loop import Plan, fit
from xc_core.train.optim import OptimConfig
from xc_core.train.state import History

Make = Callable[..., EncoderTask]
SOFTMAX = LossConfig(name="decoupled-softmax", temperature=0.2)
BINARY = LossConfig(name="bce", temperature=0.2, bias=2.0)


@pytest.fixture
def joint(small: Any) -> Make:
    """Make a task with a table; ``share`` of the loss is on label texts."""

    def make(
        share: float = 0.5,
        *,
        heads: int = 1,
        kind: str = "mined",
        loss: LossConfig = BINARY,
        table: TableConfig | None = None,
        data: EncoderData | None = None,
        cache: bool = False,
        search_rows: bool = False,
        **negatives: Any,
    ) -> EncoderTask:
        data = data or small.data()
        order = OrderConfig(kind="random", batch_size=8, cluster_size=1)
        config = NegativesConfig(kind=kind, **{"positives": 1, "share": True, "search": 2, **negatives})
        encoder = build_encoder(EncoderConfig(name="bag", width=16, precision="fp32", heads=heads), small.vocabulary, 0)
        rows = torch.zeros(data.truth.num_labels, encoder.width // heads)
        return EncoderTask(
            encoder,
            data,
            ORDERS["random"](order, len(data.rows_N), 0),
            NEGATIVES[kind](config, data.truth, 0),
            SOFTMAX.build(),
            OptimConfig(lr=0.02),
            0,
            0.8,
            table=TableHead(LabelTable(rows, table or TableConfig(lr=0.05)), loss.build()) if share < 1 else None,
            text_share=share,
            cache=cache,
            search_rows=search_rows,
        )

    return make


def train(task: EncoderTask, folder: Path, epochs: float = 3) -> History:
    return fit(task, Plan(epochs=epochs, warmup=0.1, checkpoint_seconds=1e9), Checkpoints(folder, "x"))


def vectors(task: EncoderTask) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Documents of train, and label texts as they are searched."""
    docs = np.zeros((len(task.data.rows_N), task.encoder.width), np.float32)
    labels = np.zeros((task.data.truth.num_labels, task.encoder.width), np.float32)
    embed_rows(task.encoder, task.data.documents, task.data.rows_N, docs, "x")
    embed_rows(task.encoder, task.data.labels, np.arange(len(labels)), labels, "x")
    return docs, task.encoder.as_label(torch.from_numpy(labels)).numpy()


def gradients(task: EncoderTask, docs: Any) -> dict[str, torch.Tensor]:
    """The encoder's gradient of one step, its weights left as they are."""
    kept: dict[str, torch.Tensor] = {}

    def keep(scale: float) -> float:
        kept.update({name: p.grad.clone() for name, p in task.encoder.named_parameters() if p.grad is not None})
        task.optimizer.adam.zero_grad(set_to_none=True)
        return 0.0

    task.start_epoch(0)
    task.optimizer.step = keep  # type: ignore[method-assign]
    task.step(docs, 0, 1.0)
    return kept


DOCS = np.arange(8)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_gradient_is_that_of_both_losses_in_one_graph(joint: Make, share: float, heads: int) -> None:
    """The twin writes the whole loss down at once and lets autograd go through all of it."""
    task = joint(share, heads=heads)
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
        assert twin.table is not None
        rows = torch.nn.functional.normalize(twin.table.table.rows_LD[pool.labels_U], dim=1)
        total, count = BINARY.build()(for_rows @ rows.T, chosen, known)
        whole = whole + (1 - share) * total / count
    whole.backward()
    expected = {name: p.grad for name, p in twin.encoder.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6), name


@pytest.mark.parametrize("heads", [1, 2])
def test_gradcache_gives_the_gradient_of_one_graph(joint: Make, heads: int) -> None:
    plain, cached = (gradients(joint(0.5, heads=heads, cache=cache), DOCS) for cache in (False, True))
    assert plain.keys() == cached.keys()
    for name, value in plain.items():
        assert torch.allclose(cached[name], value, atol=1e-6), name


@pytest.mark.parametrize(
    ("settings", "by"),
    [
        ({"share": 0.5, "heads": 2}, "sum"),
        ({"share": 0.5, "heads": 1, "cache": True}, "sum"),
        ({"share": 0.0, "kind": "all", "positives": 0}, "rows"),
        ({"share": 0.0, "kind": "importance", "positives": 0, "hard": 1, "uniform": 2, "search_in": "rows",
          "search_rows": True, "ahead": 1, "warmup_epochs": 2}, "rows"),
    ],
)  # fmt: skip
def test_ten_documents_are_learnt_by_heart(joint: Make, ten: Any, tmp_path: Path, settings: Any, by: str) -> None:
    task = joint(**{"data": ten.data(), **settings})
    history = train(task, tmp_path / "run", epochs=40)
    assert np.mean(history.losses[-10:]) < 0.3 * np.mean(history.losses[:5])
    docs, texts = vectors(task)
    scored = task.rows_LD + (texts if by == "sum" else 0)
    best = np.argsort(-(docs @ scored.T), axis=1)[:, :1]
    assert task.data.truth.contains(np.arange(10)[:, None], best).all()


def test_without_a_share_of_texts_no_label_text_is_read_after_the_start(joint: Make, small: Any) -> None:
    class Deaf:
        """A store that must not be asked."""

        def __len__(self) -> int:
            return len(small.labels)

        def lengths(self, *_: Any) -> Any:
            raise AssertionError("a label text is read")

        batch = lengths

    task = joint(0.0, kind="all", positives=0, table=TableConfig(start="zero", unit=False))
    task.data = EncoderData(small.documents, Deaf(), small.rows_N, small.truth)
    task.start_epoch(0)
    assert np.isfinite(task.step(DOCS, 0, 1.0)[0])


@pytest.mark.parametrize("heads", [1, 2])
def test_rows_start_at_the_vectors_that_face_them(joint: Make, heads: int) -> None:
    task = joint(0.5, heads=heads)
    task.start_epoch(0)
    full = np.zeros((5, task.encoder.width), np.float32)
    embed_rows(task.encoder, task.data.labels, np.arange(5), full, "x")
    expected = task.encoder.views(torch.from_numpy(full))[1]
    assert task.table is not None
    assert torch.allclose(task.table.table.rows_LD, expected, atol=1e-6)


def test_with_two_heads_a_product_is_one_score_and_the_product_with_the_sum_is_both(joint: Make) -> None:
    task = joint(0.5, heads=2)
    task.start_epoch(0)
    docs, texts = vectors(task)
    rows = task.rows_LD
    for_text, for_rows = (view.numpy() for view in task.encoder.views(torch.from_numpy(docs)))
    assert task.table is not None
    unit = torch.nn.functional.normalize(task.table.table.rows_LD, dim=1).numpy()
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
        {"share": 0.0, "kind": "importance", "positives": 0, "hard": 1, "uniform": 2, "search_in": "rows",
         "search_rows": True, "ahead": 1, "warmup_epochs": 2, "curriculum": 2.0},
        {"share": 0.0, "kind": "all", "positives": 0, "loss": LossConfig(name="augment-reduce", temperature=0.2)},
    ],
)  # fmt: skip
def test_a_crash_changes_nothing_of_the_result(
    joint: Make, tmp_path: Path, crash: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(epochs=3, warmup=0.05, checkpoint_seconds=-1)
    whole = joint(**settings)
    expected = fit(whole, plan, Checkpoints(tmp_path / "whole", "x")).losses
    first = joint(**settings)
    step = first.step
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(first, "step", lambda docs, at, scale: step(docs, at, scale / (at != crash)))
        fit(first, plan, Checkpoints(tmp_path / "run", "x"))
    second = joint(**settings)
    assert fit(second, plan, Checkpoints(tmp_path / "run", "x")).losses == expected
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value), name
