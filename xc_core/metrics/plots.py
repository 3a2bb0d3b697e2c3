"""The plots of a report as PNG files. The same numbers always give the same bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xc_core.metrics.names import titled
from xc_core.shapes import F32, Array
from xc_core.visible import cut

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK: Final = "#1f2933"
BLUE, GREEN, RED, AMBER, GREY = "#2563a8", "#2e8b57", "#c0392b", "#d98e04", "#c4ccd4"
_WIDTH: Final = 5.6
"""Width of a plot in inches. Dagster does not scale pictures: a wider one is cut off on a screen of 1,600 pixels."""
_STYLE: Final = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "svg.hashsalt": "xc",
}


@contextmanager
def _drawn(path: Path, height: float, title: str = "") -> Iterator[Figure]:
    """Yield an empty figure of ``height`` inches, which becomes the file ``path``."""
    import matplotlib as mpl  # only for a plot: it takes half a second
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), dpi=110, layout="constrained")
        yield figure
        if title:
            figure.suptitle(title, fontsize=11, color=INK)
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a missing glyph is drawn as a box
        figure.savefig(path, metadata={"Software": None})


def training_curves(folder: Path, histories: dict[str, dict[str, Any]], title: str) -> None:
    """Draw the loss of each training over its epochs, with a running mean and the refreshes."""
    with _drawn(folder / "training.png", 0.6 + 2.6 * len(histories), title) as figure:
        axes = figure.subplots(len(histories), 1, squeeze=False)[:, 0]
        for axis, (name, history) in zip(axes, histories.items(), strict=True):
            losses, epochs = np.asarray(history["losses"]), np.asarray(history["epochs"])
            if len(losses):
                axis.plot(epochs, losses, color=GREY, lw=0.7, label="each step")
                window = min(max(len(losses) // 40, 5), len(losses))
                mean = np.convolve(losses, np.ones(window) / window, mode="valid")
                axis.plot(epochs[window - 1 :], mean, color=BLUE, lw=1.8, label=f"mean of {window} steps")
                for number, refresh in enumerate(history["refreshes"]):
                    axis.axvline(
                        refresh["epoch"],
                        color=AMBER,
                        lw=0.8,
                        ls=":",
                        label="refreshed" if number == 0 else None,
                    )
                axis.legend(frameon=False, fontsize=8)
            else:
                axis.text(0.5, 0.5, "not trained", ha="center", va="center", transform=axis.transAxes)
            axis.set(title=name, xlabel="epoch", ylabel="loss")
            axis.set_ylim(bottom=0)


def deciles(folder: Path, parts: list[dict[str, float]], title: str) -> None:
    """Draw the contribution of each frequency decile of labels to P@5, and its recall at 5."""
    with _drawn(folder / "deciles.png", 6.4, title) as figure:
        upper, lower = figure.subplots(2, 1)
        ends = [(decile["from"], decile["to"]) for decile in parts]
        names = [f"{low}-{high}" if high > low else str(low) for low, high in ends]
        for axis, key, colour, label in (
            (upper, "P_at_5_points", BLUE, "contribution to P@5 (points)"),
            (lower, "recall_at_5", GREEN, "recall of these labels at 5 (%)"),
        ):
            values = [decile[key] if decile[key] is not None else 0.0 for decile in parts]
            bars = axis.bar(range(len(parts)), values, color=colour)
            axis.bar_label(bars, fmt="%.1f", fontsize=8, padding=1)
            axis.set_xticks(range(len(parts)), names, rotation=40, ha="right", fontsize=8)
            axis.set(title=label, xlabel="train and validation documents of a label (tail to head)")


@dataclass(frozen=True)
class LabelMap:
    """One document, the labels near it, and which of them were in its batch."""

    label_LD: F32
    doc_D: F32
    text: str
    titles: Mapping[int, str]
    """Of the positives and the hard negatives, by label."""
    positives: Array
    in_batch: Array
    held: Array
    """Hard negatives that were in the batch."""
    missed: Array
    """Hard negatives that were not in the batch."""


def label_map(folder: Path, content: LabelMap, title: str) -> None:
    """Draw the labels nearest to one document along the first two principal components of their vectors."""
    near = np.argsort(-(content.label_LD @ content.doc_D), kind="stable")[:150]
    random_negatives = np.setdiff1d(content.in_batch, np.concatenate([content.positives, content.held]))[:150]
    shown = np.unique(np.concatenate([near, content.positives, content.held, content.missed, random_negatives]))
    vectors = np.concatenate([content.label_LD[shown], content.doc_D[None]])
    centred = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    signs = np.sign(directions[:2][np.arange(2), np.abs(directions[:2]).argmax(1)])
    coordinates = centred @ (directions[:2] * signs[:, None]).T
    position_of = dict(zip(shown.tolist(), coordinates[:-1], strict=True))
    layers = (
        ("other near labels", near, GREY, ".", 30),
        ("in-batch negatives", random_negatives, BLUE, "x", 22),
        ("hard negatives in the batch", content.held, AMBER, "s", 34),
        ("hard negatives missed", content.missed, RED, "v", 38),
        ("positives", content.positives, GREEN, "o", 46),
    )
    with _drawn(folder / "label_map.png", 5.2) as figure:
        axis = figure.subplots()
        for name, ids, colour, marker, size in layers:
            points = np.array([position_of[int(i)] for i in ids]).reshape(-1, 2)
            axis.scatter(points[:, 0], points[:, 1], s=size, c=colour, marker=marker, label=name, linewidths=0.9)
        x, y = coordinates[-1].tolist()
        axis.scatter(x, y, s=170, c=INK, marker="*", label=f"document: {_short(content.text, 28)}", zorder=5)
        named = ((content.positives[:20], GREEN), (content.missed[:4], RED), (content.held[:4], AMBER))
        texts = {i: _short(content.titles[i], 22) for ids, _ in named for i in ids.tolist()}
        shown_at = ((i, position_of[i], colour) for ids, colour in named for i in ids.tolist())
        names = [Name(texts[i], x, y, colour) for i, (x, y), colour in shown_at]
        _names_beside(axis, names, size=7)
        axis.set(xticks=[], yticks=[], title=f"{title}: one document and its labels (PCA)")
        axis.legend(facecolor="white", edgecolor="none", framealpha=1, fontsize=8, loc="best")


def _short(text: str, limit: int) -> str:
    """Return ``text`` cut to ``limit`` characters, with dollar signs escaped, which start formulas in matplotlib."""
    return cut(text, limit).replace("$", r"\$")


class Name(NamedTuple):
    """The name of a point."""

    text: str
    x: float
    y: float
    colour: str = "black"


def _names_beside(axis: Any, names: list[Name], size: float = 8) -> None:
    """Write the names of points in a column right of the axis, without overlaps, joined to the points by thin lines."""
    low, high = axis.get_ylim()
    step = 1 / max(len(names), 14)
    height = -step
    for number, name in enumerate(sorted(names, key=lambda name: name.y), 1):
        remaining = len(names) - number
        height = min(max(height + step, (name.y - low) / (high - low)), 1 - step * remaining)
        axis.annotate(
            name.text,
            (name.x, name.y),
            xytext=(1.03, height),
            textcoords="axes fraction",
            fontsize=size,
            color=name.colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.6"},
        )


def leaderboard(folder: Path, rows: list[dict[str, Any]], title: str) -> None:
    """Draw P@1 and PSP@5 of each recipe over its training time; a metric of None is left out."""
    timed = [row for row in rows if row.get("train_seconds")]
    with _drawn(folder / "leaderboard.png", 2 * max(3.4, 0.22 * len(timed)), title) as figure:
        for axis, metric, colour in zip(figure.subplots(2, 1), ("P_at_1", "PSP_at_5"), (BLUE, GREEN), strict=True):
            measured = (row for row in timed if row[metric] is not None)
            names = [Name(row["recipe"], row["train_seconds"] / 60, row[metric]) for row in measured]
            if names:
                axis.scatter([name.x for name in names], [name.y for name in names], s=40, c=colour)
            axis.set(xlabel="training time (minutes)", ylabel=titled(metric))
            axis.margins(0.1)
            _names_beside(axis, names)
