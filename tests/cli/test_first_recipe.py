"""The recipe to train first has one name, which hints, help and pages repeat."""

from __future__ import annotations

import re

import pytest

from tests.source import ROOT
from xc_core.chain.names import FIRST_RECIPE, first_command
from xc_core.cli.main import main
from xc_core.recipes import RECIPES

TRAIN = re.compile(r"^(?:next: )?xc train --dataset mine --recipe (\S+)", re.MULTILINE)


def test_the_first_recipe_is_one() -> None:
    assert FIRST_RECIPE in RECIPES


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_first_training_on_a_page_is_that_of_the_first_recipe(page: str) -> None:
    assert TRAIN.findall((ROOT / page).read_text("utf-8"))[0] == FIRST_RECIPE


def test_pages_that_advise_a_first_model_name_it() -> None:
    assert f"| train `{FIRST_RECIPE}` first" in (ROOT / "README.md").read_text("utf-8")
    assert f"| a first model, before any other | `{FIRST_RECIPE}`:" in (ROOT / "docs/recipes.md").read_text("utf-8")
    tutorial = (ROOT / "docs/tutorial.md").read_text("utf-8")
    assert re.findall(r"^next: (.*)", tutorial, re.MULTILINE) == [first_command("mine")] * 2


def test_the_help_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"xc train --dataset NAME --recipe {FIRST_RECIPE} " in capsys.readouterr().out
