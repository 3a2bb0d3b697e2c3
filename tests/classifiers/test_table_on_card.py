"""A label table on a card, ``tests/card.py``: rows and state are those of a table on the processor."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.card import CARD, CardTensor
from xc_core.classifiers import LabelTable, TableConfig
from xc_core.classifiers.pool_rows import PoolRows
from xc_core.classifiers.storage import stochastic
from xc_core.devices import CPU, put
from xc_core.seeds import torch_generator

pytestmark = pytest.mark.usefixtures("fake_card")


def on_processor(table: LabelTable) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in table.tensors().items()}


def test_a_table_moves_with_all_of_its_state() -> None:
    rows_LD, moved = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(1, 4)
    table, stays = (LabelTable(rows_LD, TableConfig(lr=0.1)) for _ in range(2))
    for each in (table, stays):
        each.gather(moved)
        each.update(moved, torch.ones(3, 3), 1.0)
    table.to(CARD.torch)
    table.update(put(moved.numpy(), CARD.torch), put(np.ones((3, 3), np.float32), CARD.torch), 1.0)
    stays.update(moved, torch.ones(3, 3), 1.0)
    assert isinstance(table.gather(put(moved.numpy(), CARD.torch)), CardTensor)
    assert all(torch.equal(value, stays.tensors()[name]) for name, value in on_processor(table).items())
    assert table.changed(since_start=False).cpu().tolist() == [False, True, True, True, False, False]


def test_a_mapped_table_stays_on_the_processor(tmp_path: Path) -> None:
    table = LabelTable(torch.ones(4, 2), TableConfig(storage="mapped"), folder=tmp_path, device=CARD.torch)
    table.to(CARD.torch)
    assert table.rows_LD.is_cpu and table.state.square_L.is_cpu


@pytest.mark.parametrize("optimiser", ["rmsprop", "adagrad", "sgd"])
def test_a_label_without_a_gradient_keeps_row_mean_square_and_steps(optimiser: str) -> None:
    tables = []
    for device in (CARD, CPU):
        rows_LD = torch.arange(20.0).reshape(5, 4)
        table = LabelTable(
            put(rows_LD.numpy(), device.torch), TableConfig(lr=0.1, weight_decay=0.5, optimiser=optimiser)
        )
        for moved in ([1.0, 0.0, 2.0], [0.0, 0.0, 1.0]):
            gradient_UD = np.outer(moved, np.ones(4)).astype(np.float32)
            table.update(put(np.array([0, 2, 3]), device.torch), put(gradient_UD, device.torch), 1.0)
        tables.append(on_processor(table))
    assert tables[0]["steps"].tolist() == [1, 0, 0, 2, 0]
    assert all(torch.equal(value, tables[1][name]) for name, value in tables[0].items())


def test_a_process_without_a_label_of_the_batch_takes_its_step() -> None:
    """Of labels that are spread over processes, a batch may have none of one process."""
    for device in (CARD, CPU):
        table = LabelTable(put(np.ones((3, 4), np.float32), device.torch), TableConfig())
        labels_U, doc_BD, slope_BU = (
            put(array, device.torch)
            for array in (np.empty(0, np.int64), np.ones((2, 4), np.float32), np.empty((2, 0), np.float32))
        )
        gradient_UD = PoolRows.of(table, labels_U).back_to_rows(slope_BU, doc_BD)
        table.update(labels_U, gradient_UD, 1.0)
        assert gradient_UD.shape == (0, 4)
        assert table.rows_LD.cpu().tolist() == np.ones((3, 4)).tolist()


def test_a_card_rounds_without_bias_and_otherwise_in_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.classifiers.storage.torch_generator", lambda *place, device: torch_generator(*place))
    rows_UD = put(np.full((400, 250), 1.001, np.float32), CARD.torch)
    found = stochastic(rows_UD, 0, 1).cpu()
    error = abs(float(found.double().mean()) - float(np.float32(1.001)))
    assert error <= 4 * 2**-7 / math.sqrt(found.numel())
    assert torch.equal(found, stochastic(rows_UD, 0, 1).cpu())
    assert not torch.equal(found, stochastic(rows_UD, 0, 2).cpu())
