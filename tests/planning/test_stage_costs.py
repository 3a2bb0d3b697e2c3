"""The formulas of a plan: pilots whose costs follow a known law are continued by that law."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xc_core.ann import INDEXES, ExactIndex, Ivf
from xc_core.ann.base import save_index
from xc_core.ann.ivf import POINTS
from xc_core.chain import Workspace, run_stage
from xc_core.chain.experiment import Experiment
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.data.corpus import Corpus
from xc_core.data.folds import folds
from xc_core.fusion import linear
from xc_core.planning import stage_bytes, stage_costs
from xc_core.planning.data_size import DataSize
from xc_core.planning.estimator import CostLine, Estimator
from xc_core.planning.pilots import Pilot, PilotSource, Rates, Timed, short_epochs, slope_and_rest
from xc_core.planning.planned import world_of
from xc_core.planning.stage_bytes import HELD, WRITTEN, held_bytes
from xc_core.planning.stage_costs import WORK, Case, SearchWork, searches, trained_documents
from xc_core.recipes import RECIPES, Recipe
from xc_core.scores import Query
from xc_core.scores.vectors import VectorScore
from xc_core.seeds import generator
from xc_core.shapes import F32, Shortlist

WIDTH = 32
LARGE = DataSize(
    train=700_000, validation=50_000, test=90_000, labels=600_000, document_tokens=20, label_tokens=6, pairs=2
)


def small(size: int) -> DataSize:
    return DataSize(
        train=size, validation=size // 10, test=size // 5, labels=size, document_tokens=20, label_tokens=6, pairs=2
    )


@pytest.fixture
def without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what M1 holds beside its steps (``test_step_memory``)."""
    monkeypatch.setattr(stage_bytes, "step_bytes", lambda case, states: 0.0)


def test_each_stage_of_a_training_has_formulas() -> None:
    """Without one, ``xc plan`` would end with a KeyError."""
    assert set(WORK) == set(HELD) == set(WRITTEN) == set(TRAIN_STAGES)


def rates_of(recipe: Recipe, *, imports: float = 0.0) -> Rates:
    """Return rates of pilots that cost, in each stage, 2 s, 1 us per unit of work, and what searches cost."""
    bare = Rates((), Timed(small(4000), {}), WIDTH, 1e-11, 1e-5, 1e-6, 1e-5)
    pilots = []
    for size in (200, 1000, 4000):
        case = Case(recipe, small(size), WIDTH)
        stages = {}
        for name in TRAIN_STAGES:
            seconds = 2.0 + 1e-6 * WORK[name](case) + sum(one.seconds(bare) for one in searches(case).get(name, []))
            if name in ("encoder", "classifier"):
                seconds = 2.0 + 1e-6 * WORK[name](case) + short_epochs(recipe, case.world)[name] * size * 1e-3
            seconds += imports if size == 200 else 0.0
            stages[name] = {
                "cpu_seconds": seconds,
                "peak_memory_mb": (500e6 + HELD[name](case)) / (1 << 20),
                "disk_bytes": 1000 + WRITTEN[name](case),
                "refresh_seconds": 0.0,
            }
        trainings = {name: getattr(recipe, name).epochs * size * 1e-3 for name in ("encoder", "classifier")}
        pilots.append(Pilot(case.world, trainings, stages))
    return replace(bare, pilots=tuple(pilots), timed=pilots[-1])


@pytest.mark.parametrize("name", ["ngame", "house", "renee", "ance"])
def test_a_law_that_pilots_follow_is_continued(name: str) -> None:
    recipe = RECIPES[name]
    rates = rates_of(recipe)
    case, found = Case(recipe, LARGE, WIDTH), Estimator(recipe, rates).costs(LARGE)
    assert [cost.stage for cost in found] == list(TRAIN_STAGES)
    for cost in found:
        searched = sum(one.seconds(rates) for one in searches(case).get(cost.stage, []))
        if cost.stage not in ("encoder", "classifier"):
            assert cost.seconds == pytest.approx(2 + 1e-6 * WORK[cost.stage](case) + searched, rel=1e-6)
        assert cost.memory == pytest.approx(500e6 + HELD[cost.stage](case), rel=1e-6)
        assert cost.disk == pytest.approx(1000 + WRITTEN[cost.stage](case), rel=1e-6)


def test_the_encoder_in_a_model_does_not_grow_with_the_labels() -> None:
    recipe = RECIPES["ngame"]
    rates = rates_of(recipe)
    for pilot in rates.pilots:
        for stage in ("encoder", "model"):
            pilot.stages[stage]["disk_bytes"] += 100 * pilot.world.train  # the vocabulary of small pilots grows
    found = {cost.stage: cost.disk for cost in Estimator(recipe, rates).costs(LARGE)}
    assert found["model"] == pytest.approx(1000 + WRITTEN["model"](Case(recipe, LARGE, WIDTH)) + 400_000, rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "train", "counted"), [(256, 700_000, 1), (1_000, 700_000, 1), (9_999, 700_000, 2), (256, 90, 0)]
)
def test_a_pilot_with_fewer_documents_than_a_batch_does_not_say_what_m1_holds(
    batch: int, train: int, counted: int
) -> None:
    """Pilots have 200, 1,000 and 4,000 train documents; a batch of the smallest one held a third too little."""
    recipe = RECIPES["house"].changed({"encoder": {"order": {"batch_size": batch}}})
    rates, world = rates_of(recipe), replace(LARGE, train=train)
    for number, pilot in enumerate(rates.pilots):
        for stage in ("encoder", "classifier"):
            pilot.stages[stage]["peak_memory_mb"] += number * 100
    found = {cost.stage: cost.memory for cost in Estimator(recipe, rates).costs(world)}
    case = Case(recipe, world, WIDTH)
    held = 500e6 + counted * (100 << 20) + HELD["encoder"](case)
    assert found["encoder"] == pytest.approx(held, rel=1e-6)
    assert found["classifier"] == pytest.approx(500e6 + HELD["classifier"](case), rel=1e-6)


def test_a_step_that_does_not_fit_into_memory_is_not_what_m1_holds() -> None:
    """Pilots with short texts keep the activations that are not kept of longer ones."""
    recipe = RECIPES["house"].changed({"encoder": {"encoder": {"precision": "fp32"}}})
    rates, longer = rates_of(recipe), replace(LARGE, document_tokens=200)
    found = {}
    for memory in (math.inf, 6e9):
        costs = {cost.stage: cost.memory for cost in Estimator(recipe, rates, memory).costs(longer)}
        found[memory] = costs["encoder"]
        assert found[memory] == pytest.approx(
            500e6 + HELD["encoder"](Case(recipe, longer, WIDTH, memory=memory)), rel=1e-6
        )
    assert found[6e9] < found[math.inf] - 5e9


def test_steps_of_m1_grow_with_documents_and_epochs() -> None:
    recipe = RECIPES["dpr"].changed({"encoder": {"order": {"batch_size": 100}}})
    found = {cost.stage: cost.seconds for cost in Estimator(recipe, rates_of(recipe)).costs(LARGE)}
    assert found["encoder"] == pytest.approx(recipe.encoder.epochs * LARGE.train * 1e-3, rel=0.01)


def test_a_part_of_an_epoch_is_clustered_for_too() -> None:
    recipes = [RECIPES["ngame"].changed({"encoder": {"epochs": epochs}}) for epochs in (0.5, 1.0, 2.5)]
    assert [Case(recipe, LARGE, WIDTH).refreshes for recipe in recipes] == [1, 1, 3]


def test_three_frozen_layers_that_are_computed_once_are_half_an_encoding() -> None:
    frozen = RECIPES["dpr"].changed({"encoder": {"encoder": {"frozen_layers": 3}}})
    free, one, nine = (frozen.changed({"encoder": {"encoder": {"frozen_layers": layers}}}) for layers in (0, 1, 9))
    bag = frozen.changed({"encoder": {"encoder": {"name": "bag"}}})  # it has no layers
    once, never, sixth, whole, short, without = (
        next(cost.seconds for cost in Estimator(recipe, rates_of(recipe)).costs(LARGE) if cost.stage == "encoder")
        for recipe in (frozen, free, one, nine, frozen.changed({"encoder": {"epochs": 1.5}}), bag)
    )
    assert without == never
    assert once - never == pytest.approx(0.5e-6 * WORK["encoder"](Case(frozen, LARGE, WIDTH)), rel=1e-3)
    assert sixth - never == pytest.approx((once - never) / 3, rel=1e-3)
    assert whole - never == pytest.approx(2 * (once - never), rel=1e-3), "they cost at most a whole encoding"
    assert short / 1.5 == pytest.approx(never / frozen.encoder.epochs, rel=1e-2)


def test_processes_share_steps_encodings_searches_and_rows() -> None:
    recipe = RECIPES["ance"].changed({"negatives": {"k": 10}})
    rates = rates_of(recipe)
    one, four = ({cost.stage: cost for cost in Estimator(recipe, rates).costs(LARGE, n)} for n in (1, 4))
    whole, shared = (Case(recipe, LARGE, WIDTH, n) for n in (1, 4))
    differ = {name for name in one if one[name].seconds != four[name].seconds}
    assert differ == {"encoder", "embeddings", "negatives", "classifier"}
    saved = {name: one[name].seconds - four[name].seconds for name in differ}
    steps = Estimator(recipe, rates)._step_seconds("classifier", whole)
    assert saved["classifier"] == pytest.approx(0.75 * steps)
    assert saved["embeddings"] == pytest.approx(0.75e-6 * WORK["embeddings"](whole), rel=1e-6)
    assert saved["negatives"] == pytest.approx(
        sum(one.seconds(rates) for one in searches(whole)["negatives"])
        - sum(one.seconds(rates) for one in searches(shared)["negatives"])
    )
    (search,) = searches(shared)["negatives"]
    assert (search.among, search.graphs) == (math.ceil(LARGE.labels / 4), 0), "a graph is built above 400,000 labels"
    assert one["classifier"].memory - four["classifier"].memory == pytest.approx(0.75 * 1.75 * whole.table_bytes)
    assert one["negatives"].memory - four["negatives"].memory == pytest.approx(0.75 * whole.table_bytes, rel=1e-3)
    less = {name for name in one if one[name].memory != four[name].memory}
    assert less == {"encoder", "classifier", "negatives"}, "M1 in several processes keeps no states of frozen layers"


def test_a_table_that_m1_trains_along_is_computed_whole_by_every_process() -> None:
    """The plan divided all of a step, so the times of `renee` on many labels were too low."""
    recipe = RECIPES["renee"]
    estimator = Estimator(recipe, rates_of(recipe))
    whole, shared = Case(recipe, LARGE, WIDTH), Case(recipe, LARGE, WIDTH, 4)
    steps = estimator._step_seconds("encoder", whole)
    documents = int(recipe.encoder.epochs * trained_documents("encoder", whole))
    encoded = 2 * 1e-6 * whole.read(documents)  # two passes, because half of the layers are frozen
    assert encoded < steps
    assert estimator._step_seconds_per_process("encoder", whole) == pytest.approx(steps)
    assert estimator._step_seconds_per_process("encoder", shared) == pytest.approx(steps - 0.75 * encoded, rel=1e-4)
    other = RECIPES["ngame"]
    estimator, shared = Estimator(other, rates_of(other)), Case(other, LARGE, WIDTH, 4)
    assert estimator._step_seconds_per_process("encoder", shared) == estimator._step_seconds("encoder", shared) / 4


def test_steps_of_several_processes_compute_the_frozen_layers_again() -> None:
    """One process on a CPU computes them once, before its first step; its timed steps are without them."""
    refit = {"encoder": {"frozen_layers": 3}, "refit": True}
    frozen = RECIPES["dpr"].changed({"encoder": refit, "fusion": {"rule": "sum"}})
    free = frozen.changed({"encoder": {"encoder": {"frozen_layers": 0}}})
    with_them, without = (
        next(cost.seconds for cost in Estimator(recipe, rates_of(recipe)).costs(LARGE, 4) if cost.stage == "encoder")
        for recipe in (frozen, free)
    )
    read = Case(frozen, LARGE, WIDTH).read(round(frozen.encoder.epochs * LARGE.published))
    assert with_them - without == pytest.approx(0.5e-6 * read / 4, rel=1e-3)


def test_imports_are_paid_once_and_are_no_part_of_the_rate() -> None:
    recipe = RECIPES["ngame"]
    plain, heavy = (
        {cost.stage: cost.seconds for cost in Estimator(recipe, rates_of(recipe, imports=own)).costs(LARGE)}
        for own in (0.0, 3.0)
    )
    assert heavy["corpus"] - plain["corpus"] == pytest.approx(3.0)


def test_a_line_goes_through_both_points_and_is_never_negative() -> None:
    assert CostLine.through([(10.0, 3.0), (30.0, 7.0)]).at(100.0) == pytest.approx(21.0)
    assert CostLine.through([(10.0, 5.0), (30.0, 4.0)]).at(1e9) == 4.0  # a cost does not fall with work
    assert CostLine.through([(0.0, 5.0)]).at(10.0) == 5.0


def test_exact_search_is_timed_at_two_sizes() -> None:
    assert slope_and_rest([(10.0, 3.0), (30.0, 7.0)]) == pytest.approx((0.2, 1.0))
    assert slope_and_rest([(10.0, 1.0), (30.0, 7.0)]) == pytest.approx((0.3, 0.0))  # nothing is below 0
    assert slope_and_rest([(10.0, 7.0), (30.0, 3.0)]) == pytest.approx((0.0, 3.0))


def test_exact_search_compares_all_pairs_and_a_graph_few_of_them() -> None:
    rates = rates_of(RECIPES["ngame"])
    assert SearchWork(10, 1000).seconds(rates) == pytest.approx(10 * (1000 * WIDTH * 1e-11 + 1e-5))
    labels = 1 << 20
    assert SearchWork(10, labels).seconds(rates) == pytest.approx(10 * 20 * 1e-5)
    assert SearchWork(10, labels, exact=True).seconds(rates) == pytest.approx(10 * (labels * WIDTH * 1e-11 + 1e-5))
    assert SearchWork(0, labels, graphs=2).seconds(rates) == pytest.approx(2 * labels * 20 * 1e-6)


def test_a_served_graph_is_built_above_its_bound_and_an_evaluation_compares_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_costs, "EXACT_UP_TO", 1000)
    monkeypatch.setattr(stage_costs, "BATCHES_EXACT_UP_TO", 2000)
    sizes = (Case(RECIPES["ngame"], replace(LARGE, labels=labels), WIDTH) for labels in (1000, 1001, 2000, 3000))
    at, above, most, large = ((case, searches(case)) for case in sizes)
    assert [own["scores"][0].graphs for _, own in (at, above, most)] == [0, large[0].searched, large[0].searched]
    case, found = large
    seconds = case.searched * LARGE.test * (3000 * WIDTH * 1e-11 + 1e-5)
    assert found["evaluation"][0].seconds(rates_of(case.recipe)) == pytest.approx(seconds)


def test_searches_that_measure_or_vote_compare_all_vectors_however_many_there_are() -> None:
    """The recall of an index, the fit of cells, the votes of neighbours, an evaluation, and the stage audit."""
    found = searches(Case(RECIPES["house"], LARGE, WIDTH))
    assert {stage: [search.exact for search in own] for stage, own in found.items()} == {
        "encoder": [False],
        "negatives": [],
        "scores": [True, True],
        "fusion": [False, True],
        "evaluation": [True, True],
        "audit": [True],
    }


@pytest.mark.parametrize(("validation", "asked"), [(50, 50), (50_000, 300), (0, 300)])
def test_an_index_is_asked_for_as_many_documents_as_a_plan_counts(
    validation: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(RECIPES["ngame"], replace(LARGE, labels=40, validation=validation), 8)
    random, searched, search = generator(0, "asked"), [], ExactIndex.search
    score = VectorScore.build(random.standard_normal((40, 8), np.float32), INDEXES["auto"]())
    query = Query(random.standard_normal((min(validation or LARGE.train, 1000), 8), np.float32), list)

    def counted(index: ExactIndex, queries_BD: F32, k: int) -> Shortlist:
        searched.append(len(queries_BD))
        return search(index, queries_BD, k)

    monkeypatch.setattr(ExactIndex, "search", counted)
    assert score.figures(query) == {"recall": 1.0}
    assert sum(searched) == 2 * asked
    assert searches(case)["scores"][0].queries == case.searched * 2 * asked
    large = replace(case, world=replace(case.world, labels=30_000))
    assert searches(large)["scores"][0].queries == case.searched * asked, "a graph compares with few labels"


def test_cells_of_neighbours_are_fitted_in_as_many_rounds_as_faiss_makes_and_filled_once() -> None:
    """The plan counted 25 rounds, the default of faiss's k-means alone, and no filling."""
    case = Case(RECIPES["house"], LARGE, WIDTH)
    built: Any = Ivf().build(np.random.default_rng(0).standard_normal((100, 8), np.float32))
    rounds, cells, made = built.index.cp.niter, Ivf().cells(LARGE.published), LARGE.folds(case.recipe)
    _, fits = searches(case)["scores"]
    assert (fits.queries, fits.among) == (len(made) * rounds * POINTS * cells + sum(made), cells)


def test_two_scores_with_cells_cost_what_both_fits_cost() -> None:
    """k-means costs the square of its cells: the sum of the cells counted twice as much."""
    one = Case(RECIPES["house"], LARGE, WIDTH)
    kinds = one.recipe.scores
    two = replace(one, recipe=replace(one.recipe, scores={**kinds, "others": replace(kinds["neighbours"], probes=64)}))
    assert two.footprint.cells == one.footprint.cells * 2
    once, twice = (searches(case)["scores"][1:] for case in (one, two))
    assert twice == once * 2


def test_the_searches_of_m1_are_counted_once() -> None:
    """A refresh of a pilot searches too."""
    recipe = RECIPES["ance"]
    rates = rates_of(recipe)
    once = {cost.stage: cost.seconds for cost in Estimator(recipe, rates).costs(LARGE)}
    pilots = []
    for pilot in rates.pilots:
        case = Case(recipe, pilot.world, WIDTH)
        refresh = sum(one.seconds(rates) for one in searches(case)["encoder"]) / case.refreshes
        encoder = pilot.stages["encoder"]
        encoder = {**encoder, "refresh_seconds": refresh, "cpu_seconds": encoder["cpu_seconds"] + refresh}
        pilots.append(replace(pilot, stages={**pilot.stages, "encoder": encoder}))
        assert refresh > 0
    searched = Estimator(recipe, replace(rates, pilots=tuple(pilots)))
    assert {cost.stage: cost.seconds for cost in searched.costs(LARGE)} == pytest.approx(once)


def test_a_query_costs_nothing_by_itself_if_nothing_is_searched_or_only_the_nearest_is_kept() -> None:
    rates = replace(rates_of(RECIPES["ngame"]), query=1.0)
    assert SearchWork(10, 0, exact=True).seconds(rates) == 0
    assert SearchWork(10, 1000, exact=True, nearest=True).seconds(rates) == pytest.approx(10 * 1000 * WIDTH * 1e-11)
    many = searches(Case(RECIPES["house"], replace(LARGE, labels=1), WIDTH))
    assert [one.nearest for one in many["scores"]] == [False, True]
    assert sum(one.seconds(rates) for one in searches(Case(RECIPES["ngame"], LARGE, WIDTH))["evaluation"]) == (
        searches(Case(RECIPES["ngame"], LARGE, WIDTH))["evaluation"][0].seconds(rates)
    )


def test_label_trees_are_in_memory_while_they_are_fitted_and_asked() -> None:
    house = RECIPES["house"]
    without = house.changed({"scores": {"lexical": None}})
    without = without.changed({"scores": {"characters": None}})
    held = Case(house, LARGE, WIDTH).footprint
    assert held.held > 3 * 50 * LARGE.published * LARGE.pairs
    for name in TRAIN_STAGES:
        more = HELD[name](Case(house, LARGE, WIDTH)) - HELD[name](Case(without, LARGE, WIDTH))
        assert more >= (held.held if name in ("scores", "fusion", "evaluation") else 0)
    fits = HELD["scores"](Case(house, LARGE, WIDTH)) - HELD["scores"](Case(without, LARGE, WIDTH))
    assert fits == pytest.approx(held.kept + held.fit)


@pytest.mark.usefixtures("without_steps")
def test_states_after_frozen_layers_are_counted_up_to_what_may_be_resident() -> None:
    recipe = RECIPES["ngame"]
    small = replace(LARGE, train=1000, validation=0, labels=100)
    tokens = 1000 * min(LARGE.document_tokens + 2, 64) + 100 * min(LARGE.label_tokens + 2, 64)
    without = recipe.changed({"encoder": {"encoder": {"frozen_layers": 0}}})
    short = recipe.changed({"encoder": {"epochs": 1.5, "order": {"warmup_epochs": 1}}})
    held = [HELD["encoder"](Case(one, small, 384)) for one in (recipe, without, short)]
    assert held[0] - held[1] == pytest.approx(tokens * 384 * 4)
    assert held[1] == held[2], "texts that are encoded once or twice have none"
    first = recipe.changed({"encoder": {"epochs": 1.5, "order": {"warmup_epochs": 0}}})
    assert HELD["encoder"](Case(first, small, 384)) == held[0], "all are encoded before the first step too"


def test_a_label_tree_on_parts_of_words_takes_more() -> None:
    """A text has more of them than words."""
    ngame = RECIPES["ngame"]
    words, parts = (ngame.changed({"scores": {name: {"kind": name}}}) for name in ("lexical", "characters"))
    for name in ("scores", "fusion", "evaluation"):
        few, more = (HELD[name](Case(recipe, LARGE, WIDTH)) for recipe in (words, parts))
        assert HELD[name](Case(ngame, LARGE, WIDTH)) < few < more


def test_the_fit_of_a_linear_model_counts_for_the_fusion_alone() -> None:
    house = RECIPES["house"]
    without = house.changed({"fusion": {"rule": {"linear": False}}})
    values = Case(house, LARGE, WIDTH).fused * 100 * Case(house, LARGE, WIDTH).searched * len(house.scores) * 4
    for name in TRAIN_STAGES:
        more = HELD[name](Case(house, LARGE, WIDTH)) - HELD[name](Case(without, LARGE, WIDTH))
        assert more == pytest.approx(linear.HELD * values if name == "fusion" else 0)


@pytest.mark.usefixtures("without_steps")
def test_the_label_table_decides_the_memory_of_many_labels() -> None:
    recipe = RECIPES["ngame"]
    many = Case(recipe, replace(LARGE, labels=100_000_000), 64)
    rows = 100_000_000 * 64 * 4
    assert HELD["classifier"](many) == pytest.approx(1.75 * rows, rel=0.01)
    half = recipe.changed({"classifier": {"table": {"precision": "bf16"}}})
    assert HELD["classifier"](replace(many, recipe=half)) == pytest.approx(0.875 * rows, rel=0.01)
    astra = RECIPES["astra"]  # rows, the latest vectors of label texts, a graph of rows, 160 hard negatives twice
    expected = 3 * rows + 2 * 160 * 4 * 100_000_000
    assert HELD["encoder"](replace(many, recipe=astra)) == pytest.approx(expected, rel=0.02)
    fewer = replace(LARGE, train=1000, validation=0, labels=400_000)
    table = 400_000 * 384 * 4
    for name, width, tables in (("astra", 384, 2), ("unidec", 768, 2), ("renee", 384, 1)):
        recipe = RECIPES[name]
        found = HELD["encoder"](Case(recipe, fewer, width))
        ids = 2 * (401_000 if recipe.encoder.augment else 1000) * recipe.encoder.negatives.kept * 4
        copied = (1 << 28) if tables == 2 else 0
        assert found == pytest.approx(tables * table + ids + copied + (1 << 31), rel=0.02), name
        trained = recipe.changed({"encoder": {"encoder": {"frozen_layers": 0}}})  # no states after frozen layers
        assert found - HELD["encoder"](Case(trained, fewer, width)) == 1 << 31, name
    assert held_bytes(many)[1] == max(held(many) for held in HELD.values())


@pytest.mark.parametrize("kind", ["both", "hnsw"])
def test_a_graph_has_the_bytes_that_a_plan_counts(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, served = 2000, kind == "both"
    vectors_LD = np.random.default_rng(0).standard_normal((labels, WIDTH), np.float32)
    np.save(tmp_path / "vectors.npy", vectors_LD)
    save_index(INDEXES[kind]().build(vectors_LD), tmp_path)
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    case = Case(RECIPES["ngame"], replace(LARGE, labels=labels), WIDTH)
    for bound in ("EXACT_UP_TO", "BATCHES_EXACT_UP_TO"):
        monkeypatch.setattr(stage_bytes, bound, labels)
    one = case.searched * labels * WIDTH * 4
    assert WRITTEN["model"](case) == one + 6 * LARGE.label_tokens * labels  # exact search needs the vectors alone
    monkeypatch.setattr(stage_bytes, "EXACT_UP_TO" if served else "BATCHES_EXACT_UP_TO", labels - 1)
    held = HELD["evaluation" if served else "fusion"]
    without = held(replace(case, world=replace(case.world, labels=1)))
    assert (held(case) - without) / case.searched == pytest.approx(written, rel=0.1)


def test_of_a_mapped_label_table_about_two_gigabytes_are_held() -> None:
    size = replace(LARGE, labels=100_000_000)
    for stage, base, mapped in (
        ("classifier", "ngame", {"classifier": {"table": {"storage": "mapped"}}}),
        ("encoder", "renee", {"encoder": {"scorer": {"rows": {"storage": "mapped"}}}}),
    ):
        assert RECIPES[base].encoder.joint == (stage == "encoder")
        plain, own = (HELD[stage](Case(RECIPES[base].changed(changes), size, 64)) for changes in ({}, mapped))
        copies = 1 if stage == "encoder" else 1.75
        assert plain - own == copies * 100_000_000 * 64 * 4 - (1 << 31)


FOLDS: list[dict[str, Any]] = [
    {"classifier": {"refit": True}},
    {"classifier": {"refit": True, "enough": 3}},
    {"classifier": {"refit": False}},
]


@pytest.mark.parametrize("changes", FOLDS)
def test_the_folds_of_a_plan_are_those_of_the_training(workspace: Workspace, changes: dict[str, Any]) -> None:
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    experiment = workspace.params.experiment("toy", "ngame")
    recipe = experiment.recipe.changed(changes)
    corpus = Corpus.open(workspace.folder("corpus", "toy"))
    made = folds(corpus, refit=recipe.classifier.refit, enough=recipe.classifier.enough)
    planned = world_of(workspace, Experiment(experiment.dataset, recipe)).folds(recipe)
    assert len(planned) == len(made)
    assert sum(planned) == pytest.approx(
        sum(len(fold.documents(corpus)) for fold in made), abs=len(corpus.rows("validation"))
    )


def test_a_world_of_sizes_has_as_many_documents() -> None:
    world = DataSize.of_sizes(1_000_000, 10, 20, 6, 30)
    assert (world.documents, world.pairs) == (1_000_000, 10)
    assert math.isclose(world.test, 100_000)
    few = DataSize.of_sizes(1_000_000, 10, 20, 6, 2, test=7)
    assert (few.documents, few.test, few.validation) == (1_000_000, 7, 99_999)


def test_texts_whose_characters_are_not_known_have_those_of_their_tokens() -> None:
    assert (LARGE.document_chars, LARGE.label_chars) == (100, 30)
    longer = replace(LARGE, document_chars=7e5)
    assert (longer.document_chars, longer.label_chars) == (7e5, 30)


@pytest.mark.parametrize(("test", "expected"), [(7, 7), (100_000, 33)])
def test_a_third_of_a_pilot_are_test_documents_however_few_there_are(test: int, expected: int, tmp_path: Path) -> None:
    world = DataSize.of_sizes(1_000_000, 10, 20, 6, 2, test=test)
    PilotSource.made_up(world, "wordpiece").write(tmp_path / "pilot", 100)
    lines = {
        name: gzip.decompress((tmp_path / "pilot" / f"{name}.json.gz").read_bytes()).splitlines()
        for name in ("trn", "tst", "lbl")
    }
    assert {name: len(own) for name, own in lines.items()} == {"trn": 100 - expected, "tst": expected, "lbl": 10}
    rows = [int(json.loads(line)["uid"][1:]) for line in lines["tst"]]
    assert all(row >= world.published for row in rows)
    assert len(set(rows)) == expected
