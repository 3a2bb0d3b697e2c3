"""The model that MLflow serves: code by name, weights and tables from the bundle, nothing unpickled.

Takes: texts and k.                              Gives: for each text, its k best labels.
May import: mlflow, xc_core.bundle.              Never: reads anything outside the bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel


class Labels(PythonModel):  # type: ignore[misc,unused-ignore]
    """Answers with uid, title and score of the best labels."""

    def load_context(self, context: Any) -> None:
        """Open the bundle after checking its hashes."""
        from xc_core.bundle import open_bundle

        self.predictor = open_bundle(Path(context.artifacts["bundle"]))

    def predict(
        self, context: Any, model_input: Any, params: dict[str, Any] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Return a list of {uid, title, score} for each text; ``params`` may hold k."""
        column = model_input["text"] if hasattr(model_input, "columns") else model_input
        found = self.predictor.predict([str(text) for text in column], int((params or {}).get("k", 5)))
        return [
            [{"uid": label.uid, "title": label.title, "score": label.score} for label in labels] for labels in found
        ]


set_model(Labels())
