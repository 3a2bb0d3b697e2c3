"""Answers with reasons: the labels of a plain prediction, whoever shares the pass; parts sum to the score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import TOPICS, ToyWorld
from xc_core.errors import UsageError
from xc_core.fusion.by_sum import BySum
from xc_core.fusion.rules import Sum
from xc_core.infer.explained import Explained, Question, explained
from xc_core.infer.predictor import Predictor
from xc_core.infer.ranker import candidates
from xc_core.scores import Query
from xc_core.scores.frequency import PerLabel
from xc_core.shapes import F32, F64

TEXTS = tuple(f"{row['title']} {row['content']}" for row in ToyWorld.make().test)[:12]


def uids(answer: list[Explained]) -> list[str]:
    return [label.uid for label in answer]


def scores(answer: list[Explained]) -> list[float]:
    return [label.score for label in answer]


def test_labels_titles_and_scores_are_those_of_a_prediction(predictor: Predictor) -> None:
    (found,) = explained(predictor, [Question(TEXTS, k=4)])
    for labels, expected in zip(found, predictor.predict(list(TEXTS), 4), strict=True):
        assert [(one.label, one.uid, one.title) for one in labels] == [(e.label, e.uid, e.title) for e in expected]
        np.testing.assert_allclose(scores(labels), [e.score for e in expected], atol=1e-6)
        assert [one.probability for one in labels] == pytest.approx([e.probability for e in expected], abs=1e-5)


def test_each_question_has_its_own_least_probability(predictor: Predictor) -> None:
    questions = [Question(TEXTS[:4], k=10, min_probability=least) for least in (0.0, 0.3, 0.9999)]
    every, likely, none = explained(predictor, questions)
    found = predictor.predict(list(TEXTS[:4]), 10)
    assert [uids(one) for one in every] == [[label.uid for label in one] for one in found]
    expected = [[label.uid for label in one if (label.probability or 0) >= 0.3] for one in found]
    assert [uids(one) for one in likely] == expected
    assert 0 < sum(map(len, likely)) < sum(map(len, every))
    assert none == [[]] * 4
    only = frozenset({0, 9})
    ((limited,),) = explained(predictor, [Question(TEXTS[:1], k=10, only=only, min_probability=1e-6)])
    assert {label.label for label in limited} <= only


@pytest.mark.parametrize("tail", [None, 0.0, 0.5])
def test_probabilities_are_those_of_a_prediction_at_each_position(rare: Predictor, tail: float | None) -> None:
    """Unlikely labels are left out before the first k are taken."""
    (found,) = explained(rare, [Question(TEXTS, k=2, tail=tail, min_probability=0.2)])
    for labels, expected in zip(found, rare.predict(list(TEXTS), 2, tail, 0.2), strict=True):
        assert [one.label for one in labels] == [one.label for one in expected]
        assert [one.probability for one in labels] == pytest.approx([one.probability for one in expected], abs=1e-5)


def test_questions_that_share_a_pass_differ_in_everything_else_and_get_their_own_answers(predictor: Predictor) -> None:
    questions = [
        Question(TEXTS[:1], k=1),
        Question(TEXTS[1:4], k=2, exclude=frozenset({1, 2, 3})),
        Question(TEXTS[4:5], k=10, only=frozenset({0, 9})),
        Question(TEXTS[5:8], k=3, tail=0.0),
        Question(("falcon0 " * 5000,), k=2),
        Question(TEXTS[8:], k=5, tail=1.0),
    ]
    together = explained(predictor, questions)
    assert [[len(one) for one in answers] for answers in together] == [[1], [2] * 3, [2], [3] * 3, [2], [5] * 4]
    for question, shared in zip(questions, together, strict=True):
        (alone,) = explained(predictor, [question])
        assert [uids(one) for one in shared] == [uids(one) for one in alone]
        for one, other in zip(shared, alone, strict=True):
            np.testing.assert_allclose(scores(one), scores(other), atol=1e-6)
            assert [r.rank for label in one for r in label.reasons] == [
                r.rank for label in other for r in label.reasons
            ]


def test_the_order_in_a_pass_changes_nothing(predictor: Predictor) -> None:
    questions = [Question((text,), k=3) for text in TEXTS]
    forth, back = explained(predictor, questions), explained(predictor, questions[::-1])[::-1]
    assert [uids(one[0]) for one in forth] == [uids(one[0]) for one in back]


@pytest.mark.parametrize("tail", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("rule", ["tree", "sum", "weighted", "logarithms"])
def test_the_parts_sum_to_the_score(predictor: Predictor, tail: float | None, rule: str) -> None:
    fusion = predictor.ranker.fusion
    if rule == "sum":
        fusion = replace(fusion, rule=Sum(), tree=None, weights=())
    elif rule in ("weighted", "logarithms"):
        weights = tuple(0.3 + place for place in range(len(fusion.names)))
        logs = fusion.names[:2] if rule == "logarithms" else ()
        fusion = replace(fusion, add=fusion.names, weights=weights, logarithms=logs)
    predictor = replace(predictor, ranker=replace(predictor.ranker, fusion=fusion))
    (answers,) = explained(predictor, [Question(TEXTS, k=5, tail=tail)])
    for label in (label for answer in answers for label in answer):
        assert [reason.score for reason in label.reasons] == list(fusion.names)
        assert (label.trees is None) == (rule == "sum")
        if rule in ("weighted", "logarithms"):
            for reason, weight in zip(label.reasons, weights, strict=True):
                read = np.log(max(reason.value, 1e-4)) if reason.score in fusion.logarithms else reason.value
                assert reason.adds == pytest.approx(weight * read, rel=1e-5)
        parts = [reason.adds or 0.0 for reason in label.reasons]
        assert sum(parts) + (label.trees or 0.0) + label.dial == pytest.approx(label.score, abs=1e-5)
        if tail == 0.0:
            assert label.dial == 0.0


def test_a_reason_has_the_value_of_its_score_and_its_rank_among_the_candidates(predictor: Predictor) -> None:
    """With k of 10 an answer has all candidates; ranks are counted again among them."""
    (answers,) = explained(predictor, [Question(TEXTS, k=10)])
    query = Query(predictor.embed(list(TEXTS)), list(TEXTS))
    for column, (name, score) in enumerate(predictor.ranker.scores.items()):
        values_NL = score.values(query, np.tile(np.arange(10, dtype=np.int32), (len(TEXTS), 1)))
        for row, answer in enumerate(answers):
            for label in answer:
                reason = label.reasons[column]
                assert reason.score == name
                assert reason.value == pytest.approx(float(values_NL[row, label.label]), abs=1e-5)
                better = sum(other.reasons[column].value > reason.value for other in answer)  # type: ignore[operator]
                assert reason.rank == 1 + better


def test_a_score_that_the_fusion_does_not_add_adds_nothing(predictor: Predictor) -> None:
    fusion = predictor.ranker.fusion
    less = replace(
        predictor, ranker=replace(predictor.ranker, fusion=replace(fusion, add=fusion.add[:1], weights=(1.0,)))
    )
    ((answer,),) = explained(less, [Question(TEXTS[:1], k=1)])
    assert [reason.score for reason in answer[0].reasons if reason.adds is not None] == [fusion.add[0]]


def test_excluded_labels_make_space_for_the_next(predictor: Predictor) -> None:
    ((plain,),) = explained(predictor, [Question(TEXTS[:1], k=5)])
    ((filtered,),) = explained(
        predictor, [Question(TEXTS[:1], k=3, exclude=frozenset({plain[0].label, plain[2].label}))]
    )
    assert uids(filtered) == [plain[1].uid, plain[3].uid, plain[4].uid]


def narrow(predictor: Predictor, candidates: int) -> Predictor:
    """Return a predictor whose scores propose so many labels each."""
    fusion = replace(predictor.ranker.fusion, candidates=candidates)
    return replace(predictor, ranker=replace(predictor.ranker, fusion=fusion))


@pytest.mark.parametrize("left", [1, 2, 6])
def test_labels_that_no_score_proposed_take_the_places_of_excluded_ones(predictor: Predictor, left: int) -> None:
    """The answer was empty, or too short, if nearly all candidates were excluded."""
    asked = narrow(predictor, 2)
    ((plain,), (ranked,)) = explained(asked, [
        Question(TEXTS[:1], k=10), Question(TEXTS[:1], k=10, only=frozenset(range(len(TOPICS))))
    ])  # fmt: skip
    proposed = {one.label for one in plain}
    assert len(proposed) < len(TOPICS) - 1
    rest = [one for one in ranked if one.label not in proposed][-left:]
    exclude = frozenset(range(len(TOPICS))) - {one.label for one in rest}
    questions = [Question(TEXTS[:1], k=10, exclude=exclude), Question(TEXTS[1:3], k=2)]
    ((found,), others) = explained(asked, questions)
    assert [one.label for one in found] == [one.label for one in rest][: len(proposed)]
    assert scores(found) == pytest.approx(scores(rest)[: len(proposed)], abs=1e-6)
    assert [uids(one) for one in others] == [uids(one) for one in explained(asked, [Question(TEXTS[1:3], k=2)])[0]]


def test_the_next_best_labels_are_searched_for_if_there_are_too_many_to_rank_all(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xc_core.infer.explained.MOST_RANKED", 0)
    asked = narrow(predictor, 1)
    ((plain,), (ranked,)) = explained(asked, [
        Question(TEXTS[:1], k=10), Question(TEXTS[:1], k=10, only=frozenset(range(len(TOPICS))))
    ])  # fmt: skip
    ((found,),) = explained(asked, [Question(TEXTS[:1], k=1, exclude=frozenset(one.label for one in plain))])
    (best,) = [one.label for one in ranked if one.label not in {one.label for one in plain}][:1]
    assert [one.label for one in found] == [best]


@pytest.mark.parametrize("dial", [True, False])
def test_frequent_labels_take_the_places_if_a_wider_search_finds_no_more(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, dial: bool
) -> None:
    """Label trees propose the same labels if asked for more: an answer without the best 200 labels was empty."""
    monkeypatch.setattr("xc_core.infer.explained.candidates", lambda scores, query, k: candidates(scores, query, 2))
    asked = narrow(predictor, 2)
    fusion = asked.ranker.fusion
    assert fusion.dial is not None
    rare = replace(fusion.dial, log_weight_L=np.array([2, 0, 1, 3, 4, 5, 6, 7, 8, 9], np.float32))
    asked = replace(asked, ranker=replace(asked.ranker, fusion=replace(fusion, dial=rare if dial else None)))
    every = frozenset(range(len(TOPICS)))
    for text in TEXTS:
        ((plain,), (ranked,)) = explained(asked, [Question((text,), k=10), Question((text,), k=10, only=every)])
        exclude = frozenset(one.label for one in plain)
        rest = [one.label for one in ranked if one.label not in exclude]
        frequent = [label for label in ((1, 2, 0, *range(3, 10)) if dial else range(10)) if label not in exclude]
        for most in (3, 9):
            monkeypatch.setattr("xc_core.infer.explained.MOST_RANKED", most)
            ((found,),) = explained(asked, [Question((text,), k=2, exclude=exclude)])
            assert [one.label for one in found] == [label for label in rest if label in frequent[:most]][:2]
        ((found,),) = explained(asked, [Question((text,), k=2, exclude=every - {rest[-1]})])
        assert [one.label for one in found] == rest[-1:]
        ((found,),) = explained(asked, [Question((text,), k=2, exclude=frozenset([plain[0].label]))])
        assert len(found) == 2, "one of the labels that were proposed is left, which is too few"


def test_the_next_best_of_all_labels_take_the_places_not_those_of_a_wider_search(predictor: Predictor) -> None:
    asked, every = narrow(predictor, 1), frozenset(range(len(TOPICS)))
    for text in TEXTS:
        ((plain,), (ranked,)) = explained(asked, [Question((text,), k=10), Question((text,), k=10, only=every)])
        for one in plain:
            ((found,),) = explained(asked, [Question((text,), k=10, exclude=frozenset({one.label}))])
            rest = [other.label for other in ranked if other.label != one.label]
            assert [other.label for other in found] == rest[: len(plain)]


def test_an_answer_is_no_longer_with_a_filter_than_without(predictor: Predictor) -> None:
    asked = narrow(predictor, 1)
    ((plain,),) = explained(asked, [Question(TEXTS[:1], k=10)])
    ((found,),) = explained(asked, [Question(TEXTS[:1], k=10, exclude=frozenset({plain[0].label}))])
    assert 0 < len(found) == len(plain) < 9
    absent = next(label for label in range(len(TOPICS)) if label not in [one.label for one in plain])
    ((same,),) = explained(asked, [Question(TEXTS[:1], k=10, exclude=frozenset({absent}))])
    assert same == plain


def test_only_ranks_labels_that_no_score_proposed(predictor: Predictor) -> None:
    fusion = replace(predictor.ranker.fusion, candidates=1)
    narrow = replace(predictor, ranker=replace(predictor.ranker, fusion=fusion))
    ((plain,),) = explained(narrow, [Question(TEXTS[:1], k=10)])
    absent = next(label for label in range(len(TOPICS)) if label not in [one.label for one in plain])
    ((found,),) = explained(narrow, [Question(TEXTS[:1], k=10, only=frozenset({absent, plain[0].label}))])
    assert [one.label for one in found] == [plain[0].label, absent]
    assert found[0].score == pytest.approx(plain[0].score, abs=1e-6)


def test_a_proposed_label_has_the_same_score_whatever_the_question_is_limited_to(predictor: Predictor) -> None:
    """Trees that read the number of candidates would otherwise see the labels that were asked for."""
    fusion, seen = predictor.ranker.fusion, []

    class Counting:
        def predict(self, features_MG: F32) -> F64:
            seen.append(len(features_MG))
            return np.full(len(features_MG), float(len(features_MG)))

    own = replace(fusion, candidates=2, dial=None, derived=True, features=fusion.names, tree=Counting())
    counting = replace(predictor, ranker=replace(predictor.ranker, fusion=own))
    ((plain,),) = explained(counting, [Question(TEXTS[:1], k=10)])
    known = {one.label: one.score for one in plain}
    others = frozenset(range(len(TOPICS))) - known.keys()
    assert len(others) > 2
    ((found,),) = explained(counting, [Question(TEXTS[:1], k=10, only=others | {plain[0].label})])
    assert {one.label for one in found} == others | {plain[0].label}
    assert next(one.score for one in found if one.label == plain[0].label) == pytest.approx(plain[0].score)
    assert seen == [len(known), len(TOPICS), len(known)]


def test_a_tail_without_a_dial_is_refused(predictor: Predictor) -> None:
    plain = replace(predictor, ranker=replace(predictor.ranker, fusion=replace(predictor.ranker.fusion, dial=None)))
    assert explained(plain, [Question(TEXTS[:1], k=1, tail=0.0)])
    with pytest.raises(UsageError, match="without a dial"):
        explained(plain, [Question(TEXTS[:1], tail=0.5)])
    with pytest.raises(UsageError, match=r"tail 1\.5"):
        explained(predictor, [Question(TEXTS[:1], tail=1.5)])
    with pytest.raises(UsageError, match="min_probability"):
        explained(plain, [Question(TEXTS[:1], min_probability=0.5)])
    (((label,),),) = explained(plain, [Question(TEXTS[:1], k=1)])
    assert label.probability is None


def test_no_questions_have_no_answers(predictor: Predictor) -> None:
    assert explained(predictor, []) == []
    assert explained(predictor, [Question(())]) == [[]]


@pytest.mark.parametrize("tail", [0.0, 1.0])
def test_points_that_raise_a_label_without_train_documents_are_a_part_of_their_own(
    predictor: Predictor, tail: float
) -> None:
    """The trees keep their part, and only such a label has the points."""
    frequency = predictor.ranker.scores["frequency"]
    assert isinstance(frequency, PerLabel)
    none_of_3 = replace(frequency, value_L=np.where(np.arange(len(frequency.value_L)) == 3, 0, frequency.value_L))
    ranker = replace(predictor.ranker, scores={**predictor.ranker.scores, "frequency": none_of_3})
    fusion = replace(ranker.fusion, candidates=10)
    raising = replace(fusion, by_sum=BySum("frequency", np.array([-9.0, 9.0]), np.array([1.0, 19.0])))
    without, with_it = (
        explained(replace(predictor, ranker=replace(ranker, fusion=rule)), [Question(TEXTS, k=10, tail=tail)])[0]
        for rule in (fusion, raising)
    )
    for bare, answer in zip(without, with_it, strict=True):
        others = {label.label: label for label in bare}
        for label in answer:
            adds = sum(reason.adds or 0.0 for reason in label.reasons)
            assert adds + (label.trees or 0.0) + label.by_sum + label.dial == pytest.approx(label.score, abs=1e-5)
            assert label.reasons == others[label.label].reasons
            assert label.trees == pytest.approx(others[label.label].trees, abs=1e-5)
            assert (label.by_sum > 0) == (label.label == 3)
        assert all(label.by_sum == 0 for label in bare)
        raised = next(label for label in answer if label.label == 3)
        plain_sum = sum(reason.value for reason in raised.reasons if reason.score != "frequency")
        assert raised.score - raised.dial == pytest.approx(10 + plain_sum, abs=1e-4)
