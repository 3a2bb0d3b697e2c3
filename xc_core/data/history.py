"""The history of a training, stored in its artefact: ``history.json``.

It has losses, epochs and figures of refreshes, and the number of documents that the training was given.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from xc_core.artifacts import Build
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.errors import OLDEST_RELEASE, CorruptError
from xc_core.manifests import read_manifest

_FILE: Final = "history.json"
_DOCUMENTS: Final = "documents"


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """What a training learnt from."""

    train: int
    """Train documents."""
    validation: int = 0
    """Validation documents."""
    label_texts: int = 0
    """Label texts that were used as documents."""
    epochs: float = 0.0
    """Passes over all of these; 0 if nothing was trained."""

    @classmethod
    def of(cls, corpus: Corpus, *, validation: bool, augment: bool = False) -> TrainedOn:
        """Return the documents of a training on ``corpus``, before its first epoch."""
        documents = (len(corpus.rows(TRAIN)), len(corpus.rows(VALIDATION)) if validation else 0)
        return cls(train=documents[0], validation=documents[1], label_texts=corpus.num_labels if augment else 0)

    @classmethod
    def read(cls, history: dict[str, Any], otherwise: TrainedOn) -> TrainedOn:
        """Return what the training of ``history`` learnt from, ``otherwise`` if nothing was trained.

        Raises CorruptError if it did not record that.
        """
        epochs = history.get("epochs") or [0.0]
        if epochs[-1] and _DOCUMENTS not in history:
            raise CorruptError(
                "a training that did not record how many documents it learnt from",
                expected=f"what {OLDEST_RELEASE} or a later version wrote",
                do="train again: xc run encoder --force or xc run classifier --force, with --dataset and --recipe",
            )
        documents = history.get(_DOCUMENTS) or asdict(otherwise)
        return cls(**{**documents, "epochs": round(float(epochs[-1]), 6)})

    def recorded(self) -> dict[str, Any]:
        """Return the entry of a history."""
        return {_DOCUMENTS: {name: value for name, value in asdict(self).items() if name != "epochs"}}

    @property
    def seen(self) -> int:
        """Documents in all epochs together, label texts among them."""
        return round(self.epochs * (self.train + self.validation + self.label_texts))

    @property
    def splits(self) -> str:
        """The splits of the documents, "-" if nothing was trained."""
        return "-" if not self.epochs else "train and validation" if self.validation else "train"

    def __str__(self) -> str:
        if not self.epochs:
            return "not trained"
        texts = f" and {self.label_texts:,} label texts" if self.label_texts else ""
        passes = "epoch" if self.epochs == 1 else "epochs"
        return f"{self.train + self.validation:,} {self.splits} documents{texts}, {self.epochs:.3g} {passes}"


def write_history(build: Build, history: dict[str, Any]) -> None:
    """Write ``history`` into the artefact that is being built."""
    build.json(_FILE, history)
    build.facts["steps"] = len(history["losses"])


def read_history(folder: Path) -> dict[str, Any] | None:
    """Return the history of the artefact at ``folder``; None if nothing was trained.

    Raises MissingError, CorruptError.
    """
    if _FILE not in read_manifest(folder).files:
        return None
    history: dict[str, Any] = json.loads((folder / _FILE).read_text("utf-8"))
    return history
