"""The model that MLflow serves: this file as code, weights and tables from the packed model, nothing unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

OWN_TAIL = -1.0
"""Default of the parameter tail; MLflow's parameters cannot be empty. The signature in registry.py repeats it."""


class Label(pydantic.BaseModel):
    """One label of one text."""

    uid: str
    title: str
    score: float
    probability: float | None = None  # MLflow wants a default


class Labels(PythonModel):  # type: ignore[misc,unused-ignore]
    """Predicts uid, title, score and probability of the best labels of each text."""

    def load_context(self, context: Any) -> None:
        """Open the packed model after checking its hashes."""
        from xc_core.infer.bundle import open_predictor

        self.predictor = open_predictor(Path(context.artifacts["bundle"]))

    def predict(self, context: Any, model_input: list[str], params: dict[str, Any] | None = None) -> list[list[Label]]:
        """Return the best labels of each text, as dictionaries in the shape of Label; ``params`` may hold k, tail,
        min_probability.

        ``tail`` is the position of the dial from 0 (best P@k) to 1 (best PSP@k); -1 stands for the model's own. Labels
        with a probability below ``min_probability`` are left out. A parameter that is None (null in JSON), which MLflow
        lets through, has its default.
        MLflow takes inputs, parameters and outputs of the served model from these type hints.
        """
        given = {name: value for name, value in (params or {}).items() if value is not None}
        tail = float(given.get("tail", OWN_TAIL))
        position, least = None if tail == OWN_TAIL else tail, float(given.get("min_probability", 0.0))
        found = self.predictor.predict(list(model_input), int(given.get("k", 5)), position, least)
        rows = [[Label.model_validate(label, from_attributes=True) for label in row] for row in found]
        return [[label.model_dump() for label in row] for row in rows]  # type: ignore[misc]


set_model(Labels())
