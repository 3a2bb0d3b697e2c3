"""The contract of a fusion: it combines the values of several scores into one, and knows no score by name.

``FittedFusion`` is also the artefact of the stage fusion, the files ``fusion.json`` and ``log_weights.npy``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from xc_core import artifacts
from xc_core.errors import OLDEST_RELEASE, ConfigError, CorruptError, MissingError, UsageError, nearest
from xc_core.fusion.by_sum import BySum
from xc_core.fusion.derived import derived
from xc_core.fusion.dial import Dial, checked, checked_probability
from xc_core.fusion.inputs import SUM, Inputs, Pairs, Trees
from xc_core.params import KIND, changed, plain
from xc_core.plugins import Part, Table
from xc_core.shapes import F32, I32, PAD_ID, Bool, Shortlist

_FILE: Final = "fusion.json"
_LEAST_PROBABILITY: Final = 1e-4
"""Lower probabilities count as this one where logarithms are added: most candidates have 0."""


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

    def any_level(self) -> bool:
        """Return True if a fit minimises errors of order alone: its scores have a meaning beside each other only."""
        return False

    def require(self) -> None:
        """Raise MissingError if a package that the fit needs is not installed."""

    def fit_bytes(self, values: float) -> float:
        """Return the bytes that a fit holds beside the values of the scores, which have ``values`` bytes."""
        return 0.0

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
    weights: tuple[float, ...] = ()
    """Weight of each score in ``add``; if empty, 1."""
    features: tuple[str, ...] = ()
    tree: Trees | None = None
    candidates: int = 100
    """Number of labels requested from each score that can search."""
    baselines: tuple[str, ...] = ()
    """Scores that the fusion is compared with; if empty, those that it adds."""
    derived: bool = False
    """True if the trees also read the features of ``derived``."""
    dial: Dial | None = None
    """The dial between P@k and PSP@k; None if none was fitted."""
    offsets: tuple[str, ...] = ()
    """Scores that are the same for every document; each is also added to every other baseline alone."""
    logarithms: tuple[str, ...] = ()
    """Scores in ``add`` whose logarithm (``log_of``) is added instead of the value."""
    by_sum: BySum | None = None
    """Least fused scores of labels without train documents; None if the rule alone ranks them."""

    def scores(self, values_NKF: F32, found_NK: Bool | None = None) -> F32:
        """Return the fused score of every candidate (N x K).

        ``found_NK`` marks the labels among the candidates, by default all; scores of holes have no meaning.
        """
        return self.raised(values_NKF, self.by_rule(values_NKF, found_NK))

    def by_rule(self, values_NKF: F32, found_NK: Bool | None = None) -> F32:
        """Return what ``scores`` does before labels without train documents are ``raised``."""
        total = np.zeros(values_NKF.shape[:2], np.float32)
        for name, weight in self.weight_of().items():
            total += np.float32(weight) * self.read_by_sum(name, values_NKF)
        if self.tree is not None:
            is_label_NK = np.ones(total.shape, bool) if found_NK is None else found_NK
            total[is_label_NK] += self.tree.predict(self.features_of(values_NKF, is_label_NK)).astype(np.float32)
        return total

    def raised(self, values_NKF: F32, fused_NK: F32) -> F32:
        """Return fused scores, those of labels without train documents at least what ``by_sum`` has at their sum."""
        if self.by_sum is None:
            return fused_NK
        new_NK = values_NKF[..., self.names.index(self.by_sum.counts)] == 0
        raised_NK = fused_NK.copy()
        raised_NK[new_NK] = np.maximum(fused_NK[new_NK], self.by_sum.fused(self.plain_sum(values_NKF[new_NK])))
        return raised_NK

    def plain_sum(self, values_MF: F32) -> F32:
        """Return the sum of the scores that the fusion is compared with, given the values of all scores (M)."""
        columns = [self.names.index(name) for name in self.baselines or self.add]
        return np.asarray(values_MF[:, columns].sum(-1, dtype=np.float32))

    def with_by_sum(self, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        """Return the fusion with ``by_sum`` fitted on ``pairs``; without trees or a count of documents, as it is."""
        if self.tree is None or not inputs.counts:
            return self
        known_NK = pairs.found_NK & (pairs.values_NKF[..., self.names.index(inputs.counts)] != 0)
        fused_NK = self.by_rule(pairs.values_NKF, pairs.found_NK)
        by_sum = BySum.fit(inputs.counts, self.plain_sum(pairs.values_NKF[known_NK]), fused_NK[known_NK])
        return replace(self, by_sum=by_sum)

    def read_by_sum(self, name: str, values_NKF: F32) -> F32:
        """Return what the weighted sum reads of a score (... x K), given the values of all scores (... x K x F)."""
        values_NK = values_NKF[..., self.names.index(name)]
        return log_of(values_NK) if name in self.logarithms else values_NK

    def weight_of(self) -> dict[str, float]:
        """Return the weight of each score that is added; without 0, which would make infinity a NaN.

        A score that is named twice has the sum of its weights.
        """
        total = dict.fromkeys(self.add, 0.0)
        for name, weight in zip(self.add, self.weights or (1.0,) * len(self.add), strict=True):
            total[name] += weight
        return {name: weight for name, weight in total.items() if weight}

    def features_of(self, values_NKF: F32, found_NK: Bool) -> F32:
        """Return what the trees read of the M found candidates, document by document (M x G)."""
        columns = [self.names.index(name) for name in self.features]
        if self.derived:
            return derived(values_NKF[..., columns], found_NK)
        return np.asarray(values_NKF[found_NK][:, columns])

    @property
    def turns(self) -> bool:
        """True if the position of the dial changes the order."""
        return self.dial is not None and self.dial.reach > 0

    def rank(self, ids_NK: I32, values_NKF: F32, tail: float | None = None) -> Shortlist:
        """Return the candidates by descending fused score at dial ``tail``, by default the dial's own; holes last.

        Raises UsageError for a ``tail`` outside 0 to 1, or above 0 if the fusion has no dial.
        """
        return Shortlist.ranked(ids_NK, self.turned(ids_NK, self.scores(values_NKF, ids_NK != PAD_ID), tail))

    def turned(self, ids_NK: I32, fused_NK: F32, tail: float | None) -> F32:
        """Return the fused scores (N x K) of candidates at dial ``tail``; raise UsageError as ``rank`` does."""
        if self.dial is not None:
            return self.dial.turned(ids_NK, fused_NK, tail)
        if tail is not None and checked(tail):
            raise _no_dial("tail", tail)
        return fused_NK

    def probabilities(self, short: Shortlist, tail: float | None = None) -> F32 | None:
        """Return the probability that each label of ``short``, ranked at dial ``tail``, is positive (N x K).

        None without a dial: its curve gives the probabilities.
        """
        return None if self.dial is None else self.dial.probability(short.ids_NK, short.scores_NK, tail)

    def likely(self, short: Shortlist, least: float, tail: float | None = None) -> Shortlist:
        """Return ``short``, ranked at dial ``tail``, without labels whose probability is below ``least``.

        Raises UsageError for a ``least`` outside 0 to 1, or above 0 if the fusion has no dial.
        """
        if not checked_probability(least):
            return short
        probability_NK = self.probabilities(short, tail)
        if probability_NK is None:
            raise _no_dial("min_probability", least)
        return short.without(probability_NK < least)

    def parts(self) -> dict[str, FittedFusion]:
        """Return each baseline alone, each with an offset and, if there are several, their plain sum."""
        names = self.baselines or self.add
        added: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
        for offset in self.offsets if len(names) > 2 else ():  # of two, the pair is the sum
            added |= {f"{name}_and_{offset}": (name, offset) for name in names if name not in self.offsets}
        if len(names) > 1:
            added[SUM] = names
        return {name: FittedFusion(self.rule, self.names, add) for name, add in added.items()}

    def part(self, name: str) -> FittedFusion:
        """Return one of ``parts`` to be used instead of this fusion; it has the same baselines."""
        baselines = self.baselines or self.add
        return replace(self.parts()[name], candidates=self.candidates, baselines=baselines, offsets=self.offsets)

    @property
    def instead(self) -> str:
        """The part that is used instead of the fitted rule, as in ``parts``; empty if the rule itself is used."""
        if not self.rule.learns or self.tree is not None:
            return ""
        return next(name for name, part in self.parts().items() if part.add == self.add)

    def write(self, folder: Path) -> None:
        """Write ``fusion.json`` and the dial's ``log_weights.npy`` into ``folder``."""
        content = {
            "rule": plain(self.rule),
            "names": self.names,
            "add": self.add,
            "weights": self.weights,
            "features": self.features,
            "candidates": self.candidates,
            "baselines": self.baselines,
            "tree": None if self.tree is None else self.tree.to_dict(),
        }
        if self.derived:
            content["derived"] = True
        if self.dial is not None:
            content["dial"] = self.dial.write(folder)
        if self.offsets:
            content["offsets"] = self.offsets
        if self.logarithms:
            content["logarithms"] = self.logarithms
        if self.by_sum is not None:
            content["by_sum"] = self.by_sum.to_dict()
        (folder / _FILE).write_text(json.dumps(content, sort_keys=True) + "\n", "utf-8")

    @classmethod
    def open(cls, folder: Path) -> FittedFusion:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        return cls.read(folder)

    @classmethod
    def read(cls, folder: Path) -> FittedFusion:
        """Read the fusion in ``folder``; the caller must have verified the file. Raises MissingError, CorruptError."""
        path = folder / _FILE
        if not path.is_file():
            raise MissingError(f"no {path}", expected="a saved fusion", do="run the stage fusion")
        content = json.loads(path.read_text("utf-8"))
        rule = changed(FUSIONS[content["rule"][KIND]](), content["rule"], "fusion.rule")
        if "baselines" not in content:
            raise CorruptError(
                f"no baselines in {path}",
                expected=f"what {OLDEST_RELEASE} or a later version wrote",
                do="fit the fusion again: xc run fusion --force, then xc run model, both with --dataset and --recipe",
            )
        names, add, features, baselines = (tuple(content[name]) for name in ("names", "add", "features", "baselines"))
        tree = rule.trees(content["tree"]) if content["tree"] else None
        fitted = cls(rule, names, add, _weights(content), features, tree, int(content["candidates"]), baselines)
        dial = Dial.read(folder, content["dial"]) if "dial" in content else None
        offsets, logarithms = (tuple(content.get(name, ())) for name in ("offsets", "logarithms"))
        read_derived = bool(content.get("derived", False))
        by_sum = BySum.from_dict(content["by_sum"]) if "by_sum" in content else None
        return replace(fitted, derived=read_derived, dial=dial, offsets=offsets, logarithms=logarithms, by_sum=by_sum)


def _no_dial(name: str, value: float) -> UsageError:
    return UsageError(
        f"{name} {value} for a fusion without a dial",
        expected="a fusion with enough validation documents that no score has seen, by a version with dials",
        do=f"leave {name} out; if there are such documents: xc run fusion --force, then xc run model, both with "
        "--dataset and --recipe",
    )


def log_of(values: F32) -> F32:
    """Return the logarithm of each probability, which counts as at least ``_LEAST_PROBABILITY``."""
    return np.log(np.maximum(values, np.float32(_LEAST_PROBABILITY)))


def _weights(content: dict[str, Any]) -> tuple[float, ...]:
    """Return the weight of each added score; files of 0.2.0 have one for all, which counts beside trees."""
    if "weights" in content:
        return tuple(map(float, content["weights"]))
    return (float(content["weight"]),) * len(content["add"]) if content["tree"] else ()
