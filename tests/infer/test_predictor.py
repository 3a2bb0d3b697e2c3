"""A packed model answers any text correctly, the same alone or in a batch, and refuses wrong arguments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import TOPICS, ToyWorld
from xc_core.chain import Workspace
from xc_core.errors import UsageError
from xc_core.infer.predictor import Prediction, Predictor, latencies_ms
from xc_core.metrics.evaluation import Evaluation
from xc_core.shapes import PAD_ID

TESTS = ToyWorld.make().test
TEXTS = [f"{row['title']} {row['content']}" for row in TESTS]
ODD = {
    "empty": "",
    "blank": " \t\r\n",
    "zero byte": "\x00",
    "no known word": "quixotic zeppelins",
    "other scripts": "река 河 نهر नदी",
    "emoji": "🦅" * 50,
    "combining": "e\u0301" * 50,
    "right to left mark": "\u202efalcon0",
    "private use and unassigned": "\ue000\U0010ffff",
    "format string": "{0.__class__} %s %(a)s $HOME `ls`",
    "very long": "falcon0 " * 20_000,
    "one long word": "x" * 200_000,
}


def test_only_the_first_characters_of_a_text_are_read(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("data.beginning", "scores.base"):
        monkeypatch.setattr(f"xc_core.{module}.MAX_CHARS", 8)
    whole, beginning, other = predictor.predict(["falcon0 castle0 castle1", "falcon0 ", "castle0 castle1"], 3)
    assert whole == beginning != other


@pytest.mark.parametrize("text", [*TOPICS, *(f"{topic}0 {topic}1" for topic in TOPICS), *map(str.upper, TOPICS)])
def test_a_label_is_found_by_its_name_and_by_its_words(predictor: Predictor, text: str) -> None:
    (found,) = predictor.predict([text], 1)
    assert [label.title for label in found] == [text.split()[0].lower().rstrip("0")]


def test_the_served_model_has_the_metrics_of_the_evaluation(predictor: Predictor, trained: Workspace) -> None:
    """P@1 and P@5 of the test texts, sent in one call, equal those of the evaluation to the last digit."""
    measured = Evaluation.open(trained.folder("evaluation", "toy", "ngame")).metrics
    answers = predictor.predict(TEXTS, 5)
    for k in (1, 5):
        hits = [
            len({label.label for label in found[:k]} & set(row["target_ind"]))
            for found, row in zip(answers, TESTS, strict=True)
        ]
        assert 100 * sum(hits) / (k * len(hits)) == pytest.approx(measured[f"P_at_{k}"], abs=1e-9)


def test_a_prediction_names_its_label(predictor: Predictor) -> None:
    for found in predictor.predict(TEXTS[:5], 5):
        assert len({label.label for label in found}) == len(found) == 5
        assert [label.score for label in found] == sorted((label.score for label in found), reverse=True)
        for label in found:
            assert (label.uid, label.title) == (f"L{label.label}", TOPICS[label.label])
            assert isinstance(label, Prediction)
            assert (type(label.label), type(label.score)) == (int, float)


def test_the_dial_moves_no_candidate_in_or_out_and_0_is_the_order_of_the_fusion(predictor: Predictor) -> None:
    """The toy has ten labels, all candidates."""
    dial = predictor.ranker.fusion.dial
    assert dial is not None
    turned = replace(
        predictor.ranker.fusion, dial=replace(dial, reach=1.0, log_weight_L=np.arange(10, dtype=np.float32))
    )
    other = replace(predictor, ranker=replace(predictor.ranker, fusion=turned))
    own, low, high = (one.shortlist(TEXTS, 10, tail) for one, tail in ((predictor, None), (other, 0.0), (other, 1.0)))
    np.testing.assert_array_equal(low.ids_NK, own.ids_NK)
    assert not np.array_equal(high.ids_NK, own.ids_NK)
    np.testing.assert_array_equal(np.sort(high.ids_NK), np.sort(own.ids_NK))
    assert float((high.ids_NK[:, :3]).mean()) > float(own.ids_NK[:, :3].mean()), "labels of high weight come first"


@pytest.mark.parametrize("tail", [-0.5, 2, float("nan"), "1"])
def test_a_position_that_the_dial_does_not_have_is_refused(predictor: Predictor, tail: float) -> None:
    for texts in (TEXTS, []):
        for asked in (predictor.predict, predictor.shortlist):
            with pytest.raises(UsageError, match="tail"):
                asked(texts, 5, tail=tail)


def test_a_position_that_is_asked_for_changes_no_probability(rare: Predictor) -> None:
    at_default, at_half = rare.predict(TEXTS, 10), rare.predict(TEXTS, 10, 0.5)
    for own, other in zip(at_half, at_default, strict=True):
        known = {one.label: one.probability for one in other}
        assert [one.probability for one in own] == pytest.approx([known[one.label] for one in own], abs=1e-5)
    least = 0.2
    likely = [[one for one in answer if one.probability >= least] for answer in at_half]  # type: ignore[operator]
    assert rare.predict(TEXTS, 10, 0.5, least) == likely
    assert at_half != likely


def test_a_least_probability_leaves_out_labels_before_the_first_k_are_taken(
    predictor: Predictor, rare: Predictor
) -> None:
    """The dial may put an unlikely label before a likely one."""
    every, likely = rare.predict(TEXTS, 10), rare.predict(TEXTS, 2, min_probability=0.2)
    assert likely == [[one for one in answer if one.probability >= 0.2][:2] for answer in every]  # type: ignore[operator]
    assert likely != [[one for one in answer[:2] if one.probability >= 0.2] for answer in every]  # type: ignore[operator]
    assert all(type(one.probability) is float and 0 < one.probability < 1 for answer in every for one in answer)
    first = predictor.predict(TEXTS, 10, 0.0)
    for own, other in zip(first, every, strict=True):
        known = {one.label: one.probability for one in other}
        assert [one.probability for one in own] == pytest.approx([known[one.label] for one in own], abs=1e-5)
        assert np.all(np.diff([one.probability for one in own]) <= 1e-6), "in the order of the score at dial 0"


def test_a_model_without_a_dial_has_no_probabilities(predictor: Predictor) -> None:
    fusion = replace(predictor.ranker.fusion, dial=None)
    plain = replace(predictor, ranker=replace(predictor.ranker, fusion=fusion))
    assert {one.probability for answer in plain.predict(TEXTS, 3) for one in answer} == {None}
    assert plain.predict(TEXTS, 3, min_probability=0) == plain.predict(TEXTS, 3)
    for texts in (TEXTS, []):
        with pytest.raises(UsageError, match=r"min_probability 0\.5 for a fusion without a dial"):
            plain.predict(texts, 3, min_probability=0.5)
        with pytest.raises(UsageError, match="min_probability 50"):
            predictor.predict(texts, 3, min_probability=50)


def test_a_text_gets_the_same_answer_alone_and_in_a_batch(predictor: Predictor) -> None:
    """Also beside a long text, to whose length it is padded, and in another order."""
    crowd = [*TEXTS, ODD["very long"], ""]
    together, turned = predictor.shortlist(crowd, 5), predictor.shortlist(crowd[::-1], 5)
    np.testing.assert_array_equal(turned.ids_NK[::-1], together.ids_NK)
    for at, text in enumerate(crowd):
        alone = predictor.shortlist([text], 5)
        np.testing.assert_array_equal(alone.ids_NK[0], together.ids_NK[at])
        np.testing.assert_allclose(alone.scores_NK[0], together.scores_NK[at], atol=1e-6)


def test_threads_share_a_predictor(predictor: Predictor) -> None:
    expected = predictor.predict(TEXTS, 3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: predictor.predict([text], 3)[0], TEXTS * 3))
    assert [[label.label for label in row] for row in found] == [[label.label for label in row] for row in expected] * 3


def test_a_few_texts_are_predicted_before_the_clock_starts() -> None:
    asked: list[str] = []
    texts = [str(number) for number in range(7)]
    stub: Any = SimpleNamespace(shortlist=lambda texts, k: asked.extend(texts))
    times = latencies_ms(stub, texts)
    assert len(times) == 7 and min(times) > 0
    assert asked[-7:] == texts and asked[:-7] == texts[: len(asked) - 7] != []


def test_predicting_changes_nothing(predictor: Predictor) -> None:
    before = {name: value.clone() for name, value in predictor.encoder.state_dict().items()}
    assert predictor.predict(TEXTS, 3) == predictor.predict(TEXTS, 3)
    assert not predictor.encoder.training
    assert all(bool((value == before[name]).all()) for name, value in predictor.encoder.state_dict().items())


@pytest.mark.parametrize("k", [1, 2, 9, 10, 11, 1000, 10**12])
def test_k_is_kept_and_never_more_than_there_are_labels(predictor: Predictor, k: int) -> None:
    short = predictor.shortlist(TEXTS[:3], k)
    assert short.ids_NK.shape == (3, min(k, len(TOPICS)))
    for row, ids in zip(predictor.predict(TEXTS[:3], k), short.ids_NK, strict=True):
        assert [label.label for label in row] == ids[ids != PAD_ID].tolist()
        assert 1 <= len(row) <= min(k, len(TOPICS))


def test_a_larger_k_only_adds_at_the_end(predictor: Predictor) -> None:
    many = predictor.predict(TEXTS, 10)
    for k in (1, 3):
        assert predictor.predict(TEXTS, k) == [row[:k] for row in many]


def test_no_texts_give_no_answers(predictor: Predictor) -> None:
    assert predictor.predict([], 5) == []
    assert predictor.shortlist([], 5).ids_NK.shape == (0, 5)
    assert predictor.embed([]).shape[0] == 0
    with pytest.raises(UsageError, match="tail 2"):
        predictor.predict([], 5, tail=2.0)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_text_gets_an_answer_like_any_other(predictor: Predictor, name: str) -> None:
    (found,) = predictor.predict([ODD[name]], 3)
    assert len(found) == 3
    assert all(np.isfinite(label.score) for label in found)


def test_invisible_characters_case_and_spaces_change_no_answer(predictor: Predictor) -> None:
    plain = predictor.predict(["falcon0 castle1"], 2)
    for text in ("\u202efalcon0 castle1", "falcon0\tcastle1\n", "  FALCON0   Castle1  ", "falcon0\u00a0castle1"):
        assert predictor.predict([text], 2) == plain


@settings(deadline=None, max_examples=50)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=5))
def test_any_text_at_all_is_answered(predictor: Predictor, texts: list[str]) -> None:
    found = predictor.predict(texts, 2)
    assert [len(row) for row in found] == [2] * len(texts)


@pytest.mark.parametrize("k", [0, -1, True, False, 2.0, 2.5, "5", None, float("nan")])
def test_a_k_that_is_no_whole_number_above_zero_is_refused(predictor: Predictor, k: Any) -> None:
    with pytest.raises(UsageError) as caught:
        predictor.predict(["a"], k)
    assert str(caught.value) == f"found k {k!r}\n  expected: a whole number, at least 1\n  do this:  fix k"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ("falcon", "a str of texts"),
        (b"falcon", "a bytes of texts"),
        (("falcon",), "a tuple of texts"),
        (None, "a NoneType of texts"),
        ({"falcon": 1}, "a dict of texts"),
        (["falcon", None], "text 2 of type NoneType"),
        ([3], "text 1 of type int"),
        ([b"falcon"], "text 1 of type bytes"),
        ([["falcon"]], "text 1 of type list"),
        (["falcon", "ab\ud800"], r"half a character (U+D800) as character 3 of text 2"),
    ],
)
def test_anything_but_a_list_of_texts_is_refused(predictor: Predictor, texts: Any, found: str) -> None:
    with pytest.raises(UsageError) as caught:
        predictor.predict(texts, 3)
    assert caught.value.found == found
    assert caught.value.expected and caught.value.do


def test_a_string_is_not_embedded_character_by_character(predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="a str of texts"):
        predictor.embed("falcon")  # type: ignore[arg-type]
