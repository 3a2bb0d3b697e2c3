"""The artefact of the stage scores: every score of a recipe, fitted for each fold.

Files: ``scores.json`` (settings of each score, folds, figures), and one folder per fold and score. A score that is not
fitted on documents is stored once, with the final fold.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.data.folds import FINAL, Fold
from xc_core.errors import CorruptError, XCError
from xc_core.linked import link_file
from xc_core.params import KIND, changed, plain
from xc_core.scores.base import SCORES, FittedScore, Score

_CONTENT: Final = "scores.json"


@dataclass(frozen=True)
class Scores:
    """Fitted scores by name, in the order of the recipe; ``fitted`` opens them."""

    kind: ClassVar[str] = "scores"
    folder: Path
    parts: dict[str, Score]
    folds: list[Fold]
    figures: dict[str, dict[str, float]]
    """Figures of quality by score, for instance the recall of an index."""

    @classmethod
    def open(cls, folder: Path) -> Scores:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        content = json.loads((folder / _CONTENT).read_text("utf-8"))
        folds = [Fold(**fold) for fold in content["folds"]]
        return cls(folder, _read_scores(content["scores"]), folds, content["figures"])

    def fitted(self, fold: str = FINAL) -> dict[str, FittedScore]:
        """Return the scores of a fold; raise CorruptError if they have different numbers of labels."""
        return _open_all(self.parts, {name: self._folder_of(name, fold) for name in self.parts})

    def _folder_of(self, name: str, fold: str) -> Path:
        return self.folder / (fold if self.parts[name].per_fold else FINAL) / name

    def pack(self, folder: Path) -> None:
        """Link the final fold's scores into a new folder of a packed model; ``open_packed`` reads it."""
        folder.mkdir()
        for name in self.parts:
            shutil.copytree(self._folder_of(name, FINAL), folder / name, copy_function=link_file)
        (folder / _CONTENT).write_text(json.dumps({"scores": _plain(self.parts)}, indent=1) + "\n", "utf-8")

    @property
    def recalls(self) -> dict[str, float]:
        """Recall of the index by score, for scores that measure it."""
        return {name: figures["recall"] for name, figures in self.figures.items() if "recall" in figures}


def open_packed(folder: Path) -> dict[str, FittedScore]:
    """Return the scores that ``Scores.pack`` wrote; the caller must have verified the files.

    Raises CorruptError if they have different numbers of labels.
    """
    scores = _read_scores(json.loads((folder / _CONTENT).read_text("utf-8"))["scores"])
    return _open_all(scores, {name: folder / name for name in scores})


@dataclass
class ScoresWriter:
    """Writes the artefact that is being built in ``build``."""

    build: Build
    parts: Mapping[str, Score]
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, fold: Fold, name: str, fitted: FittedScore) -> None:
        """Write one fitted score."""
        folder = self.build.path / fold.name / name
        folder.mkdir(parents=True)
        with_all_methods(name, fitted).save(folder)

    def finish(self, folds: list[Fold]) -> None:
        """Write ``scores.json``; call it last."""
        content = {
            "scores": _plain(self.parts),
            "folds": [asdict(fold) for fold in folds],
            "figures": self.figures,
        }
        self.build.json(_CONTENT, content)
        self.build.facts |= {"scores": list(self.parts), "figures": self.figures}


def _plain(scores: Mapping[str, Score]) -> list[list[Any]]:
    """Return a list of names and settings; the keys of a JSON object would lose their order."""
    return [[name, plain(score)] for name, score in scores.items()]


def _read_scores(content: list[list[Any]]) -> dict[str, Score]:
    return {name: changed(SCORES[settings[KIND]](), settings, f"scores.{name}") for name, settings in content}


def with_all_methods(name: str, fitted: FittedScore) -> FittedScore:
    """Return a fitted score; raise XCError if it lacks a method, as an object of a plug-in may."""
    methods = (name for name in vars(FittedScore) if not name.startswith("_"))
    if lacking := [method for method in methods if not hasattr(fitted, method)]:
        raise XCError(
            f"{type(fitted).__qualname__}, which the score {name!r} returned from fit or open, without "
            f"{', '.join(lacking)}",
            expected=f"an object of a class derived from {FittedScore.__module__}.{FittedScore.__name__}",
            do=f"derive it; python -m pytest tests/contracts -k {name} tests the score",
        )
    return fitted


def _open_all(scores: dict[str, Score], folders: dict[str, Path]) -> dict[str, FittedScore]:
    fitted = {name: with_all_methods(name, score.open(folders[name])) for name, score in scores.items()}
    sizes = {name: fitted_score.num_labels for name, fitted_score in fitted.items()}
    if len(set(sizes.values())) > 1:
        raise CorruptError(
            f"scores of different numbers of labels: {', '.join(f'{name} {size}' for name, size in sizes.items())}",
            expected="the same labels in all scores",
            do="run the stage scores again, and the stages after it",
        )
    return fitted
