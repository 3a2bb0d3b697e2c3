"""The plots show the numbers that they are given, each in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text

from tests.metrics.test_metric_artefacts import labels
from xc_core.metrics import plots


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Axes]]:
    """Call a function that draws, and return the axes of its figure."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))

    def draw(function: Callable[..., None], content: Any) -> list[Axes]:
        function(tmp_path, content, "toy")
        titles = [figures[-1].get_suptitle(), *(axis.get_title(loc="left") for axis in figures[-1].axes)]
        assert any(title.startswith("toy") for title in titles)
        return list(figures[-1].axes)

    return draw


def points(axis: Axes, label: str) -> np.ndarray:
    """Return the points of a layer (N x 2)."""
    (layer,) = (one for one in axis.collections if one.get_label() == label)
    return np.asarray(layer.get_offsets())


@pytest.mark.parametrize(("steps", "window"), [(3, 3), (100, 5), (400, 10)])
def test_a_training_has_its_losses_their_running_mean_and_its_refreshes(
    drawn: Callable[..., list[Axes]], steps: int, window: int
) -> None:
    losses, epochs = np.random.default_rng(0).random(steps), np.linspace(0.1, 2.0, steps)
    history = {"losses": losses.tolist(), "epochs": epochs.tolist(), "refreshes": [{"epoch": 0.5}, {"epoch": 1.5}]}
    none: dict[str, Any] = {"losses": [], "epochs": [], "refreshes": []}
    encoder, classifier = drawn(plots.training_curves, {"encoder": history, "classifier": none})
    each, mean, *refreshes = encoder.lines
    np.testing.assert_array_equal(each.get_xydata(), np.stack([epochs, losses], axis=1))
    ends = range(window, steps + 1)
    expected = [(epochs[end - 1], losses[end - window : end].mean()) for end in ends]
    np.testing.assert_allclose(mean.get_xydata(), expected)
    assert [line.get_xdata()[0] for line in refreshes] == [0.5, 1.5]
    names = encoder.get_legend_handles_labels()[1]
    assert names == ["each step", f"mean of {window} steps", "refreshed"]
    assert encoder.get_ylim()[0] == 0
    assert [text.get_text() for text in classifier.texts] == ["not trained"] and not classifier.lines
    assert (encoder.get_title(loc="left"), classifier.get_title(loc="left")) == ("encoder", "classifier")


@pytest.mark.parametrize("refreshes", [0, 1, 3])
def test_the_legend_names_refreshes_once(drawn: Callable[..., list[Axes]], refreshes: int) -> None:
    history = {"losses": [2.0, 1.0], "epochs": [0.5, 1.0], "refreshes": [{"epoch": 0.5}] * refreshes}
    (axis,) = drawn(plots.training_curves, {"encoder": history})
    assert axis.get_legend_handles_labels()[1].count("refreshed") == min(refreshes, 1)


def test_deciles_have_a_bar_each_in_both_figures(drawn: Callable[..., list[Axes]]) -> None:
    parts = [
        {"from": 1, "to": 3, "P_at_5_points": 1.5, "recall_at_5": 20.0},
        {"from": 7, "to": 7, "P_at_5_points": 3.0, "recall_at_5": None},
    ]
    axes = drawn(plots.deciles, parts)
    bars: list[Any] = [list(axis.patches) for axis in axes]
    assert [[bar.get_height() for bar in own] for own in bars] == [[1.5, 3.0], [20.0, 0.0]]
    assert [[text.get_text() for text in axis.get_xticklabels()] for axis in axes] == [["1-3", "7"]] * 2
    assert ["P@5" in axis.get_title(loc="left") for axis in axes] == [True, False]


def test_a_label_map_has_every_label_at_its_principal_components(drawn: Callable[..., list[Axes]]) -> None:
    content = labels()
    (axis,) = drawn(plots.label_map, content)
    near = np.argsort(-(content.label_LD @ content.doc_D), kind="stable")
    found = np.empty((31, 2))
    found[near], found[30] = points(axis, "other near labels"), points(axis, axis.collections[-1].get_label())[0]
    vectors = np.concatenate([content.label_LD, content.doc_D[None]]).astype(np.float64)
    centred = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    np.testing.assert_allclose(np.abs(found), np.abs(centred @ directions[:, :-3:-1]), rtol=1e-4, atol=1e-5)
    layers = {
        "in-batch negatives": [0, 4, 5, 6, 7, 8, 9],
        "hard negatives in the batch": [3],
        "hard negatives missed": [12, 13],
        "positives": [1, 2],
    }
    for name, ids in layers.items():
        np.testing.assert_array_equal(points(axis, name), found[ids], err_msg=name)
    ids = sorted((1, 2, 12, 13, 3), key=lambda label: found[label, 1])
    assert [text.get_text() for text in axis.texts] == [rf"label \${number}" for number in ids], "from low to high"
    colours = {1: plots.GREEN, 2: plots.GREEN, 12: plots.RED, 13: plots.RED, 3: plots.AMBER}
    assert [text.get_color() for text in axis.texts] == [colours[number] for number in ids]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_of_labels_do_not_overlap(drawn: Callable[..., list[Axes]]) -> None:
    content = labels()
    same = np.repeat(content.label_LD[:1], len(content.label_LD), axis=0)  # all labels in one place
    (axis,) = drawn(plots.label_map, replace(content, label_LD=same))
    axis.figure.draw_without_rendering()  # lays the figure out
    boxes = [Text.get_window_extent(text) for text in axis.texts]  # without its line
    assert len(boxes) == 5
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert min(box.x0 for box in boxes) >= axis.get_window_extent().x1


def test_a_leaderboard_has_the_recipes_whose_time_and_figure_are_known(drawn: Callable[..., list[Axes]]) -> None:
    rows = [
        {"recipe": "slow", "train_seconds": 600.0, "P_at_1": 60.0, "PSP_at_5": None},
        {"recipe": "fast", "train_seconds": 120.0, "P_at_1": 50.0, "PSP_at_5": 30.0},
        {"recipe": "lexical", "train_seconds": None, "P_at_1": 70.0, "PSP_at_5": 40.0},
    ]
    upper, lower = drawn(plots.leaderboard, rows)
    np.testing.assert_array_equal(upper.collections[0].get_offsets(), [[10, 60], [2, 50]])
    np.testing.assert_array_equal(lower.collections[0].get_offsets(), [[2, 30]])
    assert [text.get_text() for text in upper.texts] == ["fast", "slow"], "from the lowest to the highest"
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("P@1", "PSP@5")


def test_names_of_recipes_do_not_overlap(drawn: Callable[..., list[Axes]]) -> None:
    figures = [*(50 + number / 1000 for number in range(10)), 55.0, *(60 - number / 1000 for number in range(9))]
    rows = [{"recipe": f"r{p}", "train_seconds": 60.0, "P_at_1": p, "PSP_at_5": p} for p in figures]
    for axis in drawn(plots.leaderboard, rows):
        at = np.array([text.xyann[1] for text in axis.texts])  # type: ignore[attr-defined]
        assert at[0] >= 0 and at[-1] <= 1
        assert (np.diff(at) > 1 / 20 - 1e-9).all()
