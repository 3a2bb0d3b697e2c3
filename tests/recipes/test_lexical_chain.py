"""The recipe house from text to answers: what its lexical score adds to the chain, and to the folder that is served."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOPICS, TOY_CHANGES, ToyWorld, make_workspace
from tests.test_bundle import SUFFIXES, files, flip, pack, pickled
from xc_core import artifacts
from xc_core.ann import IndexConfig
from xc_core.bundle import open_bundle
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.infer.predictor import Predictor
from xc_core.shapes import PAD_ID
from xc_core.stages import STAGES, Workspace, run_stage

TESTS = ToyWorld.make().test
TEXTS = [f"{row['title']} {row['content']}" for row in TESTS]


@pytest.fixture(scope="module")
def housed(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace whose whole chain has run with the recipe house."""
    workspace = make_workspace(tmp_path_factory.mktemp("housed"))
    changes = deepcopy(TOY_CHANGES) | {"model": {"min_index_recall": 0.0}}
    workspace.declare_experiment("toy", "house", "house", changes)
    for stage in STAGES:
        if stage != "leaderboard":
            run_stage(workspace, stage, "toy", "house")
    return workspace


@pytest.fixture
def folder(housed: Workspace, tmp_path: Path) -> Path:
    """A copy of the packed model, to be spoilt."""
    return Path(shutil.copytree(housed.folder("model", "toy", "house"), tmp_path / "bundle"))


@pytest.fixture(scope="module")
def predictor(housed: Workspace) -> Predictor:
    return open_bundle(housed.folder("model", "toy", "house"))


def test_what_is_served_is_what_was_judged(predictor: Predictor, housed: Workspace) -> None:
    judged = json.loads((housed.folder("evaluation", "toy", "house") / "metrics.json").read_text())
    found = predictor.predict(TEXTS, 5)
    for k in (1, 5):
        hits = [len({a.label for a in row[:k]} & set(t["target_ind"])) for row, t in zip(found, TESTS, strict=True)]
        assert 100 * sum(hits) / (k * len(hits)) == pytest.approx(judged[f"P_at_{k}"], abs=1e-9)


def test_the_evaluation_judges_the_lexical_score_alone_too(housed: Workspace) -> None:
    report = json.loads((housed.folder("evaluation", "toy", "house") / "report.json").read_text())
    assert report["ablation"]["lexical"]["P_at_1"] > 90
    facts = artifacts.read_manifest(housed.folder("classifier", "toy", "house")).facts
    assert facts["terms"] > len(TOPICS)


def test_candidates_hold_the_labels_of_the_words(predictor: Predictor) -> None:
    """One candidate of each search would be two labels at most, and the words alone name all ten."""
    scorer = predictor.scorer
    alone = replace(scorer, sources=replace(scorer.sources, neighbours=None))
    rule = replace(scorer.fusion.config, features=("classifier", "lexical"), add=("lexical",), kind="sum", candidates=1)
    alone = replace(alone, fusion=replace(scorer.fusion, config=rule, tree=None))
    found = replace(predictor, scorer=alone).shortlist(["falcon0 castle1", "unheard"], 10)
    assert (found.ids_NK != PAD_ID).sum(1).tolist()[0] == len(TOPICS)
    assert 1 <= (found.ids_NK != PAD_ID).sum(1).tolist()[1] <= 2
    assert {TOPICS[i] for i in found.ids_NK[0, :2]} == {"falcon", "castle"}


@pytest.mark.parametrize("text", ["", "quixotic zeppelins", "\x00", "河", "falcon0 " * 20_000])
def test_an_odd_text_is_answered(predictor: Predictor, text: str) -> None:
    (found,) = predictor.predict([text], 3)
    assert len(found) == 3
    assert all(np.isfinite(label.score) for label in found)


def test_a_text_gets_the_same_answer_alone_in_company_and_from_any_thread(predictor: Predictor) -> None:
    together = predictor.shortlist([*TEXTS, ""], 5)
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda text: predictor.shortlist([text], 5), [*TEXTS, ""]))
    np.testing.assert_array_equal(np.concatenate([one.ids_NK for one in alone]), together.ids_NK)


def test_a_bundle_read_and_written_again_answers_the_same_and_has_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    predictor = open_bundle(folder)
    config = IndexConfig(**json.loads((folder / "by_row" / "index.json").read_text())["config"])
    again = pack(predictor, tmp_path / "again", config)
    assert open_bundle(again).predict(TEXTS, 5) == predictor.predict(TEXTS, 5)
    ours, theirs = files(folder), files(again)
    assert set(ours) == set(theirs)
    assert {name for name in ours if name.startswith("lexical/")} == {
        "lexical/labels.safetensors", "lexical/lexical.json", "lexical/terms.parquet",
        *(f"lexical/tree{i}/{name}" for i in range(3) for name in ("settings.json", "tree0.cbor")),
    }  # fmt: skip
    assert {name for name in ours if ours[name].read_bytes() != theirs[name].read_bytes()} == {"manifest.json"}


def test_a_bundle_holds_nothing_that_runs_code_when_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees are CBOR, which has no opcodes."""
    monkeypatch.setattr("tests.test_bundle.SUFFIXES", SUFFIXES | {".cbor"})
    assert not {name: why for name, path in files(folder).items() if (why := pickled(path))}


@pytest.mark.parametrize(
    "name", ["labels.safetensors", "lexical.json", "terms.parquet", "tree1/settings.json", "tree2/tree0.cbor"]
)
@pytest.mark.parametrize(("spoil", "found"), [(flip, "another content"), (Path.unlink, "no file")])
def test_a_changed_or_missing_file_is_found_when_opened(folder: Path, name: str, spoil: Any, found: str) -> None:
    spoil(folder / "lexical" / name)
    with pytest.raises(CorruptError, match=found):
        open_bundle(folder)


def test_a_lexical_score_of_other_labels_is_refused(folder: Path, tmp_path: Path) -> None:
    predictor = open_bundle(folder)
    sources = predictor.scorer.sources
    assert sources.lexical is not None
    fewer = sources.lexical.labels_LT[:9]
    other = replace(sources, lexical=replace(sources.lexical, num_labels=9, labels_LT=fewer))
    mixed = pack(predictor, tmp_path / "mixed", IndexConfig(), scorer=replace(predictor.scorer, sources=other))
    with pytest.raises(CorruptError, match="9 in lexical"):
        open_bundle(mixed)


def test_a_bundle_without_its_package_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "omikuji", None)
    with pytest.raises(MissingError, match="no installed package omikuji") as caught:
        open_bundle(folder)
    assert "pip install" in caught.value.do


def test_a_recipe_that_needs_it_stops_before_training_without_its_package(
    housed: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "omikuji", None)
    monkeypatch.setattr("xc_core.stages.classifier.fit", None)
    with pytest.raises(MissingError, match="no installed package omikuji"):
        run_stage(housed, "classifier", "toy", "house", force=True)


def test_a_refresh_fits_it_anew(housed: Workspace, tmp_path: Path) -> None:
    copied = Workspace(Path(shutil.copytree(housed.root, tmp_path / "copied")))
    before = copied.folder("classifier", "toy", "house") / "lexical"
    shutil.rmtree(before)
    with pytest.raises(CorruptError):
        run_stage(copied, "fusion", "toy", "house", force=True)
    with pytest.raises(CorruptError):
        run_stage(copied, "classifier", "toy", "house", refresh=True)
    shutil.rmtree(tmp_path / "copied")
    copied = Workspace(Path(shutil.copytree(housed.root, tmp_path / "copied")))
    run_stage(copied, "classifier", "toy", "house", refresh=True)
    assert (before / "lexical.json").is_file()
    run_stage(copied, "fusion", "toy", "house", force=True)


def test_params_that_ask_for_a_score_nobody_trains_are_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match=r"classifier\.lexical\.use = true"):
        workspace.declare_experiment("toy", "wordy", "ngame", {"fusion": {"add": ["lexical"]}})


def test_a_recipe_without_it_reads_no_texts_and_packs_none(trained: Workspace) -> None:
    assert not (trained.folder("classifier", "toy", "ngame") / "lexical").exists()
    predictor = open_bundle(trained.folder("model", "toy", "ngame"))
    assert predictor.scorer.sources.lexical is None
