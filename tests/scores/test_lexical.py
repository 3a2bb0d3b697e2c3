"""The lexical score: it learns the toy world, survives its files, and finds nothing for texts of unknown words."""

from __future__ import annotations

import builtins
import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import omikuji
import pytest
import torch

from benchmarks.omikuji_files import quiet, write_rows
from tests.conftest import TOPICS
from tests.naive import lexical as naive
from tests.scores.toy import LABEL_TEXTS, NO_LABEL_TEXTS, TESTS, TEXTS, TRUTH, WORLD, asked, data_of, truth_of
from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError, DataError, MissingError
from xc_core.scores import Characters, LabelCharacters, LabelWords, Lexical, Query, lexical
from xc_core.scores.base import NewLabels
from xc_core.scores.lexical import LabelTrees, scores_of
from xc_core.scores.terms import TermSettings
from xc_core.scores.trees.growing import Growth, grow
from xc_core.shapes import PAD_ID, Shortlist

ONE_TREE = Lexical(trees=1)


def fit(texts: list[str], truth: LabelMatrix, settings: Lexical | None = None, **more: Any) -> LabelTrees:
    model = (settings or Lexical()).fit(data_of(texts, truth, **more))
    assert isinstance(model, LabelTrees)
    return model


def shortlist(model: LabelTrees, texts: list[str]) -> Shortlist:
    return model.shortlist(model.terms.vectors(texts))


def saved(model: LabelTrees, folder: Path) -> Path:
    folder.mkdir()
    model.save(folder)
    return folder


def opened(folder: Path, settings: Lexical | None = None) -> LabelTrees:
    model = (settings or Lexical()).open(folder)
    assert isinstance(model, LabelTrees)
    return model


@pytest.fixture(scope="module")
def fitted() -> LabelTrees:
    return fit(TEXTS, TRUTH)


def test_it_learns_the_toy_world(fitted: LabelTrees) -> None:
    for ids, row in zip(shortlist(fitted, TESTS).ids_NK.tolist(), WORLD.test, strict=True):
        assert sorted(ids[: len(row["target_ind"])]) == row["target_ind"]


def test_parts_of_words_have_four_characters() -> None:
    assert (Characters().terms.characters, LabelCharacters().terms.characters, Lexical().terms.characters) == (4, 4, 0)


def test_parts_of_words_find_the_labels_of_forms_that_no_text_has() -> None:
    """Each text has another end of its label's stem."""
    stems = ("kissan", "koiran", "linnun", "hevosen")
    ends = [chr(97 + at) * 2 for at in range(14)]
    texts = [f"{stem}{end}" for end in ends[:12] for stem in stems]
    truth = LabelMatrix.from_pairs(np.arange(48), np.arange(48) % 4, (48, 4))
    asked_texts = [f"{stem}{ends[13]}" for stem in stems]
    by_parts = fit(texts, truth, Characters(trees=1, terms=TermSettings(characters=3)), label_texts=[*stems])
    assert shortlist(by_parts, asked_texts).ids_NK[:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="no train document"):
        fit(texts, truth, ONE_TREE, label_texts=[*stems])


def test_scores_are_shares_best_first_each_label_once_holes_last(fitted: LabelTrees) -> None:
    short = shortlist(fitted, TESTS)
    assert (short.ids_NK.dtype, short.scores_NK.dtype) == (np.int32, np.float32)
    assert short.ids_NK.shape == (len(TESTS), fitted.settings.labels), "as wide for ten labels"
    for ids, scores, filled in zip(short.ids_NK, short.scores_NK, short.filled_NK, strict=True):
        assert len(set(ids[filled].tolist())) == filled.sum() == len(TOPICS)
        assert filled[: filled.sum()].all()
        assert (np.diff(scores[filled]) <= 0).all()
        assert ((scores[filled] > 0) & (scores[filled] <= 1)).all()
        assert (scores[~filled] == -np.inf).all()


@pytest.mark.parametrize("text", ["", " \t", "quixotic zeppelins", "a b c", "河", "\x00", "n239"])
def test_a_text_without_a_known_word_has_no_labels(fitted: LabelTrees, text: str) -> None:
    assert not shortlist(fitted, [text]).filled_NK.any()


def test_no_texts_give_no_rows(fitted: LabelTrees) -> None:
    assert shortlist(fitted, []).ids_NK.shape == (0, fitted.settings.labels)


def test_the_number_of_labels_is_kept(fitted: LabelTrees) -> None:
    few = LabelTrees(Lexical(labels=3), fitted.num_labels, fitted.terms, fitted.forest)
    cut, whole = shortlist(few, TESTS), shortlist(fitted, TESTS).top(3)
    np.testing.assert_array_equal(cut.ids_NK, whole.ids_NK)
    np.testing.assert_array_equal(cut.scores_NK, whole.scores_NK)


def test_the_beam_is_that_of_the_settings(fitted: LabelTrees) -> None:
    """Each of the three trees is one leaf, of which the best label is kept."""
    narrow = dataclasses.replace(fitted, settings=Lexical(beam=1))
    assert set(shortlist(narrow, TESTS).filled_NK.sum(axis=1).tolist()) <= {1, 2, 3}


def test_what_is_saved_and_opened_gives_the_same_scores_and_the_same_bytes(fitted: LabelTrees, tmp_path: Path) -> None:
    one = saved(fitted, tmp_path / "one")
    again = opened(one)
    for texts in (TESTS, ["falcon0"], [""]):
        ours, theirs = shortlist(fitted, texts), shortlist(again, texts)
        np.testing.assert_array_equal(ours.ids_NK, theirs.ids_NK)
        np.testing.assert_array_equal(ours.scores_NK, theirs.scores_NK)
    assert (again.settings, again.num_labels) == (fitted.settings, len(TOPICS))
    two = saved(again, tmp_path / "two")
    names = sorted(p.relative_to(one).as_posix() for p in one.rglob("*") if p.is_file())
    assert names == ["forest.safetensors", "lexical.json", "terms.json", "terms.parquet"]
    assert [name for name in names if (one / name).read_bytes() != (two / name).read_bytes()] == []


def test_threads_share_it(fitted: LabelTrees, tmp_path: Path) -> None:
    model = opened(saved(fitted, tmp_path / "one"))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: shortlist(model, [text]).ids_NK[0].tolist(), TESTS * 3))
    assert found == shortlist(fitted, TESTS * 3).ids_NK.tolist()


def test_nothing_is_written_to_either_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = opened(saved(fit(TEXTS, TRUTH, ONE_TREE), tmp_path / "one"), ONE_TREE)
    shortlist(model, TESTS)
    print("after")
    assert capfd.readouterr() == ("after\n", "")


@pytest.mark.parametrize("labels", [1, 2])
def test_one_label_or_two_are_enough(labels: int) -> None:
    held = LabelMatrix.from_pairs(np.arange(4), np.arange(4) % labels, (4, labels))
    short = shortlist(fit(["red red", "blue blue", "red sky", "blue sky"], held, ONE_TREE), ["red"])
    assert short.filled_NK.sum() == labels
    assert short.ids_NK[0, 0] == 0


def test_documents_that_teach_nothing_are_left_out() -> None:
    """One document has no kept term, one no label."""
    texts = ["red sky", "red sea", "unheard", "red sky"]
    held = LabelMatrix.from_pairs(np.array([0, 1, 2]), np.array([0, 1, 2]), (4, 3))
    short = shortlist(fit(texts, held, ONE_TREE), ["red sky"])
    assert 2 not in short.ids_NK
    assert short.ids_NK[0, 0] == 0


@pytest.mark.parametrize(
    ("texts", "held"),
    [(["one", "two"], True), (["", "a"], True), (["same words", "same words"], False), ([], True)],
)
def test_nothing_to_learn_from_is_an_error_that_says_what_to_do(texts: list[str], held: bool) -> None:
    docs = np.arange(len(texts) if held else 0)
    with pytest.raises(DataError, match=r"scores\.NAME=null"):
        fit(texts, LabelMatrix.from_pairs(docs, docs, (len(texts), 2)))


class Grown(NamedTuple):
    """What trees are grown from."""

    rows: Any
    truth: LabelMatrix
    filters: LabelMatrix | None
    growth: Growth
    trees: int


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[Grown]:
    """Record each growth of trees."""
    every: list[Grown] = []
    monkeypatch.setattr(lexical, "grow", lambda *given: every.append(Grown(*given)) or grow(*given))
    return every


def test_filters_are_those_of_the_documents_that_are_kept(grown: list[Grown]) -> None:
    """Without the first document those of the second were the first's."""
    held = LabelMatrix.from_pairs(np.array([0, 1, 2]), np.array([2, 0, 1]), (3, 3))
    filters = LabelMatrix.from_pairs(np.array([0, 1]), np.array([0, 2]), (3, 3))
    ONE_TREE.fit(dataclasses.replace(data_of(["unheard", "red sky", "red sky"], held), filters=filters))
    kept = grown[0].filters
    assert kept is not None
    assert [kept.row(doc).tolist() for doc in range(2)] == [[2], []]


def test_texts_and_labels_of_different_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="12 texts for 240 documents and 10 labels"):
        fit(["a", "b"], TRUTH)


@pytest.mark.parametrize("absent", ["numba", "sklearn"])
def test_a_package_that_is_not_installed_is_named(
    fitted: LabelTrees, absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own = saved(fitted, tmp_path / "one"), builtins.__import__
    query = asked(TESTS)
    expected = fitted.candidates(query, 5)

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == absent:
            raise ImportError(name)
        return own(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    uses = [lambda: fit(TEXTS, TRUTH), Lexical().check]
    needs_scikit = [LabelWords().check, lambda: fitted.terms.transform(TEXTS)]
    for use in uses if absent == "numba" else [*uses, *needs_scikit]:
        with pytest.raises(MissingError, match="no installed package") as caught:
            use()
        assert "pip install" in caught.value.do
    found = Lexical().open(folder).candidates(asked(TESTS), 5)  # an answer needs neither
    assert found is not None
    np.testing.assert_array_equal(found, expected)


def test_parts_that_do_not_fit_are_refused(fitted: LabelTrees, tmp_path: Path) -> None:
    folder = saved(fitted, tmp_path / "one")
    with pytest.raises(CorruptError, match="'trees': 3"):
        opened(folder, ONE_TREE)
    mixed = saved(fit(TEXTS[:50], TRUTH.rows(np.arange(50)), ONE_TREE), tmp_path / "mixed")
    shutil.copy(folder / "terms.parquet", mixed / "terms.parquet")
    with pytest.raises(CorruptError, match=f"'terms': {len(fitted.terms)}"):
        opened(mixed, ONE_TREE)
    (folder / "lexical.json").write_text('{"labels": 9}')
    with pytest.raises(CorruptError, match="'labels': 10"):
        opened(folder)


@pytest.fixture(scope="module")
def models(fitted: LabelTrees, tmp_path_factory: pytest.TempPathFactory) -> list[omikuji.Model]:
    """omikuji's trees on the same texts."""
    rows, params = tmp_path_factory.mktemp("rows") / "rows.txt", omikuji.Model.default_hyper_param()
    params.n_trees = 1
    write_rows(rows, fitted.terms.vectors(TEXTS), TRUTH)
    with quiet():
        return [omikuji.Model.train_on_data(str(rows), params) for _ in range(3)]


@pytest.fixture
def older(fitted: LabelTrees, models: list[omikuji.Model], tmp_path: Path) -> Path:
    """The score as 0.2.0 saved it."""
    folder = saved(fitted, tmp_path / "older")
    (folder / "forest.safetensors").unlink()
    for number, model in enumerate(models):
        with quiet():
            model.save(str(folder / f"tree{number}"))
    return folder


def test_a_model_of_an_older_version_gives_omikujis_scores(
    fitted: LabelTrees, models: list[omikuji.Model], older: Path, tmp_path: Path
) -> None:
    model = opened(older)
    known = naive.idf(TEXTS + NO_LABEL_TEXTS, 2)
    columns = {term: at for at, term in enumerate(fitted.terms.vectorizer.get_feature_names_out())}
    short = shortlist(model, TESTS[:5])
    for text, ids, scores in zip(TESTS, short.ids_NK, short.scores_NK, strict=False):
        pairs = [(columns[term], value) for term, value in naive.vector(text, known).items()]
        expected = dict.fromkeys(range(len(TOPICS)), 0.0)
        for tree in models:
            tree.init_prediction_thread_pool(1)
            for label, score in tree.predict(pairs, fitted.settings.beam, len(TOPICS)):
                expected[label] += score / len(models)
        assert dict(zip(ids.tolist(), scores.tolist(), strict=True)) | {PAD_ID: 0} == pytest.approx(
            {**expected, PAD_ID: 0}, abs=1e-5
        )
    again = opened(saved(model, tmp_path / "two"))
    np.testing.assert_array_equal(shortlist(again, TESTS).scores_NK, shortlist(model, TESTS).scores_NK)
    assert not (tmp_path / "two" / "tree0").exists()


def test_trees_of_an_older_version_are_read_only_if_there_are_no_others(
    fitted: LabelTrees, older: Path, tmp_path: Path
) -> None:
    fitted.forest.save(older)
    for file in older.glob("tree*/tree0.cbor"):
        file.write_bytes(b"")
    assert opened(older).forest.num_trees == 3
    folder = saved(fitted, tmp_path / "one")
    (folder / "forest.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"forest\.safetensors that cannot be read: No such file"):
        opened(folder)


def test_parts_of_an_older_model_that_do_not_fit_are_refused(older: Path) -> None:
    settings = older / "tree1" / "settings.json"
    found = settings.read_text("utf-8")
    settings.write_text(found.replace("Hinge", "Log"))
    with pytest.raises(CorruptError, match="'Log'"):
        opened(older)
    terms = json.loads(found)["n_features"]
    settings.write_text(found.replace(str(terms), str(terms + 1)))
    with pytest.raises(CorruptError, match=f"{terms + 1}.* in .*tree1"):
        opened(older)
    settings.write_text(found)
    opened(older)
    tree = older / "tree2" / "tree0.cbor"
    tree.write_bytes(tree.read_bytes().replace(b"gweights", b"gweighty", 1))
    with pytest.raises(CorruptError, match=r"tree2/tree0\.cbor cannot be read: .*weighty"):
        opened(older)
    shutil.rmtree(older / "tree2")
    with pytest.raises(CorruptError, match=r"None in .*tree2"):
        opened(older)


def test_trees_of_an_older_version_with_terms_that_are_not_there_are_refused(fitted: LabelTrees, older: Path) -> None:
    terms = fitted.terms
    dataclasses.replace(terms, names=terms.names[:-1], idf_T=terms.idf_T[:-1]).save(older)
    for settings in older.glob("tree*/settings.json"):
        content = settings.read_text("utf-8")
        settings.write_text(content.replace(str(len(terms)), str(len(terms) - 1)))
    with pytest.raises(CorruptError, match=r"trees in .*older: wrong terms"):
        opened(older)


def test_labels_that_come_one_after_another_have_the_cosine_of_their_texts(fitted: LabelTrees, tmp_path: Path) -> None:
    grown, texts, size = fitted, ["falcon0 falcon1", "", "falcon0"], len(TOPICS)
    for before, text in enumerate(texts, start=size):
        vectors = np.zeros((before + 1, 1), np.float32)
        grown = fitted.settings.extended(grown, NewLabels(before, [text].copy, vectors, vectors))
    again = opened(saved(grown, tmp_path / "grown"))
    later = [path.name for path in (tmp_path / "grown" / "later").iterdir()]
    assert later == ["labels.safetensors"], "their terms are those of the trees"
    ids = np.arange(-1, size + 3, dtype=np.int32)[None]
    unit = fitted.terms.vectors(texts).toarray()
    for model in (grown, again):
        assert model.num_labels == size + 3
        values = model.values(asked(texts[:1]), ids)[0]
        assert values[-3:] == pytest.approx(unit @ unit[0])
        np.testing.assert_array_equal(values[:-3], fitted.values(asked(texts[:1]), ids[:, :-3])[0])
        candidates = model.candidates(asked(texts[:1]), 1)
        assert candidates is not None and candidates.dtype == np.int32
        assert candidates[0, -3:].tolist() == [size, size + 2, PAD_ID], "best first; one has no word"
        np.testing.assert_array_equal(candidates[:, :-3], fitted.candidates(asked(texts[:1]), 1))
    assert 0 < unit[2] @ unit[0] < 1


def test_later_labels_are_candidates_if_they_share_a_term(fitted: LabelTrees) -> None:
    """Else no score by words would propose a label that came after the training."""
    size, few = len(TOPICS), dataclasses.replace(fitted.settings, labels=2)
    texts = ["falcon0 falcon1", "glacier0", "falcon0", "falcon1 glacier0"]
    vectors = np.zeros((size + 4, 1), np.float32)
    new = NewLabels(size, texts.copy, vectors, vectors)
    grown = few.extended(dataclasses.replace(fitted, settings=few), new)
    found = grown.candidates(asked(["falcon0 falcon1 falcon1", "glacier0", "quixotic"]), 9)
    assert found is not None
    assert found[:, 2:].tolist() == [[size, size + 3], [size + 1, size + 3], [PAD_ID, PAD_ID]]


def test_scores_are_looked_up_as_by_a_loop() -> None:
    random = np.random.default_rng(0)
    ids = np.array([random.permutation(30)[:8] for _ in range(9)], np.int32)
    ids[3] = PAD_ID
    ids[4, 5:] = PAD_ID
    short = Shortlist.ranked(ids, random.random(ids.shape))
    wanted = random.integers(-1, 60, (9, 12)).astype(np.int32)
    own = [dict(zip(a.tolist(), b.tolist(), strict=True)) for a, b in zip(short.ids_NK, short.scores_NK, strict=True)]
    expected = [[own[i].get(k, 0.0) if k != PAD_ID else 0.0 for k in row] for i, row in enumerate(wanted.tolist())]
    found = scores_of(short, wanted)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    empty = Shortlist(np.full((9, 2), PAD_ID, np.int32), np.full((9, 2), -np.inf, np.float32))
    assert (scores_of(empty, wanted) == 0).all()
    assert scores_of(short.rows(slice(0, 0)), wanted[:0]).shape == (0, 12)


def test_values_and_candidates_are_those_of_the_shortlist(fitted: LabelTrees) -> None:
    ids = np.tile(np.arange(-1, len(TOPICS), dtype=np.int32), (2, 1))
    query = asked(["falcon0 falcon1", "unheard"])
    found, best = fitted.values(query, ids), fitted.candidates(query, 3)
    assert best is not None
    assert ids[0, found[0].argmax()] == best[0, 0] == TOPICS.index("falcon")
    assert (found[0, 0], found[1].tolist()) == (0.0, [0.0] * ids.shape[1])


@pytest.mark.parametrize("texts", [None, ["a"]])
def test_a_query_without_texts_is_an_error(fitted: LabelTrees, texts: list[str] | None) -> None:
    with pytest.raises(ValueError, match="texts for 2 documents"):
        fitted.values(Query(np.eye(2, dtype=np.float32), texts), np.zeros((2, 1), np.int32))


def test_settings_reach_the_trees(grown: list[Grown]) -> None:
    fit(TEXTS, TRUTH, Lexical(trees=2, clusters=4, depth=2, passes=3, tolerance=0.25, threshold=0.125, seed=9))
    growth = Growth(clusters=4, depth=2, passes=3, tolerance=0.25, threshold=0.125, seed=9)
    assert [(one.growth, one.trees) for one in grown] == [(growth, 2)]


def test_a_filtered_pair_is_neither_positive_nor_negative() -> None:
    """A document that must not be compared with a label taught that the label is wrong for its words."""
    texts = ["red sky", "red sea", "blue sky", "blue sea"] * 4
    truth = LabelMatrix.from_pairs(np.arange(16), np.arange(16) // 2 % 2, (16, 3))
    truth = LabelMatrix.from_pairs(np.array([*truth.pairs()[0], 0, 4]), np.array([*truth.pairs()[1], 2, 2]), (16, 3))
    reds = np.array([doc for doc in range(16) if doc % 4 < 2 and doc not in (0, 4)])
    filters = LabelMatrix.from_pairs(reds, np.full(len(reds), 2), (16, 3))
    scores = []
    for given in (None, filters):
        data = dataclasses.replace(data_of(texts, truth), filters=given)
        model = ONE_TREE.fit(data)
        scores.append(model.values(asked(["red"]), np.array([[2]], np.int32))[0, 0])
    assert scores[0] < 0.6 < scores[1]


def test_fits_on_the_same_texts_are_the_same_with_any_number_of_threads(
    fitted: LabelTrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    other = dataclasses.replace(Lexical(), seed=1)
    folders = [saved(model, tmp_path / name) for name, model in (("a", fitted), ("b", fit(TEXTS, TRUTH)))]
    one, two = ((folder / "forest.safetensors").read_bytes() for folder in folders)
    assert one == two
    assert (saved(fit(TEXTS, TRUTH, other), tmp_path / "c") / "forest.safetensors").read_bytes() != one


@pytest.mark.parametrize(("usual", "expected"), [(0, 0.125), (6, 0.125), (5, 0.125), (2, 0.05), (1, 0.025)])
def test_the_threshold_is_lower_if_documents_have_more_terms_than_usual(
    grown: list[Grown], usual: int, expected: float
) -> None:
    """Documents have five terms on average; label texts, which have one, do not count."""
    texts = ["a1 b1 c1 d1", "a1 b1 c1 d1 e1 f1", "a1 b1 c1 d1 e1"] * 4
    truth = LabelMatrix.from_pairs(np.arange(12), np.arange(12) % 3, (12, 3))
    settings = Lexical(terms=TermSettings(ngrams=1), trees=1, threshold=0.125, usual_terms=usual)
    model = fit(texts, truth, settings, label_texts=["a1", "b1", "c1"])
    assert [one.growth.threshold for one in grown] == [pytest.approx(expected)]
    assert model.settings == settings, "as it was declared"


def test_small_weights_are_kept_for_long_texts() -> None:
    """Of 30 words, a label has ten more often than others do; no weight is above 0.25."""
    rng = np.random.default_rng(0)
    of_doc = np.arange(60) % 3
    texts = [
        " ".join(f"w{word}" for word in range(30) if rng.random() < (0.9 if word % 3 == one else 0.6)) for one in of_doc
    ]
    truth = LabelMatrix.from_pairs(np.arange(60), of_doc, (60, 3))
    settings = Lexical(terms=TermSettings(ngrams=1), threshold=2.0)
    short, long = (fit(texts, truth, dataclasses.replace(settings, usual_terms=usual)) for usual in (30, 1))
    assert len(np.unique(shortlist(short, texts).scores_NK[:, :3])) == 1, "no weight is left"
    assert np.mean(shortlist(long, texts).ids_NK[:, 0] == of_doc) > 0.9


def test_a_label_that_no_document_has_is_found_by_its_own_text() -> None:
    rows = [row for row in WORLD.train if 4 not in row["target_ind"]]
    texts, settings = [f"{row['title']} {row['content']}" for row in rows], Lexical(terms=TermSettings(min_documents=1))
    plain, taught = (fit(texts, truth_of(rows), settings, label_texts=own) for own in (NO_LABEL_TEXTS, LABEL_TEXTS))
    text = ["glacier glacier0 glacier1"]
    assert shortlist(plain, text).ids_NK[0, 0] == PAD_ID
    assert shortlist(taught, text).ids_NK[0, 0] == 4
