"""The recipe words: the scores by words and by their parts under a fitted fusion, and no encoder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import ToyWorld
from tests.recipes.test_bonsai import made_without_training
from tests.stages.halves import open_corpus, open_tables
from xc_core.chain import Workspace
from xc_core.data.folds import folds
from xc_core.fusion import FittedFusion
from xc_core.infer.bundle import open_predictor
from xc_core.metrics.evaluation import Evaluation
from xc_core.pretrained import FROM_CORPUS
from xc_core.recipes import RECIPES
from xc_core.scores import LabelWords, Lexical

WORDS, HOUSE = RECIPES["words"], RECIPES["house"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return made_without_training(tmp_path_factory.mktemp("words"), "words")


def test_its_scores_are_those_of_house_by_words_and_the_same_by_parts_of_words() -> None:
    lexical, label_words = HOUSE.scores["lexical"], HOUSE.scores["label_words"]
    assert isinstance(lexical, Lexical)
    assert isinstance(label_words, LabelWords)
    assert WORDS.scores["lexical"] == lexical
    assert WORDS.scores["label_words"] == label_words
    parts = replace(lexical.terms, characters=4)
    for name, like in (("characters", lexical), ("label_characters", label_words)):
        assert vars(WORDS.scores[name]) == vars(like) | {"terms": parts}, name
    assert set(WORDS.scores) == {"frequency", "lexical", "characters", "label_words", "label_characters"}
    assert WORDS.fusion == HOUSE.fusion


def test_nothing_but_words_is_learnt_from(made: Workspace) -> None:
    """The encoder is that of bonsai; neither it nor a row is trained, and no score reads a vector."""
    assert WORDS.encoder == RECIPES["bonsai"].encoder
    assert (WORDS.encoder.epochs, WORDS.classifier.epochs, WORDS.negatives.k) == (0, 0, 0)
    assert WORDS.encoder.encoder.tokenizer == FROM_CORPUS
    learnt = Evaluation.open(made.folder("evaluation", "toy", "words")).learnt.words()
    assert (learnt["encoder"], learnt["classifier"]) == ("not trained", "not trained")


def test_the_fusion_is_fitted_on_all_validation_documents_of_small_data(made: Workspace) -> None:
    corpus = open_corpus(made)
    assert open_tables(made, "words").folds == folds(corpus, refit=True, enough=HOUSE.classifier.enough)
    assert FittedFusion.open(made.folder("fusion", "toy", "words")).rule.learns


def test_it_answers_words_that_no_document_has_by_their_parts(made: Workspace) -> None:
    assert Evaluation.open(made.folder("evaluation", "toy", "words")).metrics["P_at_1"] >= 90
    packed = open_predictor(made.folder("model", "toy", "words"))
    found = packed.predict(["castle0 castle1", "oldcastles", "", ToyWorld.make().test[0]["title"]], 1)
    assert [labels[0].title if labels else None for labels in found[:3]] == ["castle", "castle", None]
    assert found[3]
