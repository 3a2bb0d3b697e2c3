"""Slow twin of the label table: one row at a time, one coordinate at a time, in float64."""

from __future__ import annotations

import math


class Table:
    """Rows with a running mean square and a step count each."""

    def __init__(
        self, rows: list[list[float]], lr: float, decay: float, weight_decay: float = 0.0, optimiser: str = "rmsprop"
    ) -> None:
        self.rows, self.lr, self.decay = [list(row) for row in rows], lr, decay
        self.weight_decay, self.optimiser = weight_decay, optimiser
        self.square, self.steps = [0.0] * len(rows), [0] * len(rows)

    def update(self, labels: list[int], gradients: list[list[float]], scale: float) -> None:
        for label, gradient in zip(labels, gradients, strict=True):
            mean_square = sum(value**2 for value in gradient) / len(gradient)
            if mean_square == 0:
                continue
            self.steps[label] += 1
            length = self.length(label, mean_square)
            self.rows[label] = [
                w * (1 - self.lr * scale * self.weight_decay) - self.lr * scale * g / length
                for w, g in zip(self.rows[label], gradient, strict=True)
            ]

    def length(self, label: int, mean_square: float) -> float:
        """Return what the gradient of a row is divided by."""
        if self.optimiser == "sgd":
            return 1.0
        if self.optimiser == "adagrad":
            self.square[label] += mean_square
            return math.sqrt(self.square[label])
        self.square[label] = self.decay * self.square[label] + (1 - self.decay) * mean_square
        return math.sqrt(self.square[label] / (1 - self.decay ** self.steps[label]))
