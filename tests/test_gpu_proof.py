"""Every piece of `make gpu-proof` at toy size on the CPU, and what it says without a card."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from benchmarks import gpu_pieces, gpu_proof
from benchmarks.gpu_pieces import Row, Sizes
from tests.card import CARD, CardTensor
from xc_core.chain import Workspace
from xc_core.classifiers import LabelTable
from xc_core.devices import CPU, Device, num_cards
from xc_core.encoders import EncoderConfig
from xc_core.environment import DEVICE
from xc_core.errors import CorruptError, MissingError
from xc_core.planning.on_gpu import GPU_RATES

TOY = Sizes(
    encoder="bag", documents=96, batch=16, steps=3, rows=(200, 400), width=8, pool=50, searched=300, queries=20,
    product=64, clustered=600,
)  # fmt: skip


def assert_rows(name: str, device: Device) -> None:
    rows = gpu_pieces.PIECES[name](device, TOY)
    assert rows
    assert all(row.what and row.found for row in rows)


@pytest.mark.parametrize("name", gpu_pieces.PIECES)
def test_a_piece_fills_its_rows_on_a_cpu(name: str) -> None:
    assert_rows(name, CPU)


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("name", gpu_pieces.PIECES)
def test_a_piece_fills_its_rows_on_a_card(name: str) -> None:
    assert_rows(name, CARD)


@pytest.mark.usefixtures("fake_card")
def test_clusters_of_a_card_are_beside_those_of_the_cpu_which_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[bool]] = {"balanced_clusters": [], "cohesion": []}
    for name, on_card in calls.items():
        work = getattr(gpu_pieces, name)
        monkeypatch.setattr(
            gpu_pieces,
            name,
            lambda points, *rest, work=work, on_card=on_card: (
                on_card.append(isinstance(points, CardTensor)) or work(points, *rest)
            ),
        )
    gpu_pieces.clusters(CARD, TOY)
    assert calls["balanced_clusters"].count(False) == 1
    assert sorted(calls["cohesion"]) == [False, True]


@pytest.mark.usefixtures("fake_card")
def test_clusters_that_a_card_has_no_room_for_are_not_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "keeps", lambda device, size: False)
    (row,) = gpu_pieces.clusters(CARD, TOY)
    assert row.found.startswith("not measured")


@pytest.mark.usefixtures("fake_card")
def test_losses_on_another_device_are_within_the_tolerance() -> None:
    rows = gpu_pieces.losses(CARD, TOY)
    assert [row.what.split()[2].rstrip(",") for row in rows] == list(gpu_pieces.RECIPES)
    assert all(float(row.found) < gpu_pieces.TOLERANCE for row in rows)


def test_a_label_step_holds_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million rows are 15 GB: two tables do not fit on many cards."""
    given: list[int] = []
    monkeypatch.setattr(
        gpu_pieces,
        "LabelTable",
        lambda rows, *rest: given.append(rows.untyped_storage().nbytes()) or LabelTable(rows, *rest),
    )
    gpu_pieces._label_step.__wrapped__(CPU, TOY, 300)
    assert given == [4]


def test_the_rates_are_those_of_the_table() -> None:
    first, *_ = gpu_pieces.label_steps(CPU, TOY)
    assert first.found == f"{1e3 * gpu_pieces.rates(CPU, TOY)['step_seconds']:.2f} ms"


def test_a_token_costs_six_operations_per_trained_weight_and_two_per_frozen_one() -> None:
    layers = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
    layers[1].weight.requires_grad_(False)
    assert gpu_pieces.operations(layers, torch.ones(2, 6, dtype=torch.long)) == 2 * 20 + 6 * 15


@pytest.fixture
def tiny_bert(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of MiniLM are not on this machine, and its shape is small."""
    import transformers

    def missing(name: str) -> Path:
        raise MissingError(f"no installed package for {name}", expected="it", do="install it")

    def shape(**changes: int) -> transformers.BertConfig:
        assert changes == {
            "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536
        }  # fmt: skip
        return BertConfig(hidden_size=16, num_hidden_layers=6, num_attention_heads=2, intermediate_size=32)

    BertConfig = transformers.BertConfig
    monkeypatch.setattr(gpu_pieces, "locate", missing)
    monkeypatch.setattr("xc_core.encoders.transformer.locate", missing)
    monkeypatch.setattr(transformers, "BertConfig", shape)


@pytest.mark.usefixtures("tiny_bert")
def test_without_weights_speed_and_losses_are_measured_with_random_ones() -> None:
    """A machine with a GPU that reaches no registry cannot get the package of the weights."""
    toy = replace(TOY, encoder="minilm", documents=32, steps=1)
    (row,) = gpu_pieces.bf16_share(CPU, toy)
    assert row.what.startswith("M1 step of ngame, minilm's shape with random weights, 16 documents")
    first, *_ = gpu_pieces.losses(CPU, toy)
    assert first.what.startswith("M1 of ngame, minilm's shape with random weights: loss")
    assert first.found == "0.0e+00", "the same weights on each device"


@pytest.mark.usefixtures("tiny_bert")
def test_layers_that_read_one_vector_per_text_are_no_operations_of_a_token() -> None:
    encoder = gpu_pieces.of_shape(EncoderConfig(name="minilm", frozen_layers=2), 30_000, 0)
    assert any(name.endswith("pooler.dense.weight") for name, _ in encoder.named_parameters())
    ids = torch.ones(2, 6, dtype=torch.long)
    per_layer = 4 * 16 * 16 + 2 * 16 * 32
    assert gpu_pieces.operations(encoder, ids, ids.bool()) == (2 * 2 + 4 * 6) * per_layer


def test_the_rate_is_that_of_a_product_of_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: seen.append(a) or product(a, b))
    assert gpu_pieces.product_rate(CPU, 64) > 0
    assert seen[0].dtype == torch.bfloat16
    assert 0.9 < float(seen[0].float().std()) < 1.1


def test_a_recipe_has_figures_time_and_share_of_mining(trained: Workspace) -> None:
    row = gpu_proof._recipe_row(trained, "toy", "ngame", 61.4)
    assert re.fullmatch(
        r"P@1 [\d.]+, P@5 [\d.]+, PSP@5 [\d.]+; mining [\d.]+% of \d+ s of training; 61 s in all", row.found
    )


def test_a_recipe_that_fails_is_an_error(workspace: Workspace) -> None:
    with pytest.raises(gpu_proof.ChildError, match="of ngame ending with exit code 64"):
        gpu_proof.recipe_rows(workspace, "toy", "2x", "ngame")


@pytest.fixture
def page(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with markers, in a project where pieces take no time and need no card."""
    place = workspace.root / "results.md"
    place.write_text(f"a\n{gpu_proof.BEGIN}\nold\n{gpu_proof.END}\nb\n", "utf-8")
    monkeypatch.chdir(workspace.root)
    monkeypatch.delenv(DEVICE, raising=False)
    for name in gpu_pieces.PIECES:
        monkeypatch.setitem(gpu_pieces.PIECES, name, partial(lambda name, device, sizes: [Row(name, "1 ms")], name))
    monkeypatch.setattr(gpu_proof, "rates", lambda device, sizes: {"device": "toy"})
    monkeypatch.setattr(gpu_proof, "recipe_rows", lambda workspace, dataset, budget, name: [Row(name, "P@1 1.00")])
    return place


def prove(*arguments: str) -> Result:
    os.environ[DEVICE] = "cpu"  # main sets it too
    command = ["--device", "cpu", "--page", "results.md", "--dataset", "toy", *arguments]
    return CliRunner().invoke(gpu_proof.main, command)


def lines(page: Path) -> list[str]:
    """Return the rows of the table in the page."""
    return [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")][2:]


def test_all_pieces_and_recipes_are_in_the_table(page: Path, workspace: Workspace) -> None:
    done = prove()
    assert done.exit_code == 0, done.output
    assert [line.split(" | ")[0][2:] for line in lines(page)] == [*gpu_pieces.PIECES, *gpu_pieces.RECIPES]
    assert set(lines(page)) <= set(done.stdout.splitlines())
    assert json.loads((workspace.state / GPU_RATES).read_text("utf-8")) == {"device": "toy"}


def test_a_piece_or_recipe_that_fails_is_a_row_and_the_rest_goes_on(
    page: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(device: Device, sizes: Sizes) -> list[Row]:
        raise RuntimeError("CUDA out of memory | 80 GB\nmore")

    def child(workspace: Workspace, dataset: str, budget: str, name: str) -> list[Row]:
        assert "| labels | failed: RuntimeError: CUDA out of memory / 80 GB |  |" in lines(page), "written already"
        if name == gpu_pieces.RECIPES[-1]:
            raise gpu_proof.ChildError(f"xc train of {name} ending with exit code 71", expected="", do="")
        return [Row(name, "P@1 1.00")]

    monkeypatch.setitem(gpu_pieces.PIECES, "labels", no_memory)
    monkeypatch.setattr(gpu_proof, "recipe_rows", child)
    done = prove()
    assert done.exit_code == 1
    assert "| search | 1 ms |  |" in lines(page)
    assert lines(page)[-2:] == [
        "| astra | P@1 1.00 |  |",
        "| house | failed: xc train of house ending with exit code 71 |  |",
    ]
    assert "more" in done.stderr, "the whole message is shown"
    assert "failed: labels, house" in done.stderr
    assert not (workspace.state / GPU_RATES).exists(), "rates need all of their pieces"


def test_pieces_can_be_chosen_and_recipes_left_out(page: Path) -> None:
    assert prove("--pieces", "search, bf16", "--no-recipes", "--dataset", "nothing").exit_code == 0
    assert lines(page) == ["| search | 1 ms |  |", "| bf16 | 1 ms |  |"]
    done = prove("--pieces", "serach")
    assert done.exit_code == 64
    assert "serach" in done.stderr


def test_nothing_starts_after_the_time_limit(page: Path) -> None:
    assert prove("--minutes", "0").exit_code == 0
    assert len(lines(page)) == len(gpu_pieces.PIECES) + len(gpu_pieces.RECIPES)
    assert all("not measured: the time limit was reached" in line for line in lines(page))


def test_a_page_without_markers_is_refused_before_anything_is_measured(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.write_text("a", "utf-8")
    monkeypatch.setattr(gpu_proof, "prove", pytest.fail)
    assert prove().exit_code == 74


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
    [page] = [option.default for option in gpu_proof.main.params if option.name == "page"]
    assert gpu_proof.written((Path(__file__).parents[1] / str(page)).read_text("utf-8"), "x")


@pytest.mark.skipif(num_cards() > 0, reason="there is a GPU")
def test_without_a_card_it_ends_with_a_message() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_proof"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert "no GPU that torch can use" in done.stderr
    assert "Traceback" not in done.stderr
