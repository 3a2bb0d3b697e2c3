"""Every piece of `make gpu-proof` at toy size on the CPU, and what it says without a card."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_proof
from benchmarks.gpu_proof import Row, Sizes
from tests.card import CARD
from xc_core.chain import Workspace
from xc_core.devices import CPU, Device, num_cards
from xc_core.errors import CorruptError

TOY = Sizes(
    encoder="bag", documents=96, batch=16, steps=3, rows=(200, 400), width=8, pool=50, searched=300, queries=20,
    product=64,
)  # fmt: skip


@pytest.fixture(params=["cpu", "card"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "card":
        request.getfixturevalue("fake_card")
        return CARD
    return CPU


@pytest.mark.parametrize("piece", gpu_proof.PIECES)
def test_a_piece_fills_its_rows(piece: object, device: Device) -> None:
    rows = piece(device, TOY)  # type: ignore[operator]
    assert rows
    assert all(row.what and row.found for row in rows)


@pytest.mark.usefixtures("fake_card")
def test_losses_on_another_device_are_within_the_tolerance() -> None:
    rows = gpu_proof.losses(CARD, TOY)
    assert [row.what.split()[2].rstrip(":") for row in rows] == list(gpu_proof.RECIPES)
    assert all(float(row.found) < gpu_proof.TOLERANCE for row in rows)


def test_the_rates_are_those_of_the_table() -> None:
    first, *_ = gpu_proof.label_steps(CPU, TOY)
    assert first.found == f"{1e3 * gpu_proof.rates(CPU, TOY)['step_seconds']:.2f} ms"


def test_a_token_costs_six_operations_per_trained_weight_and_two_per_frozen_one() -> None:
    layers = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
    layers[1].weight.requires_grad_(False)
    assert gpu_proof.operations(layers) == 2 * 20 + 6 * 15


def test_a_recipe_has_figures_time_and_share_of_mining(trained: Workspace) -> None:
    row = gpu_proof._recipe_row(trained, "toy", "ngame", 61.4)
    assert re.fullmatch(
        r"P@1 [\d.]+, P@5 [\d.]+, PSP@5 [\d.]+; mining [\d.]+% of \d+ s of training; 61 s in all", row.found
    )


def test_a_recipe_that_fails_ends_the_proof(workspace: Workspace) -> None:
    with pytest.raises(gpu_proof.ChildError, match="of ngame ending with exit code 64"):
        gpu_proof.recipe_rows(workspace, "toy", "2x")


def test_the_table_is_written_between_the_markers() -> None:
    content = gpu_proof.table([Row("what", "found", "wanted")], CPU)
    page = f"a\n{gpu_proof.BEGIN}\nold\n{gpu_proof.END}\nb\n"
    once = gpu_proof.written(page, content)
    assert "| what | found | wanted |" in once
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert gpu_proof.written(once, content) == once
    with pytest.raises(CorruptError, match="markers"):
        gpu_proof.written("a", content)


def test_the_page_has_the_markers() -> None:
    page = (Path(__file__).parents[1] / "docs" / "results.md").read_text("utf-8")
    assert gpu_proof.written(page, "x")


@pytest.mark.skipif(num_cards() > 0, reason="there is a GPU")
def test_without_a_card_it_ends_with_a_message() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_proof"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert "no GPU that torch can use" in done.stderr
    assert "Traceback" not in done.stderr
