"""What a fusion is fitted on: the scores that it combines, and the candidates of documents with their values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from xc_core.errors import ConfigError
from xc_core.shapes import F32, F64, I64, Bool

SUM: Final = "sum"
"""Name of the plain sum where a fusion is compared with its scores."""
RULE: Final = "rule"
"""Name of the fitted rule with its dial at 0, whether or not it is served, where models are compared on validation."""
_RESERVED: Final = ("fusion", SUM, RULE)
"""Names that reports use for the fusion itself, for the plain sum and for the rule."""


class Trees(Protocol):
    """A fitted regression from the values of scores to one number."""

    def predict(self, features_MF: F32) -> F64:
        """Return the value of each of M pairs."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the trees as plain lists."""


@dataclass(frozen=True)
class Inputs:
    """The scores that are fused.

    Raises ConfigError for a name that cannot be a folder's, or that reports use for the fusion or the sum.
    """

    names: tuple[str, ...]
    """All scores, in the order of the columns of their values."""
    summed: tuple[str, ...]
    """The scores that rank labels by themselves, so their plain sum is meaningful."""
    offsets: tuple[str, ...] = ()
    """The scores that are the same for every document."""
    probabilities: tuple[str, ...] = ()
    """The scores whose values are probabilities."""
    counts: str = ""
    """The score that counts the train documents of a label; empty if there is none."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name in _RESERVED or not re.fullmatch(r"[\w-]+", name):
                raise ConfigError(
                    f"a score named {name!r}",
                    expected=f"letters, digits, _ and -, and none of {', '.join(_RESERVED)}",
                    do="rename the score",
                )


@dataclass(frozen=True)
class Pairs:
    """K candidates of each of N documents: the values of F scores, and regression targets."""

    values_NKF: F32
    target_NK: F32
    """0 for a negative, about 1 for a positive."""
    filled_NK: Bool
    """True for a label, False for a hole."""
    proposed_NK: Bool | None = None
    """True for a candidate that a score proposed; None if all were. The others are positives added for the fit."""
    doc_N: I64 | None = None
    """The document of each row; None if every row is a document of its own. A document with very many positives has
    further rows, in which no candidate was proposed."""

    @property
    def docs_M(self) -> I64:
        """The document of each label that is not a hole."""
        rows = np.nonzero(self.filled_NK)[0]
        return rows if self.doc_N is None else self.doc_N[rows]

    @property
    def found_NK(self) -> Bool:
        """True for a label that a score proposed."""
        return self.filled_NK if self.proposed_NK is None else self.filled_NK & self.proposed_NK
