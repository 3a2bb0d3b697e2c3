"""The formula for the memory of a step of M1: the measured rows of its lab note, other encoders, too little memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.cli.conftest import Xc
from tests.cli.conftest import fresh as fresh
from tests.cli.conftest import xc as xc
from tests.train.steps import small_bert
from xc_core import memory
from xc_core.chain import Workspace, run_stage
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.planning import planned, step_memory
from xc_core.planning.data_size import DataSize
from xc_core.planning.estimator import Cost
from xc_core.planning.stage_bytes import HELD
from xc_core.planning.stage_costs import Case
from xc_core.planning.step_memory import (
    PADDING,
    PROCESS_BYTES,
    Layers,
    activation_bytes,
    keeps_activations,
    step_bytes,
    trained_layers,
)
from xc_core.recipes import RECIPES, Recipe
from xc_core.train.activations import kept_bytes

FP32: dict[str, Any] = {"encoder": {"encoder": {"precision": "fp32"}}}
HOUSE = RECIPES["house"].changed(FP32)
WORDNET = DataSize(
    train=15_762, validation=1_746, test=7_463, labels=3_853, pairs=3.94, pool=309,
    document_tokens=21.3, label_tokens=17.2, document_read=23.3, label_read=19.2,
)  # fmt: skip
TAGS = DataSize(  # the part of 6,000 documents
    train=5_394, validation=606, test=5_334, labels=545, pairs=5.28, pool=139,
    document_tokens=104.1, label_tokens=11.5, document_read=91.0, label_read=13.5,
)  # fmt: skip
SEEALSO = DataSize(
    train=7_193, validation=824, test=2_893, labels=8_579, pairs=2.95, pool=313,
    document_tokens=106.4, label_tokens=96.5, document_read=90.4, label_read=90.8,
)  # fmt: skip


def case_of(world: DataSize, recipe: Recipe = HOUSE, **others: Any) -> Case:
    return Case(recipe, world, 384, **others)


@pytest.mark.parametrize(
    ("world", "activations", "process"), [(WORDNET, 1.85, 4.4), (TAGS, 4.01, 7.1), (SEEALSO, 8.15, 12.3)]
)
def test_m1_of_house_holds_what_was_measured(world: DataSize, activations: float, process: float) -> None:
    """Three rows of docs/lab-notes/2026-11-30-memory-of-a-step.md; without activations 1.3, 1.4 and 2.8 GB."""
    case = case_of(world)
    assert activation_bytes(case) == pytest.approx(activations * 1e9, rel=0.2)
    assert HELD["encoder"](case) + PROCESS_BYTES == pytest.approx(process * 1e9, rel=0.2)


def test_with_too_little_memory_m1_holds_what_was_measured() -> None:
    """2.8 GB, under a limit of 9.0 GB."""
    case = case_of(SEEALSO, memory=9e9)
    assert not keeps_activations(case)
    assert HELD["encoder"](case) + PROCESS_BYTES == pytest.approx(2.8e9, rel=0.2)
    assert keeps_activations(case_of(SEEALSO, memory=13e9)) and keeps_activations(case_of(WORDNET, memory=9e9))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("frozen", "texts", "length"), [(1, 80, 26), (3, 16, 128), (0, 8, 8)])
def test_a_token_keeps_what_autograd_keeps(precision: str, frozen: int, texts: int, length: int) -> None:
    config = EncoderConfig(name="minilm", frozen_layers=frozen, precision=precision)  # type: ignore[arg-type]
    encoder, layers = build_encoder(config, 30_522, 0), trained_layers(config)
    ids_BT = torch.randint(5, 3000, (texts, length))
    counted = kept_bytes(encoder, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)) / ids_BT.numel()
    assert layers == Layers(6 - frozen, 384, 1536, 12)
    assert layers.bytes_per_token(length, bf16=precision == "bf16") == pytest.approx(counted, rel=0.05)


def test_the_formula_knows_each_size_of_a_layer() -> None:
    encoder = small_bert(EncoderConfig(name="tiny", precision="fp32"), 50)  # type: ignore[arg-type]
    encoder.use_attention("eager")
    ids_BT = torch.randint(0, 50, (40, 30))
    counted = kept_bytes(encoder, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)) / ids_BT.numel()
    assert Layers(2, 16, 32, 2).bytes_per_token(30) == pytest.approx(counted, rel=0.1)


def test_texts_that_are_encoded_twice_and_trainings_without_layers_keep_nothing() -> None:
    whole = activation_bytes(case_of(SEEALSO))
    documents = activation_bytes(case_of(SEEALSO, HOUSE.changed({"encoder": {"scorer": {"cache": True}}})))
    labels = activation_bytes(case_of(SEEALSO, HOUSE.changed({"encoder": {"cache": True}})))
    assert whole == pytest.approx(documents + labels) and documents > 3e9 and labels > 4e9
    for changes in (
        {"encoder": {"name": "bag", "frozen_layers": 0}},
        {"encoder": {"name": "/no/folder"}},
        {"epochs": 0},
    ):
        case = case_of(SEEALSO, HOUSE.changed({"encoder": changes}))
        assert activation_bytes(case) == step_bytes(case, 0.0) == 0, changes
    assert activation_bytes(case_of(SEEALSO, RECIPES["renee"].changed(FP32), processes=2)) > 0, (
        "rows, but documents too"
    )


def test_what_is_beside_activations_is_no_more_than_they_are_and_contains_the_states() -> None:
    case, few = case_of(SEEALSO), case_of(replace(WORDNET, train=8, pool=16))
    kept, beside = 1.3 * activation_bytes(case), 1.7e9 - PROCESS_BYTES
    assert step_bytes(case, 0.0) == pytest.approx(kept + beside)
    assert step_bytes(case, 4e8) == pytest.approx(kept + beside - 4e8)
    assert step_bytes(case, 4e9) == pytest.approx(kept)
    assert step_bytes(few, 0.0) == pytest.approx(2.3 * activation_bytes(few)) and activation_bytes(few) < 1e8


def test_processes_share_a_batch_and_decide_nothing() -> None:
    case = case_of(SEEALSO, memory=1.0)
    shared = replace(case, processes=2)
    assert not keeps_activations(case) and keeps_activations(shared)
    assert activation_bytes(shared) == activation_bytes(case) / 2


def test_sizes_alone_have_as_many_label_texts_as_labels_are_drawn() -> None:
    """House samples two labels of each of 256 documents."""
    for labels, low, high in ((10_000_000, 510, 512), (100, 95, 100)):
        world = replace(SEEALSO, pool=0, labels=labels)
        more = activation_bytes(case_of(world)) - activation_bytes(case_of(replace(world, pool=1)))
        one = activation_bytes(case_of(replace(world, pool=2))) - activation_bytes(case_of(replace(world, pool=1)))
        assert low <= round(more / one) + 1 <= high


def test_a_step_of_few_documents_is_as_small_as_they_are() -> None:
    few = replace(WORDNET, train=64)
    fewer = replace(WORDNET, train=32)
    added = activation_bytes(case_of(few)) - activation_bytes(case_of(fewer))
    assert added == pytest.approx(PADDING * 32 * 23.3 * Layers(5, 384, 1536, 12).bytes_per_token(23.3))


def test_a_corpus_is_measured_as_the_encoder_reads_it(fresh: Workspace) -> None:
    for stage in ("corpus", "tokens"):
        run_stage(fresh, stage, "toy")
    experiment = fresh.params.experiment("toy", "ngame")
    world = planned.world_of(fresh, experiment)
    longest = experiment.recipe.encoder.encoder.max_length
    assert 2 < world.label_read < world.document_read <= min(longest, world.document_tokens + 2)
    assert 5 < world.pool <= 10, "one label of each of 32 documents"
    order = {"batch_size": 4, "size": 4}
    short = experiment.recipe.changed({"encoder": {"encoder": {"max_length": 5}, "order": order}})
    cut = planned.world_of(fresh, replace(experiment, recipe=short))
    assert 2 < cut.label_read <= cut.document_read <= 5 and 1 <= cut.pool <= 4
    still = planned.world_of(fresh, replace(experiment, recipe=short.changed({"encoder": {"epochs": 0}})))
    assert still.pool == 0


def test_a_plan_says_that_texts_will_be_encoded_twice(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "rates_of", lambda *_, **__: None)
    monkeypatch.setattr(planned, "costs_of", lambda *_: [Cost("encoder", 1.0, 1 << 20, 1 << 20)])
    monkeypatch.setattr(memory, "total_bytes", lambda: 4_000_000_000)
    monkeypatch.setattr(step_memory, "activation_bytes", lambda case: 5e9)
    monkeypatch.setattr(planned, "activation_bytes", lambda case: 5e9)
    sizes = ("--documents", "1000", "--labels", "100", "--tokens", "20")
    line = "encoder: a step would take about 8.2 GB, and this machine has 4.0 GB, so texts are encoded twice"
    assert line in xc("plan", *sizes).out
    assert line not in xc("plan", *sizes, "--devices", "2xcpu").out
    monkeypatch.setattr(memory, "total_bytes", lambda: 9_000_000_000)
    assert "twice" not in xc("plan", *sizes).out
