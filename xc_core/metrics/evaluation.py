"""The artefact of the stage evaluation: the metrics of a model on test documents.

Files: ``metrics.json``, ``report.json`` (metrics, intervals, frequency bins, ablation), ``per_document.npz`` (figures
of each document, for paired tests), ``examples.json``, plots.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.data.history import TrainedOn
from xc_core.metrics.ranking import PerDocument
from xc_core.metrics.stored import StoredFigures

FUSION: Final = "fusion"
"""The name under which the figures of the whole model are stored, beside those of its scores."""
OWN: Final = "its own search"
ALL: Final = "all scores"
"""Which candidates a row of the ablation ranks: those that a model with this score alone would have, or all."""
_METRICS: Final = "metrics.json"
_REPORT: Final = "report.json"
_FIGURES: Final = "per_document.npz"
_EXAMPLES: Final = "examples.json"


@dataclass(frozen=True, kw_only=True)
class LearntFrom:
    """What each part of a model learnt from."""

    encoder: TrainedOn
    classifier: TrainedOn
    joint: bool
    """True if rows of the classifier were trained with the encoder."""
    fitted: bool
    """True if the fusion is fitted, or chosen, on validation documents that no score has seen."""
    published: int
    """Train and validation documents of the corpus."""
    dial: bool = False
    """True if the fusion has a dial, which is fitted like a fusion, and its position changes the order."""
    instead: str = ""
    """The score, or the sum, that is used instead of the fitted fusion."""
    scores: tuple[str, ...] = ()
    """Scores that learn by themselves, such as label trees."""
    fitted_on: tuple[int, int] = (0, 0)
    """Train and validation documents that these scores were fitted on."""

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> LearntFrom:
        """Return what ``asdict`` made a mapping of."""
        parts = {name: TrainedOn(**content[name]) for name in ("encoder", "classifier")}
        lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
        return cls(**{**content, **parts, **lists})

    @property
    def passes(self) -> float:
        """Documents that the encoder was trained on, all epochs together, as a multiple of the published ones."""
        return self.encoder.seen / self.published

    def words(self) -> dict[str, str]:
        """Return one phrase for each of encoder, classifier and fusion, and for scores that learn by themselves."""
        rows = str(self.classifier)
        if self.joint:
            rows = "trained with the encoder" + (f", then on {rows}" if self.classifier.epochs else "")
        held_out = "on validation documents that no score has seen"
        if self.instead:
            fusion = f"not used; {self.instead} alone{', with a dial,' if self.dial else ''} was chosen {held_out}"
        elif self.fitted:
            fusion = f"chosen and fitted {held_out}"
        else:
            fusion = "not fitted" + (f"; its dial is, {held_out}" if self.dial else "")
        return {"encoder": str(self.encoder), "classifier": rows, **self._scores(), "fusion": fusion}

    def _scores(self) -> dict[str, str]:
        train, validation = self.fitted_on
        splits = "train and validation" if validation else "train"
        names = ", ".join(self.scores)
        return {"scores": f"{names} fitted on {train + validation:,} {splits} documents"} if names else {}


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one model."""

    kind: ClassVar[str] = "evaluation"
    folder: Path
    metrics: dict[str, float]
    """Metrics of the whole model, in percent."""
    report: dict[str, Any]
    """Metrics, intervals, frequency bins and deciles, index recall, metrics of each score alone ("ablation") and
    the candidates that it ranks ("candidates"), what the model learnt from ("learnt_from")."""

    @classmethod
    def open(cls, folder: Path) -> Evaluation:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        metrics, report = (json.loads((folder / name).read_text("utf-8")) for name in (_METRICS, _REPORT))
        return cls(folder, metrics, report)

    @property
    def learnt(self) -> LearntFrom:
        """What each part of the model learnt from."""
        return LearntFrom.from_dict(self.report["learnt_from"])

    @property
    def stored(self) -> StoredFigures:
        """The figures of each test document for each score, and for the whole model ("fusion")."""
        return StoredFigures(self.folder / _FIGURES)

    def figures(self, score: str = FUSION) -> PerDocument | None:
        """Return the figures of each test document for a score; None if there is no such score."""
        return self.stored.of(score)

    @property
    def examples(self) -> list[dict[str, Any]]:
        """A few test texts with their predicted and true labels."""
        examples: list[dict[str, Any]] = json.loads((self.folder / _EXAMPLES).read_text("utf-8"))
        return examples

    @property
    def report_file(self) -> Path:
        """Path of the report, to attach to a run."""
        return self.folder / _REPORT


def write_evaluation(
    build: Build, report: dict[str, Any], figures: dict[str, PerDocument], examples: list[dict[str, Any]]
) -> None:
    """Write all files of the artefact except the plots."""
    build.json(_METRICS, report["metrics"])
    build.json(_REPORT, report)
    build.json(_EXAMPLES, examples)
    StoredFigures(build.path / _FIGURES).write(figures)
    build.facts["metrics"] = report["metrics"]
