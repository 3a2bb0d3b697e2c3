"""The contract of a fusion: it combines the values of several scores into one, and knows no score by name.

``FittedFusion`` is also the artefact of the stage fusion, the file ``fusion.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from xc_core import artifacts
from xc_core.errors import ConfigError, MissingError, nearest
from xc_core.params import KIND, changed, plain
from xc_core.plugins import Part, Table
from xc_core.shapes import F32, F64, I32, Bool, Shortlist

SUM: Final = "sum"
"""Name of the plain sum where a fusion is compared with its scores."""
_FILE: Final = "fusion.json"
_RESERVED: Final = ("fusion", SUM)
"""Names that reports use for the fusion itself and for the plain sum."""


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

    def __post_init__(self) -> None:
        for name in self.names:
            if name in _RESERVED or not re.fullmatch(r"[\w-]+", name):
                raise ConfigError(
                    f"a score named {name!r}",
                    expected=f"letters, digits, _ and -, and neither {' nor '.join(_RESERVED)}",
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


FUSIONS: Table[type[Fusion]] = Table("fusion")


@dataclass(frozen=True, kw_only=True)
class Fusion(Part):
    """Settings of a fusion; ``fit`` returns the fitted fusion."""

    table = FUSIONS
    learns: ClassVar[bool] = True
    """False for a rule without parameters."""
    add: tuple[str, ...] = ()
    """Scores that are added; if empty, all scores that rank labels by themselves."""

    def fit(self, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        """Return the fusion fitted on ``pairs``.

        Raises ConfigError if the settings name a score that is not among the inputs.
        """
        raise NotImplementedError

    def trees(self, content: dict[str, list[Any]]) -> Trees:
        """Return the trees from what ``Trees.to_dict`` returned."""
        raise NotImplementedError

    def target(self, positive_NK: Bool, weight_NK: F32) -> F32:
        """Return the regression target of each candidate (N x K); ``weight_NK`` holds inverse propensities."""
        return positive_NK.astype(np.float32)

    def check(self, inputs: Inputs) -> None:
        """Raise ConfigError if the settings name a score that is not among the inputs, or if nothing is fused."""
        chosen(self.add, inputs.names, "add")

    def summed(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the names of the scores that are added."""
        return chosen(self.add, inputs.names, "add") or inputs.summed


def chosen(names: Sequence[str], known: Sequence[str], setting: str) -> tuple[str, ...]:
    """Return ``names``; raise ConfigError for a name that is not among the ``known`` scores."""
    for name in names:
        if name not in known:
            raise ConfigError(
                f"unknown score {name!r} in fusion.rule.{setting}{nearest(name, known)}",
                expected=f"scores of the recipe: {', '.join(known)}",
                do="fix the name, or add the score to the recipe's scores",
            )
    return tuple(names)


@dataclass(frozen=True)
class FittedFusion:
    """A fitted rule: the weighted sum of some scores, plus the value of trees that read some scores."""

    kind: ClassVar[str] = "fusion"
    rule: Fusion
    names: tuple[str, ...]
    """All scores, in the order of the columns of their values."""
    add: tuple[str, ...]
    weight: float = 1.0
    """Weight of the sum."""
    features: tuple[str, ...] = ()
    tree: Trees | None = None
    candidates: int = 100
    """Number of labels requested from each score that can search."""
    baselines: tuple[str, ...] = ()
    """Scores that the fusion is compared with; if empty, those that it adds."""

    def scores(self, values_NKF: F32) -> F32:
        """Return the fused score of every candidate (N x K)."""
        column = {name: i for i, name in enumerate(self.names)}
        added = sum((values_NKF[..., column[name]] for name in self.add), np.float32(0.0))
        total = np.broadcast_to(np.asarray(added, np.float32), values_NKF.shape[:2]).copy()
        if self.tree is not None:
            total *= np.float32(self.weight)
            columns = [column[name] for name in self.features]
            flat = values_NKF[..., columns].reshape(-1, len(columns))
            total += self.tree.predict(flat).reshape(total.shape).astype(np.float32)
        return total

    def rank(self, ids_NK: I32, values_NKF: F32) -> Shortlist:
        """Return the candidates by descending fused score, holes last."""
        return Shortlist.ranked(ids_NK, self.scores(values_NKF))

    def parts(self) -> dict[str, FittedFusion]:
        """Return each baseline alone and, if there are several, their plain sum."""
        names = self.baselines or self.add
        alone = {name: FittedFusion(self.rule, self.names, (name,)) for name in names}
        return alone | ({SUM: FittedFusion(self.rule, self.names, names)} if len(names) > 1 else {})

    def part(self, name: str) -> FittedFusion:
        """Return one of ``parts`` to be used instead of this fusion; it has the same baselines."""
        return replace(self.parts()[name], candidates=self.candidates, baselines=self.baselines or self.add)

    def write(self, folder: Path) -> None:
        """Write ``fusion.json`` into ``folder``."""
        content = {
            "rule": plain(self.rule),
            "names": self.names,
            "add": self.add,
            "weight": self.weight,
            "features": self.features,
            "candidates": self.candidates,
            "baselines": self.baselines,
            "tree": None if self.tree is None else self.tree.to_dict(),
        }
        (folder / _FILE).write_text(json.dumps(content, sort_keys=True) + "\n", "utf-8")

    @classmethod
    def open(cls, folder: Path) -> FittedFusion:
        """Open and verify the artefact at ``folder``.

        Raises MissingError, CorruptError.
        """
        artifacts.verify(folder, kind=cls.kind)
        return cls.read(folder)

    @classmethod
    def read(cls, folder: Path) -> FittedFusion:
        """Read the fusion in ``folder``; the caller must have verified the file. Raises MissingError."""
        path = folder / _FILE
        if not path.is_file():
            raise MissingError(f"no {path}", expected="a saved fusion", do="run the stage fusion")
        content = json.loads(path.read_text("utf-8"))
        rule = changed(FUSIONS[content["rule"][KIND]](), content["rule"], "fusion.rule")
        names, add, features, baselines = (tuple(content[n]) for n in ("names", "add", "features", "baselines"))
        tree = rule.trees(content["tree"]) if content["tree"] else None
        return cls(rule, names, add, float(content["weight"]), features, tree, int(content["candidates"]), baselines)
