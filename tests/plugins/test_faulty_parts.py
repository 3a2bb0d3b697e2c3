"""What a part of a plug-in returns is checked, and an error that it raises names the plug-in, its file and its line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.plugins.conftest import METADATA
from xc_core import plugins
from xc_core.encoders import Encoder, EncoderConfig
from xc_core.errors import ConfigError, XCError
from xc_core.infer.ranker import candidates, values
from xc_core.losses.base import BatchLoss, Stateless, summed
from xc_core.plugins import fault_of
from xc_core.recipes.base import find_recipe
from xc_core.scores import FittedScore, Query
from xc_core.scores.store import with_all_methods
from xc_core.shapes import PAD_ID

ASKED = Query(np.zeros((2, 4), np.float32), ["one", "two"])
PROPOSED = np.array([[0, 1, 2], [2, 1, PAD_ID]], np.int32)
MASK = torch.ones(2, 3, dtype=torch.bool)


@dataclass
class Given(FittedScore):
    """A score of three labels that returns what it is given."""

    ids: Any = None
    found: Any = None

    @property
    def num_labels(self) -> int:
        return 3

    def candidates(self, query: Query, k: int) -> Any:
        return self.ids

    def values(self, query: Query, ids_NK: Any) -> Any:
        return self.found

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def of_score(**given: Any) -> dict[str, FittedScore]:
    return {"mine": Given(**given)}


@pytest.mark.parametrize("label", [3, -2])
def test_a_candidate_that_is_no_label_names_the_score(label: int) -> None:
    wrong = np.array([[0, 1], [label, 1]], np.int32)
    with pytest.raises(
        XCError, match=r"candidates of the score 'mine' from .*\n.*labels from 0 to 2, or -1 for a hole"
    ):
        candidates(of_score(ids=wrong), ASKED, 2)


def test_values_of_another_shape_name_the_score() -> None:
    with pytest.raises(XCError, match=r"values of the score 'mine' of the shape \(2, 2\)\n.*\(2, 3\)"):
        values(of_score(found=np.zeros((2, 2), np.float32)), ASKED, PROPOSED)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_the_score(number: float) -> None:
    found = np.zeros((2, 3), np.float32)
    found[1, 1] = number
    with pytest.raises(XCError, match=f"1 of 5 values of the score 'mine' that are not finite, the first {number}"):
        values(of_score(found=found), ASKED, PROPOSED)


def test_a_fitted_score_without_the_base_class_is_named() -> None:
    """It has no ``alone`` and no ``figures``, which the base class has."""

    class Bare:
        num_labels, candidates, values, save = 3, None, None, None

    with pytest.raises(
        XCError, match=r"Bare, which the score 'mine' returned from fit or open, without alone, figures"
    ):
        with_all_methods("mine", cast(FittedScore, Bare()))
    assert with_all_methods("mine", given := Given()) is given


def test_the_value_of_a_hole_may_be_anything() -> None:
    found = np.zeros((2, 3), np.float32)
    found[1, 2] = np.nan
    assert values(of_score(found=found), ASKED, PROPOSED).shape == (2, 3, 1)


ONE = torch.ones(())


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ((torch.ones(2), ONE), r"a tensor \(2,\), a tensor \(\)"),
        ((ONE, 3), r"a tensor \(\), a int"),
        (ONE, r"a tensor \(\)\n"),
        ((ONE, ONE, ONE), r"a tensor \(\), a tensor \(\), a tensor \(\)"),
    ],
)
def test_a_loss_that_returns_no_sum_and_count_is_named(returned: Any, said: str) -> None:
    class Mine(Stateless):
        def __call__(self, *arguments: Any, **more: Any) -> Any:
            return returned

    with pytest.raises(XCError, match=f"a loss Mine that returns {said}"):
        summed(cast(BatchLoss, Mine()), torch.zeros(2, 3), MASK, MASK)


@pytest.mark.parametrize(("count", "learns"), [(2.0, True), (0.0, False)])
def test_a_loss_of_documents_without_a_gradient_is_named(count: float, learns: bool) -> None:
    """Without a document there is nothing to learn, so a loss may be a constant."""

    class Mine(Stateless):
        def __call__(self, scores_BU: torch.Tensor, *arguments: Any, **more: Any) -> Any:
            return scores_BU.detach().sum(), torch.tensor(count)

    expected = pytest.raises(XCError, match="a loss Mine whose sum has no gradient") if learns else nullcontext()
    with expected:
        summed(cast(BatchLoss, Mine()), torch.zeros(2, 3, requires_grad=True), MASK, MASK)


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (8,), (2, 5)])
def test_an_encoder_that_returns_other_than_a_vector_per_text_is_named(shape: tuple[int, ...]) -> None:
    class Mine(Encoder):
        def pooled(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
            return torch.zeros(shape)

        def shape_facts(self) -> dict[str, Any]:
            return {}

    with pytest.raises(XCError, match=r"pooled vectors of the encoder Mine of the shape .*\n.*gave: \(2, 4\)\n"):
        Mine(EncoderConfig(name="bag", width=4), 4)(torch.zeros(2, 3, dtype=torch.int64), MASK)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Install a plug-in of ``module`` under the name ``mine``, for this process."""
    info = folder / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.replace("example", "odd"))
    (info / "entry_points.txt").write_text(f"[xc.parts]\nmine = {module}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_loaded", {})


def raised(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    return fault_of(caught.value)


def test_an_error_names_the_plugin_whose_code_raised_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raised(lambda: Query(np.zeros((1, 2), np.float32), []).texts).startswith("a fault of xc; ")
    install(tmp_path, monkeypatch, "odd_parts.losses")
    (tmp_path / "odd_parts").mkdir()
    (tmp_path / "odd_parts" / "losses.py").write_text(
        "from xc_core.scores import Query\n\n\ndef fails():\n    raise ValueError('odd')\n\n\n"
        "def calls():\n    import numpy\n    return Query(numpy.zeros((1, 2)), []).texts\n"
    )
    losses = importlib.import_module("odd_parts.losses")

    assert raised(losses.fails).startswith("a fault of the plug-in 'mine' (losses.py, line 5); ")
    assert raised(losses.calls).startswith("a fault of xc, or of the plug-in 'mine' (losses.py, line 10); ")
    assert raised(lambda: Query(np.zeros((1, 2), np.float32), []).texts).startswith(
        "a fault of xc, or of what a plug-in (mine) returned to it; "
    )


@pytest.mark.parametrize(
    ("line", "found", "expected", "do"),
    [
        (
            "LOSSES.add('triplet', 1)",
            "a second loss named 'triplet' (odd_taken.py, line 2)",
            "one part per name",
            "choose another name, or uninstall the package that provides it",
        ),
        (
            "int('three')",
            "ValueError: invalid literal for int() with base 10: 'three' (odd_taken.py, line 2)",
            "a module that can be imported",
            "fix or uninstall the package that provides it",
        ),
    ],
)
def test_a_plugin_that_cannot_be_imported_says_where_and_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, found: str, expected: str, do: str
) -> None:
    install(tmp_path, monkeypatch, "odd_taken")
    (tmp_path / "odd_taken.py").write_text(f"from xc_core.losses import LOSSES\n{line}\n")
    for call in (plugins.load_plugins, lambda: find_recipe("no-such-recipe")):
        with pytest.raises(ConfigError) as caught:
            call()
        assert caught.value.found == f"the plug-in 'mine' (odd_taken), which cannot be imported: {found}"
        assert (caught.value.expected, caught.value.do) == (expected, do), "nothing about a recipe"
