"""The artefact of fitted scores: every score of every fold comes back, and parts that do not fit are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TOPICS
from tests.scores.toy import LABEL_TEXTS, TESTS, TEXTS, TRUTH, data_of, unit
from xc_core import artifacts
from xc_core.ann import Hnsw
from xc_core.data.folds import FINAL, Fold
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.scores import (
    Classifier,
    FittedScore,
    Frequency,
    LabelText,
    LabelWords,
    Lexical,
    Neighbours,
    Query,
    Score,
    ScoreData,
    Scores,
    ScoresWriter,
    open_packed,
)
from xc_core.shapes import F32

PARTS: dict[str, Score] = {
    "neighbours": Neighbours(nearest=5),
    "label_text": LabelText(index=Hnsw(links=8)),
    "table": Classifier(),
    "frequency": Frequency(),
    "words": LabelWords(),
}
"""In an order that is not alphabetical, two of them under names of their own."""
FOLDS = [Fold("half-0", refit=True, half=0), Fold(FINAL, refit=True)]
HALF = np.arange(0, len(TEXTS), 2)
DOCS = Query(unit(len(TESTS), 9), TESTS)
IDS = np.tile(np.arange(len(TOPICS), dtype=np.int32), (len(TESTS), 1))


def data(fold: Fold) -> ScoreData:
    rows = np.arange(len(TEXTS)) if fold.final else HALF
    return ScoreData(
        TRUTH.rows(rows),
        texts=lambda: [TEXTS[row] for row in rows],
        label_texts=lambda: LABEL_TEXTS,
        vectors=lambda: np.ascontiguousarray(unit(len(TEXTS), 1)[rows]),
        label_vectors=lambda: unit(len(TOPICS), 2),
        rows=lambda: unit(len(TOPICS), 3 if fold.final else 4),
    )


def write(folder: Path, parts: Mapping[str, Score], made: Mapping[str, Mapping[str, FittedScore]]) -> Path:
    with artifacts.building(folder, kind=Scores.kind) as build:
        writer = ScoresWriter(build, parts, {"table": {"recall": 0.75}, "words": {"other": 2.0}})
        for fold in FOLDS:
            for name, fitted in made[fold.name].items():
                writer.add(fold, name, fitted)
        writer.finish(FOLDS)
    return folder


def fit_all(parts: Mapping[str, Score]) -> dict[str, dict[str, FittedScore]]:
    return {
        fold.name: {name: part.fit(data(fold)) for name, part in parts.items() if part.per_fold or fold.final}
        for fold in FOLDS
    }


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, FittedScore]]:
    return fit_all(PARTS)


@pytest.fixture
def folder(made: dict[str, dict[str, FittedScore]], tmp_path: Path) -> Path:
    return write(tmp_path / "scores", PARTS, made)


def table(scores: Mapping[str, FittedScore]) -> dict[str, F32]:
    return {name: score.values(DOCS, IDS) for name, score in scores.items()}


def same(ours: Mapping[str, F32], theirs: Mapping[str, F32]) -> bool:
    return list(ours) == list(theirs) and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_every_score_of_every_fold_comes_back_in_the_order_of_the_recipe(
    folder: Path, made: dict[str, dict[str, FittedScore]]
) -> None:
    scores = Scores.open(folder)
    assert (scores.parts, list(scores.parts)) == (PARTS, list(PARTS))
    assert scores.folds == FOLDS
    final, half = table(scores.fitted()), table(scores.fitted("half-0"))
    assert same(final, table(made[FINAL]))
    shared = {**made["half-0"], "label_text": made[FINAL]["label_text"]}
    assert same(half, table({name: shared[name] for name in PARTS}))
    assert {name for name in PARTS if np.array_equal(final[name], half[name])} == {"label_text"}


def test_a_score_that_is_the_same_for_every_fold_is_stored_once(folder: Path) -> None:
    assert {path.name for path in (folder / FINAL).iterdir()} == set(PARTS)
    assert {path.name for path in (folder / "half-0").iterdir()} == set(PARTS) - {"label_text"}


def test_figures_are_kept_and_a_recall_is_named(folder: Path) -> None:
    scores = Scores.open(folder)
    assert scores.figures == {"table": {"recall": 0.75}, "words": {"other": 2.0}}
    assert scores.recalls == {"table": 0.75}
    facts = artifacts.read_made(folder).facts
    assert facts == {"scores": list(PARTS), "figures": scores.figures}


def test_a_packed_model_has_the_final_scores(folder: Path, tmp_path: Path) -> None:
    scores = Scores.open(folder)
    scores.pack(tmp_path / "packed")
    assert same(table(open_packed(tmp_path / "packed")), table(scores.fitted()))
    assert {path.name for path in (tmp_path / "packed").iterdir()} == {"scores.json", *PARTS}


def test_an_absent_artefact_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no artefact at"):
        Scores.open(tmp_path / "scores")


@pytest.mark.parametrize(
    "name", ["scores.json", "final/words/labels.safetensors", "final/words/terms.json", "half-0/table/vectors.npy"]
)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CorruptError, match=rf"no file .*{name}") as caught:
        Scores.open(folder)
    assert "xc run scores --force" in caught.value.do


@pytest.mark.parametrize("fold", [FINAL, "half-0"])
def test_scores_of_different_labels_are_refused(fold: str, tmp_path: Path) -> None:
    parts: dict[str, Score] = {"frequency": Frequency(), "words": LabelWords()}
    made = fit_all(parts)
    made[fold]["words"] = LabelWords().fit(data_of(TEXTS, LabelMatrix.none(len(TEXTS), 9), LABEL_TEXTS[:9]))
    scores = Scores.open(write(tmp_path / "scores", parts, made))
    with pytest.raises(CorruptError, match="frequency 10, words 9"):
        scores.fitted(fold)
    assert len(scores.fitted(FINAL if fold != FINAL else "half-0")) == 2
    if fold == FINAL:
        scores.pack(tmp_path / "packed")
        with pytest.raises(CorruptError, match="frequency 10, words 9"):
            open_packed(tmp_path / "packed")


def test_a_folder_that_is_not_listed_is_not_opened(folder: Path, tmp_path: Path) -> None:
    scores = Scores.open(folder)
    scores.pack(tmp_path / "packed")
    shutil.copytree(folder / FINAL / "table", tmp_path / "packed" / "intruder")
    assert list(open_packed(tmp_path / "packed")) == list(PARTS)


def test_a_score_of_a_package_that_is_not_installed_is_named(folder: Path, tmp_path: Path) -> None:
    Scores.open(folder).pack(tmp_path / "packed")
    path = tmp_path / "packed" / "scores.json"
    content = json.loads(path.read_text("utf-8"))
    content["scores"][0][1] = {"kind": "bm26"}
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(ConfigError, match="score 'bm26'"):
        open_packed(tmp_path / "packed")


def test_the_lexical_score_is_stored_per_fold_like_any_other(tmp_path: Path) -> None:
    parts: dict[str, Score] = {"lexical": Lexical(trees=1, labels=4)}
    made = fit_all(parts)
    scores = Scores.open(write(tmp_path / "scores", parts, made))
    for fold in FOLDS:
        assert same(table(scores.fitted(fold.name)), table(made[fold.name]))
