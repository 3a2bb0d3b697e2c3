"""The label table: a step equals a plain loop and dense autograd, and does not change other rows by a bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.naive.table import Table
from xc_core.classifiers import LabelTable, TableConfig
from xc_core.classifiers.rules import READ_DECAY, RULES

LABELS, WIDTH = 30, 6


def start(seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((LABELS, WIDTH)).astype(np.float32))


def steps(count: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Return (labels, gradient, scale) of some steps; gradients differ widely in size, and some rows are 0."""
    random = np.random.default_rng(seed)
    out = []
    for number in range(count):
        labels = np.sort(random.permutation(20)[: random.integers(1, 9)])
        gradient = random.standard_normal((len(labels), WIDTH)) * random.lognormal(0, 3, (len(labels), 1))
        gradient[random.random(len(labels)) < 0.2] = 0
        out.append((torch.from_numpy(labels), torch.from_numpy(gradient.astype(np.float32)), 1 - number / count))
    return out


def released(table: LabelTable, temperature: float) -> torch.Tensor:
    """Return all rows, as a large table is read: block by block."""
    return torch.cat([table.released(block, temperature) for block in (slice(0, 3), slice(3, LABELS))])


@pytest.mark.parametrize(("lr", "decay", "weight_decay"), [(0.01, 0.99, 0), (0.5, 0.9, 0.01), (0.1, 0.0, 1.0)])
@pytest.mark.parametrize("optimiser", ["rmsprop", "adagrad", "sgd"])
def test_updates_equal_a_loop_over_rows(optimiser: str, lr: float, decay: float, weight_decay: float) -> None:
    fast = LabelTable(start(), TableConfig(lr=lr, decay=decay, weight_decay=weight_decay, optimiser=optimiser))
    slow = Table(start().tolist(), lr, decay, weight_decay, optimiser)
    for labels, gradient, scale in steps(60):
        fast.update(labels, gradient, scale)
        slow.update(labels.tolist(), gradient.tolist(), scale)
    sizes = max(abs(value) for row in slow.rows for value in row) if optimiser == "sgd" else 1.0
    np.testing.assert_allclose(fast.rows_LD.numpy(), slow.rows, atol=1e-4 * lr * 60 * sizes, rtol=1e-5)
    np.testing.assert_allclose(fast.square_L.numpy(), slow.square, rtol=1e-5)
    assert fast.steps_L.tolist() == slow.steps


@pytest.mark.parametrize("optimiser", RULES)
def test_an_optimiser_whose_rows_depend_on_the_decay_says_so(optimiser: str) -> None:
    """Otherwise the decay would not be in the fingerprint of what it changes."""
    tables = [LabelTable(start(), TableConfig(decay=decay, optimiser=optimiser)) for decay in (0.9, 0.5)]
    for table in tables:
        for labels, gradient, scale in steps(5):
            table.update(labels, gradient, scale)
    assert (not torch.equal(tables[0].rows_LD, tables[1].rows_LD)) == (optimiser in READ_DECAY)
    assert ("decay" in TableConfig(optimiser=optimiser).unused()) == (optimiser not in READ_DECAY)


def test_other_rows_and_rows_without_gradient_do_not_change_by_a_bit() -> None:
    table = LabelTable(start(), TableConfig())
    for labels, gradient, scale in steps(20):
        before = {name: tensor.clone() for name, tensor in table.tensors().items()}
        table.update(labels, gradient, scale)
        still = torch.ones(LABELS, dtype=torch.bool)
        still[labels[gradient.abs().sum(1) > 0]] = False
        for name, tensor in table.tensors().items():
            assert torch.equal(tensor[still], before[name][still])
            assert not torch.equal(tensor[~still], before[name][~still]) or bool(still.all())


def test_the_first_step_moves_a_row_by_the_learning_rate_for_any_size_of_gradient() -> None:
    table = LabelTable(torch.zeros(2, 4), TableConfig(lr=0.25))
    table.update(torch.tensor([0, 1]), torch.tensor([[3.0, 0, 0, 4], [3e-6, 0, 0, 4e-6]]), 0.5)
    # The first step divides by the row's own root mean square, so that of the change is lr x scale = 0.125.
    assert table.rows_LD.square().mean(1).sqrt().tolist() == pytest.approx([0.125, 0.125], rel=1e-4)
    assert table.rows_LD[0].tolist() == pytest.approx([-0.15, 0, 0, -0.2], rel=1e-4)


@pytest.mark.parametrize("size", [1e-15, 1e-20, 2e-22, 1e-22, 5e-23, 2e-23, 1e-30])
def test_a_gradient_whose_square_underflows_moves_a_row_at_most_by_the_learning_rate(size: float) -> None:
    table = LabelTable(torch.zeros(1, 4), TableConfig(lr=0.25))
    table.update(torch.tensor([0]), torch.full((1, 4), size), 1.0)
    assert torch.isfinite(table.rows_LD).all()
    assert table.rows_LD.abs().max() <= 0.25 * 1.001


def test_a_sparse_step_equals_dense_autograd_with_the_same_rule() -> None:
    random = np.random.default_rng(2)
    docs = torch.from_numpy(random.standard_normal((5, WIDTH)).astype(np.float32))
    labels = torch.tensor([3, 4, 11, 29])
    sparse, dense = LabelTable(start(), TableConfig(lr=0.1)), LabelTable(start(), TableConfig(lr=0.1))
    for _ in range(10):
        taken = sparse.rows.read(labels).requires_grad_(True)
        torch.nn.functional.softplus(docs @ taken.T).sum().backward()
        assert taken.grad is not None
        sparse.update(labels, taken.grad, 1.0)
        whole = dense.rows_LD.clone().requires_grad_(True)
        torch.nn.functional.softplus(docs @ whole[labels].T).sum().backward()
        assert whole.grad is not None
        dense.update(torch.arange(LABELS), whole.grad, 1.0)
    for name, tensor in sparse.tensors().items():
        torch.testing.assert_close(tensor, dense.tensors()[name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(sparse.rows_LD, start())


def test_rows_that_are_replaced_have_changed() -> None:
    table = LabelTable(torch.ones(4, 2), TableConfig())
    table.put(torch.tensor([1, 3]), torch.zeros(2, 2))
    assert table.changed(since_start=False).tolist() == [False, True, False, True]


def test_the_table_does_not_change_its_initial_rows() -> None:
    given = start()
    LabelTable(given, TableConfig()).update(torch.tensor([0]), torch.ones(1, WIDTH), 1.0)
    assert torch.equal(given, start())


def test_a_table_with_restored_state_trains_alike() -> None:
    parts = steps(12)
    old, new = LabelTable(start(), TableConfig()), LabelTable(start(9), TableConfig())
    for part in parts[:6]:
        old.update(*part)
    new.load(old.tensors())
    for part in parts[6:]:
        old.update(*part)
        new.update(*part)
    for name, tensor in old.tensors().items():
        assert torch.equal(tensor, new.tensors()[name])


def test_loaded_state_is_a_copy() -> None:
    old, new = LabelTable(start(), TableConfig()), LabelTable(start(9), TableConfig())
    new.load(old.tensors())
    new.update(torch.tensor([1]), torch.ones(1, WIDTH), 1.0)
    assert torch.equal(old.rows_LD, start())
    assert int(old.steps_L.sum()) == 0


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("first", [0, 3, 9])
def test_averaged_rows_are_the_mean_of_the_rows_after_each_step(first: int, unit: bool) -> None:
    table, after = LabelTable(start(), TableConfig(lr=0.1, unit=unit)), []
    for number, part in enumerate(steps(10)):
        if number >= first:
            table.average()
        table.update(*part)
        table.finish_step()
        after.append(table.rows_LD.double().clone())
    mean = torch.stack(after[first:]).mean(0)
    expected = mean / mean.norm(dim=1, keepdim=True) if unit else mean / 0.5
    torch.testing.assert_close(released(table, 0.5).double(), expected, rtol=1e-5, atol=1e-6)
    last = released(LabelTable(table.rows_LD, table.config), 0.5)
    assert torch.allclose(released(table, 0.5), last, atol=1e-6) == (first == 9)


def test_before_the_first_averaged_step_the_mean_is_the_rows() -> None:
    table = LabelTable(start(), TableConfig(unit=False))
    table.average()
    assert torch.equal(released(table, 1.0), start())


def test_a_step_in_two_updates_counts_once() -> None:
    whole, cut = LabelTable(start(), TableConfig(lr=0.1)), LabelTable(start(), TableConfig(lr=0.1))
    for table in (whole, cut):
        table.average()
    for labels, gradient, scale in steps(8):
        whole.update(labels, gradient, scale)
        for place in (slice(0, 2), slice(2, None)):
            cut.update(labels[place], gradient[place], scale)
        whole.finish_step()
        cut.finish_step()
    torch.testing.assert_close(released(cut, 1.0), released(whole, 1.0))


def test_averaging_goes_on_from_restored_state() -> None:
    parts = steps(12)
    old, new = LabelTable(start(), TableConfig()), LabelTable(start(9), TableConfig())
    for number, part in enumerate(parts):
        if number == 4:
            old.average()
        if number == 8:
            new.load(old.tensors())
        for table in (old, new) if number >= 8 else (old,):
            table.update(*part)
            table.finish_step()
    assert torch.equal(released(old, 1.0), released(new, 1.0))


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
def test_a_row_takes_the_bytes_of_its_numbers_and_nine_more(precision: str, size: int) -> None:
    """A checkpoint's size, and how many rows it writes together, are computed from it."""
    table = LabelTable(start(), TableConfig(precision=precision))
    assert table.row_bytes == size * WIDTH + 4 + 4
    assert table.row_bytes + table.changed_L.element_size() == size * WIDTH + 9
    table.average()
    assert table.row_bytes == size * WIDTH + 4 + 4 + 4 * (WIDTH + 1), "the sum, and up to which step it goes"
