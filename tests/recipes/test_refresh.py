"""Refresh without training: trained rows stay, a new label's row is predicted from its text, noise must be known."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from tests.arrays import of_unit_length
from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from tests.stages.halves import open_corpus, open_embeddings, rows_of, run_until
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.data.tokens import Tokenised
from xc_core.encoders import TrainedEncoder
from xc_core.errors import MovedError
from xc_core.recipes import RECIPES, Recipe
from xc_core.shapes import F32

NEW = {"uid": "L10", "title": "meadow", "content": "river0 river1 castle0"}
BEFORE_CLASSIFIER = [name for name in list(STAGES)[: list(STAGES).index("classifier")] if name != "encoder"]


def rows(workspace: Workspace, recipe: str) -> F32:
    return rows_of(workspace, recipe=recipe)


def prepared(recipe: str, root: Path) -> tuple[Workspace, F32]:
    """Return a workspace whose ``recipe`` was trained before its corpus got another label, and the rows of before."""
    workspace = make_workspace(root)
    changes = deepcopy(TOY_CHANGES)
    if RECIPES[recipe].encoder.joint:
        changes["classifier"]["epochs"] = 0.0
    else:
        changes["encoder"]["epochs"] = 0.0
    workspace.params.declare_experiment("toy", recipe, recipe, changes)
    run_until(workspace, "fusion", recipe)
    before = rows(workspace, recipe)
    world = ToyWorld.make()
    world.labels.append(NEW)
    world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [10], "target_rel": [1.0]})
    world.write(workspace.raw("toy"))
    encoder = workspace.digest("encoder", "toy", recipe)
    for stage in BEFORE_CLASSIFIER:
        run_stage(workspace, stage, "toy", recipe, refresh=True)
    assert workspace.digest("encoder", "toy", recipe) == encoder
    return workspace, before


def naive_ridge(text: Any, texts: Any, rows: Any) -> Any:
    """Least squares with an intercept for every coordinate of a row, the slopes' squares added to the errors."""
    wide = np.c_[texts - texts.mean(0), np.ones(len(texts))].astype(np.float64)
    penalty = np.c_[np.eye(texts.shape[1]), np.zeros(texts.shape[1])]
    targets = np.r_[rows.astype(np.float64), np.zeros((texts.shape[1], rows.shape[1]))]
    slopes = np.linalg.lstsq(np.r_[wide, penalty], targets, rcond=None)[0]
    return np.r_[text - texts.mean(0), 1.0] @ slopes


def unit(recipe: Recipe) -> bool:
    """Return True if the rows that are trained are unit vectors."""
    scorer: Any = recipe.encoder.scorer
    return bool((scorer.rows if recipe.encoder.joint else recipe.classifier.table).unit)


@pytest.mark.parametrize("recipe", ["renee", "unidec", "ove"])
def test_trained_rows_stay_and_a_new_one_is_where_a_map_from_texts_to_rows_puts_its_text(
    recipe: str, tmp_path: Path
) -> None:
    workspace, before = prepared(recipe, tmp_path)
    run_stage(workspace, "classifier", "toy", recipe, refresh=True)
    after = rows(workspace, recipe)
    np.testing.assert_array_equal(after[:10], before)
    width, starts = after.shape[1], open_embeddings(workspace, recipe).starts_LD
    predicted = naive_ridge(starts[10], starts[:10], before)
    expected = of_unit_length(predicted, before.mean(0)) if unit(RECIPES[recipe]) else predicted
    np.testing.assert_allclose(after[10], expected, atol=1e-5)
    if recipe == "unidec":
        assert not after[10, : width // 2].any(), "it is in the half that is compared with rows"
        assert not before[:, : width // 2].any()


def test_a_noise_distribution_over_other_labels_is_refused(tmp_path: Path) -> None:
    workspace, _ = prepared("adversarial", tmp_path)
    with pytest.raises(MovedError, match="11 labels, and a noise distribution over 10"):
        run_stage(workspace, "classifier", "toy", "adversarial", refresh=True)


def relabelled(workspace: Workspace, first: dict[str, str] | None) -> None:
    """Write the toy world with line numbers as the labels' uids, after a new first label if there is one."""
    world = ToyWorld.make()
    if first is not None:
        world.labels.insert(0, first)
        for document in (*world.train, *world.test):
            document["target_ind"] = [label + 1 for label in document["target_ind"]]
        world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [0], "target_rel": [1.0]})
    for line, label in enumerate(world.labels):
        label["uid"] = str(line)
    world.write(workspace.raw("toy"))


@pytest.mark.parametrize("recipe", ["ngame", "renee"])
def test_rows_are_not_given_to_labels_whose_line_numbers_changed(recipe: str, tmp_path: Path) -> None:
    """In layouts without uids, a line that is inserted would give each label below it its neighbour's row."""
    workspace = make_workspace(tmp_path)
    changes = deepcopy(TOY_CHANGES)
    changes["classifier" if RECIPES[recipe].encoder.joint else "encoder"]["epochs"] = 0.0
    workspace.params.declare_experiment("toy", recipe, recipe, changes)
    relabelled(workspace, None)
    run_until(workspace, "classifier", recipe)
    before = rows(workspace, recipe)
    relabelled(workspace, dict(NEW))
    for stage in BEFORE_CLASSIFIER:
        run_stage(workspace, stage, "toy", recipe, refresh=True)
    with pytest.raises(MovedError, match=r"10 of 10 labels .* another text .*\n.*\n.*append new labels at the end"):
        run_stage(workspace, "classifier", "toy", recipe, refresh=True)
    np.testing.assert_array_equal(rows(workspace, recipe), before)


def test_inputs_of_another_corpus_are_refused_by_every_stage_after_the_encoder(tmp_path: Path) -> None:
    """Otherwise vectors of the old texts would be evaluated, and packed, with the names of the new ones."""
    workspace, _ = prepared("ove", tmp_path)
    for stage in ("scores", "fusion", "evaluation", "audit", "model"):
        with pytest.raises(MovedError, match=r"(classifier|encoder) out of date") as caught:
            run_stage(workspace, stage, "toy", "ove")
        assert "corpus" in caught.value.found
    run_stage(workspace, "classifier", "toy", "ove", refresh=True)
    for stage in ("clusters", "negatives", "scores", "fusion", "evaluation", "audit"):
        run_stage(workspace, stage, "toy", "ove")


@pytest.mark.parametrize("limit", [30_000, 60])
def test_texts_keep_their_vectors_although_new_documents_change_the_vocabulary(
    limit: int, tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary is made from the corpus, so the ids of a word change, also if it is full and its size does not.

    The kept encoder needs its own.
    """
    workspace, world = make_workspace(tmp_path), ToyWorld.make()
    yaml, path = YAML(), workspace.root / "params.yaml"
    content = yaml.load(path)
    content["datasets"]["toy"]["tokens"]["vocabulary"] = limit
    yaml.dump(content, path)
    run_until(workspace, "embeddings")

    def vectors() -> dict[str, F32]:
        uids = open_corpus(workspace).table("documents")["uid"].to_list()
        return dict(zip(uids, open_embeddings(workspace).documents_ND, strict=True))

    before = vectors()
    new = {"title": "aardvark abacus", "content": "aardvark abacus river0", "target_ind": [0], "target_rel": [1.0]}
    world.train += [{**new, "uid": f"D999{number}"} for number in range(3)]
    world.write(workspace.raw("toy"))
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy", "ngame", refresh=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "small"))  # the tokens of all texts are beside the artefact
    run_stage(workspace, "embeddings", "toy", "ngame", refresh=True)
    tokens = Tokenised.open(workspace.folder("tokens", "toy") / "wordpiece")
    trained = TrainedEncoder.open(workspace.folder("encoder", "toy", "ngame"))
    assert not tokens.tokenizer.same_as(trained.tokenizer)
    assert (tokens.tokenizer.vocabulary_size == trained.tokenizer.vocabulary_size) == (limit == 60)
    assert any("vocabulary" in line for line in lines)
    after = vectors()
    for uid, vector in before.items():
        np.testing.assert_allclose(after[uid], vector, atol=1e-6)
    assert len(after) == len(before) + 3
