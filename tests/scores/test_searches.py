"""A recipe needs a score that proposes candidates; one without is refused before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from xc_core.errors import ConfigError
from xc_core.recipes import RECIPES


@pytest.mark.parametrize(
    "scores",
    [
        ["frequency"],
        {"classifier": None, "label_text": {"search": False}},
        {"label_words": {}, "label_text": None, "classifier": None},
    ],
)
def test_a_recipe_whose_scores_propose_nothing_is_refused(scores: Any) -> None:
    with pytest.raises(ConfigError, match="propose no candidates"):
        RECIPES["ngame"].changed({"scores": scores})


def test_one_score_that_searches_is_enough() -> None:
    changed = RECIPES["ngame"].changed({"scores": {"label_text": {"search": False}}})
    assert [name for name, score in changed.scores.items() if score.searches] == ["classifier"]
