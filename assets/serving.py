"""The model that MLflow serves: code by name, weights and tables from the bundle, nothing unpickled.

Takes: texts and k.                              Gives: for each text, its k best labels.
May import: mlflow, xc_core.bundle.              Never: reads anything outside the bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel


class Label(pydantic.BaseModel):
    """One label of one text."""

    uid: str
    title: str
    score: float


class Labels(PythonModel):  # type: ignore[misc,unused-ignore]
    """Answers with uid, title and score of the best labels."""

    def load_context(self, context: Any) -> None:
        """Open the bundle after checking its hashes."""
        from xc_core.bundle import open_bundle

        self.predictor = open_bundle(Path(context.artifacts["bundle"]))

    def predict(self, context: Any, model_input: list[str], params: dict[str, Any] | None = None) -> list[list[Label]]:
        """Return the best labels of each text, as dictionaries in the shape of Label; ``params`` may hold k.

        MLflow reads inputs, parameters and outputs of the served model off these type hints.
        """
        found = self.predictor.predict(list(model_input), int((params or {}).get("k", 5)))
        return [[Label(uid=one.uid, title=one.title, score=one.score).model_dump() for one in row] for row in found]  # type: ignore[misc]


set_model(Labels())
