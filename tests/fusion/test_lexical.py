"""The lexical score: TF-IDF as by loops, the same after a reload, nothing said of texts without a known word."""

from __future__ import annotations

import builtins
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOPICS, ToyWorld
from tests.naive import lexical as naive
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, CorruptError, DataError, MissingError
from xc_core.fusion import FusionConfig, Lexical, LexicalConfig, Query, Sources, feature_table
from xc_core.fusion.lexical import scores_of
from xc_core.recipes import RECIPES
from xc_core.shapes import PAD_ID, Shortlist

WORLD = ToyWorld.make()
TEXTS = [f"{row['title']} {row['content']}" for row in WORLD.train]
TESTS = [f"{row['title']} {row['content']}" for row in WORLD.test]


def truth_of(rows: list[dict[str, Any]], labels: int = len(TOPICS)) -> LabelMatrix:
    docs = np.repeat(np.arange(len(rows)), [len(row["target_ind"]) for row in rows])
    return LabelMatrix.from_pairs(docs, np.array([i for row in rows for i in row["target_ind"]]), (len(rows), labels))


TRUTH = truth_of(WORLD.train)


@pytest.fixture(scope="module")
def fitted() -> Lexical:
    return Lexical.fit(TEXTS, TRUTH, LexicalConfig())


def saved(model: Lexical, folder: Path) -> Path:
    folder.mkdir()
    model.save(folder)
    return folder


def test_it_learns_the_toy_world(fitted: Lexical) -> None:
    for ids, row in zip(fitted.shortlist(fitted.vectors(TESTS)).ids_NK.tolist(), WORLD.test, strict=True):
        assert sorted(ids[: len(row["target_ind"])]) == row["target_ind"]


def test_scores_are_shares_best_first_each_label_once_holes_last(fitted: Lexical) -> None:
    short = fitted.shortlist(fitted.vectors(TESTS))
    assert (short.ids_NK.dtype, short.scores_NK.dtype) == (np.int32, np.float32)
    assert short.ids_NK.shape == (len(TESTS), fitted.config.labels), "as wide for ten labels"
    for ids, scores, filled in zip(short.ids_NK, short.scores_NK, short.filled_NK, strict=True):
        assert len(set(ids[filled].tolist())) == filled.sum() == len(TOPICS)
        assert filled[: filled.sum()].all()
        assert (np.diff(scores[filled]) <= 0).all()
        assert ((scores[filled] > 0) & (scores[filled] <= 1)).all()
        assert (scores[~filled] == -np.inf).all()


def test_a_vector_is_that_of_loops_over_dictionaries(fitted: Lexical) -> None:
    known = naive.idf(TEXTS, fitted.config.min_documents)
    names = fitted.vectorizer.get_feature_names_out()
    assert sorted(names) == sorted(known)
    for text in [*TESTS[:10], "falcon0 falcon0 falcon0 Castle1 unheard", "", "a b c"]:
        row = fitted.vectors([text])
        found = {names[at]: value for at, value in zip(row.indices, row.data, strict=True)}
        assert found == pytest.approx(naive.vector(text, known), abs=1e-6)


def test_vectors_are_those_of_the_vectoriser_in_one_call_and_text_by_text(fitted: Lexical) -> None:
    texts = [*TESTS, "", "unheard", " ".join(TESTS)]
    theirs, ours = fitted.vectorizer.transform(texts), fitted.vectors(texts)
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-6)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    for at, text in enumerate(texts):
        np.testing.assert_array_equal(fitted.vectors([text]).toarray(), ours[[at]].toarray())


def test_a_score_is_the_mean_over_the_trees(fitted: Lexical) -> None:
    known = naive.idf(TEXTS, 2)
    columns = {term: at for at, term in enumerate(fitted.vectorizer.get_feature_names_out())}
    short = fitted.shortlist(fitted.vectors(TESTS[:5]))
    for text, ids, scores in zip(TESTS, short.ids_NK, short.scores_NK, strict=False):
        pairs = [(columns[term], value) for term, value in naive.vector(text, known).items()]
        expected = dict.fromkeys(range(len(TOPICS)), 0.0)
        for tree in fitted.trees:
            for label, score in tree.predict(pairs, fitted.config.beam, len(TOPICS)):
                expected[label] += score / len(fitted.trees)
        assert dict(zip(ids.tolist(), scores.tolist(), strict=True)) | {PAD_ID: 0} == pytest.approx(
            {**expected, PAD_ID: 0}, abs=1e-5
        )


@pytest.mark.parametrize("text", ["", " \t", "quixotic zeppelins", "a b c", "河", "\x00", "n239"])
def test_a_text_without_a_known_word_has_no_labels(fitted: Lexical, text: str) -> None:
    assert not fitted.shortlist(fitted.vectors([text])).filled_NK.any()


def test_no_texts_give_no_rows(fitted: Lexical) -> None:
    assert fitted.shortlist(fitted.vectors([])).ids_NK.shape == (0, fitted.config.labels)


def test_the_number_of_labels_is_kept(fitted: Lexical) -> None:
    few = Lexical(LexicalConfig(labels=3), fitted.num_labels, fitted.vectorizer, fitted.trees, fitted.labels_LT)
    cut, whole = few.shortlist(few.vectors(TESTS)), fitted.shortlist(fitted.vectors(TESTS)).top(3)
    np.testing.assert_array_equal(cut.ids_NK, whole.ids_NK)
    np.testing.assert_array_equal(cut.scores_NK, whole.scores_NK)


def test_what_is_saved_and_loaded_gives_the_same_scores_and_the_same_bytes(fitted: Lexical, tmp_path: Path) -> None:
    one = saved(fitted, tmp_path / "one")
    again = Lexical.load(one)
    for texts in (TESTS, ["falcon0"], [""]):
        ours, theirs = fitted.shortlist(fitted.vectors(texts)), again.shortlist(again.vectors(texts))
        np.testing.assert_array_equal(ours.ids_NK, theirs.ids_NK)
        np.testing.assert_array_equal(ours.scores_NK, theirs.scores_NK)
    before, after = fitted.vectors(TESTS), again.vectors(TESTS)
    assert (before != after).nnz == 0
    assert (again.config, again.num_labels) == (fitted.config, len(TOPICS))
    two = saved(again, tmp_path / "two")
    names = sorted(p.relative_to(one).as_posix() for p in one.rglob("*") if p.is_file())
    assert names == sorted(
        ["labels.safetensors", "lexical.json", "terms.parquet"]
        + [f"tree{i}/{name}" for i in range(3) for name in ("settings.json", "tree0.cbor")]
    )
    assert [name for name in names if (one / name).read_bytes() != (two / name).read_bytes()] == []


def test_threads_share_it(fitted: Lexical, tmp_path: Path) -> None:
    model = Lexical.load(saved(fitted, tmp_path / "one"))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: model.shortlist(model.vectors([text])).ids_NK[0].tolist(), TESTS * 3))
    assert found == fitted.shortlist(fitted.vectors(TESTS * 3)).ids_NK.tolist()


def test_nothing_is_said_on_either_output(fitted: Lexical, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = Lexical.load(saved(Lexical.fit(TEXTS, TRUTH, LexicalConfig(trees=1)), tmp_path / "one"))
    model.shortlist(model.vectors(TESTS))
    print("after")
    assert capfd.readouterr() == ("after\n", "")


@pytest.mark.parametrize("labels", [1, 2])
def test_one_label_or_two_are_enough(labels: int) -> None:
    held = LabelMatrix.from_pairs(np.arange(4), np.arange(4) % labels, (4, labels))
    model = Lexical.fit(["red red", "blue blue", "red sky", "blue sky"], held, LexicalConfig(trees=1))
    short = model.shortlist(model.vectors(["red"]))
    assert short.filled_NK.sum() == labels
    assert short.ids_NK[0, 0] == 0


def test_documents_that_teach_nothing_are_left_out() -> None:
    """One without a kept term, one without a label; omikuji itself would take them, or stop at them."""
    texts = ["red sky", "red sea", "unheard", "red sky"]
    held = LabelMatrix.from_pairs(np.array([0, 1, 2]), np.array([0, 1, 2]), (4, 3))
    model = Lexical.fit(texts, held, LexicalConfig(trees=1))
    short = model.shortlist(model.vectors(["red sky"]))
    assert 2 not in short.ids_NK
    assert short.ids_NK[0, 0] == 0


@pytest.mark.parametrize(
    ("texts", "held"),
    [(["one", "two"], True), (["", "a"], True), (["same words", "same words"], False), ([], True)],
)
def test_nothing_to_learn_from_is_an_error_that_says_what_to_do(texts: list[str], held: bool) -> None:
    docs = np.arange(len(texts) if held else 0)
    with pytest.raises(DataError, match=r"classifier\.lexical\.use=false"):
        Lexical.fit(texts, LabelMatrix.from_pairs(docs, docs, (len(texts), 2)), LexicalConfig())


def test_texts_and_labels_of_different_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="2 texts for 240 documents"):
        Lexical.fit(["a", "b"], TRUTH, LexicalConfig())


def test_training_leaves_nothing_in_its_scratch_folder(tmp_path: Path) -> None:
    Lexical.fit(TEXTS, TRUTH, LexicalConfig(trees=1), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("absent", ["omikuji", "sklearn"])
def test_a_package_that_is_not_installed_is_named(
    fitted: Lexical, absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own = saved(fitted, tmp_path / "one"), builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == absent:
            raise ImportError(name)
        return own(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for use in (lambda: Lexical.load(folder), lambda: Lexical.fit(TEXTS, TRUTH, LexicalConfig())):
        with pytest.raises(MissingError, match="no installed package") as caught:
            use()
        assert "pip install" in caught.value.do


def test_a_folder_without_one_or_with_parts_that_do_not_fit_is_refused(fitted: Lexical, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"lexical\.json"):
        Lexical.load(tmp_path)
    folder = saved(fitted, tmp_path / "one")
    shutil.copy(folder / "tree0" / "tree0.cbor", folder / "tree0" / "tree1.cbor")
    with pytest.raises(CorruptError, match=r"\[2, 1, 1\]"):
        Lexical.load(folder)
    shutil.rmtree(folder / "tree0")
    with pytest.raises(CorruptError, match=r"no .*tree0"):
        Lexical.load(folder)
    other = Lexical.fit(TEXTS[:50], TRUTH.rows(np.arange(50)), LexicalConfig(trees=1))
    mixed = saved(other, tmp_path / "mixed")
    shutil.copy(folder / "terms.parquet", mixed / "terms.parquet")
    with pytest.raises(CorruptError, match="terms a tree"):
        Lexical.load(mixed)


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


def query(model: Lexical | None, texts: list[str] | None) -> Query:
    table = np.eye(len(TOPICS), dtype=np.float32)
    return Query(table[:2], Sources(table, table, np.zeros(len(TOPICS), np.int64), lexical=model), texts)


def test_the_feature_is_the_score_of_each_candidate(fitted: Lexical) -> None:
    ids = np.tile(np.arange(-1, len(TOPICS), dtype=np.int32), (2, 1))
    found = feature_table(("lexical",), query(fitted, ["falcon0 falcon1", "unheard"]), ids)[..., 0]
    assert ids[0, found[0].argmax()] == TOPICS.index("falcon")
    assert (found[0, 0], found[1].tolist()) == (0.0, [0.0] * ids.shape[1])


def test_a_score_without_a_model_or_without_texts_is_an_error(fitted: Lexical) -> None:
    with pytest.raises(ConfigError, match="run the stage fusion"):
        feature_table(("lexical",), query(None, ["a", "b"]), np.zeros((2, 1), np.int32))
    for texts in (None, ["a"]):
        with pytest.raises(ValueError, match="texts for 2 documents"):
            feature_table(("lexical",), query(fitted, texts), np.zeros((2, 1), np.int32))


@pytest.mark.parametrize("name", ["terms", "trees", "clusters", "beam", "labels", "depth", "ngrams", "min_documents"])
def test_a_setting_below_its_bound_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        LexicalConfig(**{name: 0})


def test_a_fusion_that_wants_a_score_nobody_trains_is_refused() -> None:
    changes = {"fusion": {"add": ["classifier", "lexical"]}}
    with pytest.raises(ConfigError, match=r"classifier\.lexical\.use = true"):
        RECIPES["ngame"].changed(changes)
    trained = RECIPES["ngame"].changed({**changes, "classifier": {"lexical": {"use": True}}})
    assert "lexical" in trained.fusion.needed
    assert "lexical" in FusionConfig(features=("lexical",), add=("classifier",)).needed
    with pytest.raises(ConfigError):
        RECIPES["house"].changed({"classifier": {"lexical": {"use": False}}})


LABEL_TEXTS = [f"{label['title']} {label['content']}" for label in WORLD.labels]


@pytest.fixture(scope="module")
def matching() -> Lexical:
    return Lexical.fit(TEXTS, TRUTH, LexicalConfig(), label_texts=LABEL_TEXTS)


@pytest.mark.parametrize("together", [7, 64])
def test_a_match_is_the_cosine_of_both_texts_terms_as_by_loops(
    matching: Lexical, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xc_core.fusion.lexical._TOGETHER", together)
    known = naive.idf(TEXTS + LABEL_TEXTS, 2)
    ids = np.random.default_rng(0).integers(-1, len(TOPICS), (len(TESTS), 150)).astype(np.int32)
    found = matching.matches(matching.vectors(TESTS), ids)
    assert found.dtype == np.float32
    labels = [naive.vector(text, known) for text in LABEL_TEXTS]
    for text, row, scores in zip(TESTS, ids.tolist(), found.tolist(), strict=True):
        own = naive.vector(text, known)
        for label, score in zip(row, scores, strict=True):
            expected = 0.0 if label < 0 else sum(value * labels[label].get(term, 0.0) for term, value in own.items())
            assert score == pytest.approx(expected, abs=1e-6)


def test_matches_survive_the_file_and_are_zero_without_label_texts(
    matching: Lexical, fitted: Lexical, tmp_path: Path
) -> None:
    ids = np.tile(np.arange(len(TOPICS), dtype=np.int32), (len(TESTS), 1))
    again = Lexical.load(saved(matching, tmp_path / "x"))
    found = matching.matches(matching.vectors(TESTS), ids)
    np.testing.assert_array_equal(again.matches(again.vectors(TESTS), ids), found)
    assert not fitted.matches(fitted.vectors(TESTS), ids).any()
    assert matching.matches(matching.vectors([]), ids[:0]).shape == (0, len(TOPICS))


def test_a_label_that_no_document_has_is_found_by_its_own_text() -> None:
    rows = [row for row in WORLD.train if 4 not in row["target_ind"]]
    texts, config = [f"{row['title']} {row['content']}" for row in rows], LexicalConfig(min_documents=1)
    plain, taught = (Lexical.fit(texts, truth_of(rows), config, label_texts=given) for given in (None, LABEL_TEXTS))
    asked = ["glacier glacier0 glacier1"]
    assert plain.shortlist(plain.vectors(asked)).ids_NK[0, 0] == PAD_ID
    assert taught.shortlist(taught.vectors(asked)).ids_NK[0, 0] == 4


def test_label_texts_of_other_labels_are_refused_at_load(matching: Lexical, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = saved(matching, tmp_path / "x")
    parts = load_file(folder / "labels.safetensors")
    save_file({**parts, "indptr": parts["indptr"][:-1].copy()}, folder / "labels.safetensors")
    with pytest.raises(CorruptError, match="9 labels"):
        Lexical.load(folder)
    (folder / "labels.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"no .*labels\.safetensors"):
        Lexical.load(folder)
