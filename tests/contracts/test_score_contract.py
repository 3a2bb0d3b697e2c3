"""The contract that every score in the table keeps: fit, propose, score, save, open, and estimate its cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays import of_unit_length, unit
from tests.conftest import TOPICS, ToyWorld
from xc_core.data.labels import LabelMatrix
from xc_core.errors import MovedError
from xc_core.params import changed, plain
from xc_core.sampling.noise import FrequencyNoise
from xc_core.scores import SCORES, FittedScore, NewLabels, Query, Sample, Score, ScoreData, Size
from xc_core.shapes import F32, I32, PAD_ID

NAMES = SCORES.names()
pytestmark = pytest.mark.parametrize("name", NAMES)

WORLD = ToyWorld.make(documents=90, tests=25)
LABELS, WIDTH, K = len(TOPICS), 8, 4
SETTINGS: dict[str, dict[str, Any]] = {"lexical": {"trees": 1}}
"""Smaller than the defaults, if a test would take long."""


def texts_of(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['title']} {row['content']}" for row in rows]


LABEL_LD = unit(np.random.default_rng(0).standard_normal((LABELS, WIDTH)))


def vectors_of(rows: list[dict[str, Any]]) -> F32:
    """Return a unit vector near the label vectors of each document."""
    noise = np.random.default_rng(1).standard_normal((len(rows), WIDTH))
    return unit(np.stack([LABEL_LD[row["target_ind"]].sum(0) for row in rows]) + 0.1 * noise)


def data(rows: list[dict[str, Any]]) -> ScoreData:
    """Return all that a score may be fitted on."""
    docs = np.repeat(np.arange(len(rows)), [len(row["target_ind"]) for row in rows])
    pairs = np.array([label for row in rows for label in row["target_ind"]], np.int64)
    truth = LabelMatrix.from_pairs(docs, pairs, (len(rows), LABELS))
    return ScoreData(
        truth,
        texts=lambda: texts_of(rows),
        label_texts=lambda: texts_of(WORLD.labels),
        vectors=lambda: vectors_of(rows),
        label_vectors=lambda: LABEL_LD,
        rows=lambda: unit(LABEL_LD + 0.1),
        noise=lambda: FrequencyNoise.of(truth),
    )


def query(rows: slice = slice(None)) -> Query:
    """Return test documents; the first has an empty text."""
    texts = texts_of(WORLD.test)
    texts[0] = ""
    return Query(vectors_of(WORLD.test)[rows], texts[rows])


def part(name: str) -> Score:
    return changed(SCORES[name](), SETTINGS.get(name, {}), f"scores.{name}")


@cache
def fitted(name: str) -> FittedScore:
    return part(name).fit(data(WORLD.train))


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    fitted(name).save(tmp_path)
    return tmp_path


def every_label(documents: int = len(WORLD.test)) -> I32:
    return np.tile(np.arange(LABELS, dtype=np.int32), (documents, 1))


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def equal(ours: I32 | None, theirs: I32 | None) -> bool:
    return ours is theirs is None or (ours is not None and theirs is not None and np.array_equal(ours, theirs))


def test_what_is_saved_and_opened_gives_the_same_candidates_and_values(name: str, folder: Path) -> None:
    ours, theirs = fitted(name), part(name).open(folder)
    assert ours.num_labels == theirs.num_labels == LABELS
    for k in (1, K, 3 * LABELS):
        assert equal(ours.candidates(query(), k), theirs.candidates(query(), k))
    np.testing.assert_array_equal(ours.values(query(), every_label()), theirs.values(query(), every_label()))


def test_an_opened_score_is_saved_as_the_same_bytes(name: str, folder: Path) -> None:
    (folder / "again").mkdir()
    before = files(folder)
    part(name).open(folder).save(folder / "again")
    assert before == files(folder / "again")
    assert before


def test_candidates_are_labels_each_once_holes_last(name: str) -> None:
    for k in (1, K, 3 * LABELS):
        found = fitted(name).candidates(query(), k)
        if found is None:
            return
        assert (len(found), found.dtype) == (len(WORLD.test), np.int32)
        assert found.min() >= PAD_ID
        assert found.max() < LABELS
        assert not (np.diff((found == PAD_ID).astype(int), axis=1) < 0).any(), "holes come last"
        assert all(len(set(row)) == len(row) for row in (r[r != PAD_ID].tolist() for r in found))


def test_a_score_either_proposes_labels_or_never_does(name: str) -> None:
    proposes = [fitted(name).candidates(query(), k) is not None for k in (1, K)]
    assert proposes[0] == proposes[1] == (fitted(name).candidates(query(slice(0, 0)), K) is not None)


def test_values_are_finite_numbers_and_a_hole_changes_nothing(name: str) -> None:
    ids = every_label()
    ids[::2, 3:] = PAD_ID
    found, whole = fitted(name).values(query(), ids), fitted(name).values(query(), every_label())
    assert (found.shape, found.dtype) == (ids.shape, np.float32)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[ids != PAD_ID], whole[ids != PAD_ID])


def test_a_value_is_the_same_whether_a_candidate_is_proposed_alone_or_in_a_block(name: str) -> None:
    whole = fitted(name).values(query(), every_label())
    order = np.random.default_rng(3).permutation(LABELS)
    turned = fitted(name).values(query(), every_label()[:, order])
    np.testing.assert_allclose(turned, whole[:, order], rtol=1e-5, atol=1e-6)
    for doc in range(0, len(WORLD.test), 7):
        for label in range(LABELS):
            alone = fitted(name).values(query(slice(doc, doc + 1)), np.array([[label]], np.int32))
            np.testing.assert_allclose(alone, whole[doc : doc + 1, label : label + 1], rtol=1e-5, atol=1e-6)


def test_candidates_of_a_document_do_not_depend_on_the_others(name: str) -> None:
    whole = fitted(name).candidates(query(), K)
    if whole is None:
        return
    for doc in range(len(WORLD.test)):
        alone = fitted(name).candidates(query(slice(doc, doc + 1)), K)
        assert alone is not None
        assert [label for label in alone[0].tolist() if label != PAD_ID] == [
            label for label in whole[doc].tolist() if label != PAD_ID
        ]


def test_the_order_of_calls_does_not_matter(name: str) -> None:
    """What a query caches for the candidates is what the values need, and the reverse."""
    one, two = query(), query()
    first = fitted(name).candidates(one, K), fitted(name).values(one, every_label())
    values = fitted(name).values(two, every_label())
    assert equal(first[0], fitted(name).candidates(two, K))
    np.testing.assert_array_equal(first[1], values)
    np.testing.assert_array_equal(values, fitted(name).values(two, every_label()))


def test_no_documents_give_no_rows(name: str) -> None:
    nothing = query(slice(0, 0))
    found = fitted(name).candidates(nothing, K)
    assert found is None or len(found) == 0
    assert fitted(name).values(nothing, every_label(0)).shape == (0, LABELS)
    assert fitted(name).values(query(), every_label()[:, :0]).shape == (len(WORLD.test), 0)


@pytest.mark.parametrize("text", ["", " \t", "quixotic zeppelins", "河"])
def test_an_empty_or_unknown_text_is_scored_like_any_other(name: str, text: str) -> None:
    one = Query(vectors_of(WORLD.test)[:1], [text])
    found = fitted(name).candidates(one, K)
    assert found is None or (found.shape[0], found.dtype) == (1, np.int32)
    assert np.isfinite(fitted(name).values(one, every_label(1))).all()


def test_figures_are_finite_numbers_and_a_recall_is_a_share(name: str) -> None:
    found = fitted(name).figures(query())
    assert all(isinstance(value, float) and np.isfinite(value) for value in found.values())
    assert 0 <= found.get("recall", 1.0) <= 1
    json.dumps(found)


def test_scoring_leaves_its_arguments_alone(name: str) -> None:
    one, ids = query(), every_label()
    before = one.doc_ND.copy()
    fitted(name).candidates(one, K)
    fitted(name).values(one, ids)
    fitted(name).figures(one)
    np.testing.assert_array_equal(one.doc_ND, before)
    np.testing.assert_array_equal(ids, every_label())


def test_settings_survive_being_written_down(name: str) -> None:
    assert changed(SCORES[name](), plain(part(name)), "scores") == part(name)
    assert SCORES[name]().kind == name


def test_the_check_passes_where_all_packages_are_installed(name: str) -> None:
    part(name).check()


@pytest.mark.parametrize("sizes", [(), (90,), (90, 900)])
def test_the_cost_is_a_finite_number_of_seconds(name: str, sizes: tuple[int, ...]) -> None:
    """Only texts and labels are there when a budget is estimated."""
    texts_only = replace_absent(data(WORLD.train)), replace_absent(data(WORLD.train[:20]))
    found = part(name).cost(Sample(*texts_only, sizes))
    assert isinstance(found, float)
    assert np.isfinite(found)
    assert 0 <= found < 600
    assert sizes or not found


def test_a_footprint_grows_with_the_data(name: str) -> None:
    """But for ``most``: a search in blocks has a bound, and takes somewhat less if a few wide nodes fill a block."""
    small, large = (part(name).footprint(Size(n, n // 10, 2.0 * n, 384, 100, 20)) for n in (1_000, 10_000_000))
    ours, theirs = (astuple(replace(one, cells=(), most=0.0)) for one in (small, large))
    assert large.most >= 0.8 * small.most >= 0
    assert all(value >= 0 for value in ours[:-1])
    assert all(few <= many for few, many in zip(ours, theirs, strict=True))
    assert sum(small.cells) <= sum(large.cells)


def replace_absent(own: ScoreData) -> ScoreData:
    """Return the data without vectors, rows and noise."""
    return ScoreData(own.truth, texts=own.texts, label_texts=own.label_texts)


def test_a_score_that_is_the_same_for_every_fold_reads_no_documents(name: str) -> None:
    if part(name).per_fold:
        return

    def refuse() -> Any:
        raise AssertionError("it reads documents")

    blind = replace(data(WORLD.train[:9]), texts=refuse, vectors=refuse, rows=refuse, noise=refuse)
    again = part(name).fit(blind)
    np.testing.assert_array_equal(again.values(query(), every_label()), fitted(name).values(query(), every_label()))


def test_a_score_that_needs_the_noise_distribution_says_so(name: str) -> None:
    read: list[str] = []

    def watched(what: str, get: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (read.append(what), get())[1]

    own = data(WORLD.train)
    part(name).fit(replace(own, noise=watched("noise", own.noise)))
    assert bool(read) == part(name).needs_noise


def test_a_score_proposes_candidates_exactly_if_its_settings_say_that_it_searches(name: str) -> None:
    assert (fitted(name).candidates(query(), K) is not None) == part(name).searches


# labels that come later

NEW_TEXTS = ["river0 castle1 river0", "words that nobody knows"]
GROWN_LD = np.concatenate([LABEL_LD, unit(np.random.default_rng(7).standard_normal((2, WIDTH)))])


def extended(name: str) -> FittedScore:
    """Return the fitted score with two more labels."""
    return part(name).extended(fitted(name), NewLabels(LABELS, lambda: NEW_TEXTS, GROWN_LD, unit(GROWN_LD + 0.1)))


def data_with_new_labels() -> ScoreData:
    """Return the same documents among two more labels, which none of them has."""
    old = data(WORLD.train)
    truth = LabelMatrix(old.truth.indptr, old.truth.indices, LABELS + 2)
    texts = texts_of(WORLD.labels) + NEW_TEXTS
    own = {"label_texts": lambda: texts, "label_vectors": lambda: GROWN_LD, "rows": lambda: unit(GROWN_LD + 0.1)}
    return replace(data(WORLD.train), truth=truth, **own)


def has_to_be_fitted(name: str) -> bool:
    """Return True for ``noise``, and for the score of a package that has no ``extended``, which is optional there."""
    return name == "noise" or (is_of_a_package(name) and SCORES[name].extended is Score.extended)


def is_of_a_package(name: str) -> bool:
    return not SCORES[name].__module__.startswith("xc_core.")


def test_more_labels_leave_the_values_of_the_others_as_they_are(name: str, tmp_path: Path) -> None:
    if has_to_be_fitted(name):
        with pytest.raises(MovedError, match=f"'{name}', which has to be fitted again"):
            part(name).check_extended()
        with pytest.raises(MovedError, match=f"'{name}', which has to be fitted again"):
            extended(name)
        return
    part(name).check_extended()
    before, after = fitted(name), extended(name)
    assert (before.num_labels, after.num_labels) == (LABELS, LABELS + 2)
    np.testing.assert_array_equal(after.values(query(), every_label()), before.values(query(), every_label()))
    after.save(tmp_path)
    opened, wide = part(name).open(tmp_path), np.tile(np.arange(LABELS + 2, dtype=np.int32), (len(WORLD.test), 1))
    assert opened.num_labels == LABELS + 2
    np.testing.assert_array_equal(opened.values(query(), wide), after.values(query(), wide))
    assert equal(opened.candidates(query(), LABELS + 2), after.candidates(query(), LABELS + 2))


def test_more_labels_give_what_a_fit_among_them_gives(name: str) -> None:
    """Except scores that train, or that count words of label texts, as a package's may: old labels would change too."""
    if name in ("noise", "biased_rows", "lexical", "label_words", "characters", "label_characters"):
        return
    if is_of_a_package(name):
        return
    ours, theirs = extended(name), part(name).fit(data_with_new_labels())
    wide = np.tile(np.arange(LABELS + 2, dtype=np.int32), (len(WORLD.test), 1))
    np.testing.assert_array_equal(ours.values(query(), wide), theirs.values(query(), wide))
    for k in (K, LABELS + 2):
        assert equal(ours.candidates(query(), k), theirs.candidates(query(), k))
    assert ours.figures(query()) == theirs.figures(query())


def test_more_labels_of_scores_that_train_or_count_words(name: str) -> None:
    ids = np.tile(np.arange(LABELS, LABELS + 2, dtype=np.int32), (2, 1))
    asked = Query(vectors_of(WORLD.test)[:2], ["river0 castle1 river0", "nothing known"])
    if name in ("lexical", "label_words"):
        np.testing.assert_allclose(extended(name).values(asked, ids), [[1, 0], [0, 0]], atol=1e-6)
    if name == "biased_rows":
        rows_LD: Any = fitted(name)
        text_LD = np.c_[LABEL_LD - LABEL_LD.mean(0), np.ones(LABELS)]
        centred = np.r_[text_LD, np.c_[np.eye(WIDTH), np.zeros(WIDTH)]]
        targets = np.r_[rows_LD.vectors_LD, np.zeros((WIDTH, WIDTH + 1))]
        slopes = np.linalg.lstsq(centred, targets, rcond=None)[0]
        wanted = np.c_[GROWN_LD[LABELS:] - LABEL_LD.mean(0), np.ones(2)] @ slopes
        mean = rows_LD.vectors_LD.mean(0)[:-1]
        wanted[:, :-1] = [of_unit_length(row, mean) for row in wanted[:, :-1]]
        found: Any = extended(name)
        np.testing.assert_allclose(found.vectors_LD[LABELS:], wanted, atol=1e-4)
