"""The rule by which new data start a refresh or a retraining, and the record of its last answer.

``measured`` in ``drift_figures`` computes the figures; ``decide`` is the rule, and nothing else decides.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from xc_core.artifacts import write_file
from xc_core.canonical import canonical
from xc_core.chain.dataset import DriftConfig
from xc_core.chain.workspace import Workspace
from xc_core.errors import XCError
from xc_core.visible import counted


class Answer(StrEnum):
    """What a model needs; the value is the name of the Dagster job, if there is one."""

    NOTHING = "nothing"
    REFRESH = "refresh"
    RETRAIN = "retrain"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How far the data of a dataset have moved away from a model."""

    labels: int
    """Labels in the corpus."""
    unknown_labels: int
    """Labels that the packed model does not know."""
    untrained_labels: int
    """Labels without a trained row: unknown ones, and those whose row was predicted from their text."""
    documents_since_training: int | None
    """Train and validation documents that the encoder was not trained on; None if the changelog does not say."""
    query_auc: float | None
    """Area under the ROC curve of a classifier of new against older documents' vectors; None if not measured."""
    documents_since_model: int | None
    """Train and validation documents that came after the model was made; None if the changelog does not say."""
    new_recall: float | None
    """Recall@10 of the model on these, in percent, of labels that it knows; None if not measured."""
    test_recall: float | None
    """Recall@10 on test documents, in percent, from the evaluation."""
    refreshed: bool
    """True if the model was refreshed since its training."""
    refused: str | None = None
    """Why a refresh would refuse to keep the rows of the model; None if it would keep them."""


@dataclass(frozen=True)
class Decision:
    """What the rule says."""

    answer: Answer
    reasons: list[str]
    """One sentence per cause that asks for something; if none does, why not."""


def decide(figures: Figures | None, limits: DriftConfig) -> Decision:
    """Return what the model needs: the strongest answer of three causes, in plain words. None: there is no model.

    1. Labels: a refresh adds those that the model does not know; too many without a trained row need a training.
    2. Vectors: if new documents look unlike those that the encoder was trained on, it is trained again.
    3. Recall: if the model finds fewer labels of new documents, a refresh lets the other scores learn from them; a
       model that was refreshed already is trained again.

    A refresh that would end with an error, because the rows learnt from documents that are held out now, is a training.
    """
    if figures is None:
        return Decision(Answer.RETRAIN, ["there is no model yet"])
    causes = [cause for rule in (_labels, _vectors, _recall) for cause in rule(figures, limits)]
    answers = [answer for answer, _ in causes]
    if not causes:
        return Decision(Answer.NOTHING, [_reason_for_nothing(figures, limits)])
    reasons = [reason for _, reason in causes]
    if Answer.RETRAIN in answers:
        return Decision(Answer.RETRAIN, reasons)
    if figures.refused is not None:
        return Decision(Answer.RETRAIN, [*reasons, f"a refresh is not possible: {figures.refused}"])
    return Decision(Answer.REFRESH, reasons)


def _labels(figures: Figures, limits: DriftConfig) -> list[tuple[Answer, str]]:
    causes = []
    for count, limit, answer, phrase in (
        (figures.untrained_labels, limits.untrained_labels, Answer.RETRAIN, "have no trained row"),
        (figures.unknown_labels, limits.unknown_labels, Answer.REFRESH, "are unknown to the model"),
    ):
        share = count / max(figures.labels, 1)
        if share > limit:
            shown = f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
            text = f"{count:,} of {counted(figures.labels, 'label')} ({shown}) {phrase}; the limit is {limit:.1%}"
            causes.append((answer, text))
    return causes


def _vectors(figures: Figures, limits: DriftConfig) -> list[tuple[Answer, str]]:
    if figures.query_auc is None or figures.query_auc <= limits.query_auc:
        return []
    text = f"vectors of new documents can be told from older ones (AUC {figures.query_auc:.2f}); the limit is "
    return [(Answer.RETRAIN, f"{text}{limits.query_auc:.2f}")]


def _recall(figures: Figures, limits: DriftConfig) -> list[tuple[Answer, str]]:
    if figures.new_recall is None or figures.test_recall is None:
        return []
    drop = figures.test_recall - figures.new_recall
    if drop <= limits.recall_drop:
        return []
    text = (
        f"recall@10 is {figures.new_recall:.1f} on new documents and {figures.test_recall:.1f} on test documents; "
        f"the limit is {counted(limits.recall_drop, 'point')} less"
    )
    return [(Answer.RETRAIN if figures.refreshed else Answer.REFRESH, text)]


def _reason_for_nothing(figures: Figures, limits: DriftConfig) -> str:
    """Return why nothing is needed."""
    labels = "unknown labels are within their limit" if figures.unknown_labels else "all labels are known"
    if figures.query_auc is None and figures.new_recall is None:
        counts = (figures.documents_since_training, figures.documents_since_model)
        if None in counts:
            return f"{labels}; the changelog does not say which documents are new"
        few = "are new" if max(filter(None, counts), default=0) < limits.fewest else "can be compared with new ones"
        return f"{labels}, and fewer than {limits.fewest} documents {few}"
    return "all figures are within their limits"


@dataclass(frozen=True)
class Record:
    """What the rule said of a model, and of which versions of corpus and model."""

    corpus: str
    model: str
    figures: Figures | None
    verdict: Decision

    def write(self, workspace: Workspace, dataset: str, recipe: str) -> None:
        """Write the record in place of the last one."""
        write_file(record_path(workspace, dataset, recipe), canonical(asdict(self)))

    def holds(self, workspace: Workspace, dataset: str, recipe: str) -> bool:
        """Return True if corpus and model are the ones that were measured."""
        return (self.corpus, self.model) == versions(workspace, dataset, recipe)

    @property
    def line(self) -> str:
        """The answer with its reasons."""
        return f"{self.verdict.answer}: {'; '.join(self.verdict.reasons)}"


def versions(workspace: Workspace, dataset: str, recipe: str) -> tuple[str, str]:
    """Return the digests of the corpus and of the packed model; an empty string for one that there is not."""

    def digest(stage: str) -> str:
        try:
            return workspace.digest(stage, dataset, recipe)
        except XCError:
            return ""

    return digest("corpus"), digest("model")


def read_record(workspace: Workspace, dataset: str, recipe: str) -> Record | None:
    """Return the last record of a model; None if there is none or it cannot be read."""
    try:
        content: dict[str, Any] = json.loads(record_path(workspace, dataset, recipe).read_text("utf-8"))
        stored = content["figures"]
        figures = None if stored is None else Figures(**{f.name: stored[f.name] for f in fields(Figures)})
        verdict = Decision(Answer(content["verdict"]["answer"]), list(content["verdict"]["reasons"]))
        return Record(str(content["corpus"]), str(content["model"]), figures, verdict)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_path(workspace: Workspace, dataset: str, recipe: str) -> Path:
    """Return the file of the last record of a model."""
    return workspace.state / "drift" / dataset / f"{recipe}.json"
