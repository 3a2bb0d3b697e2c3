"""Sources that draw negatives for each chosen positive from a noise distribution: uniform, frequency, label tree.

A draw that is a positive of its document counts as a negative too, as in equation 2 of Bamler and Mandt (2020);
otherwise the optimum would not be log p - log p_n. A draw that predictions leave out (a filtered pair) counts for
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from xc_core.errors import ConfigError
from xc_core.params import at_least, at_most
from xc_core.sampling.base import NEGATIVES, Documents, LabelPool, LabelVectors, Negatives, NegativeSource, mask
from xc_core.sampling.label_tree import LabelTree
from xc_core.sampling.negatives import Source
from xc_core.sampling.noise import FrequencyNoise, Noise
from xc_core.seeds import derive, generator
from xc_core.shapes import F32, F64, I64, Array


@dataclass(frozen=True, kw_only=True)
class Drawn(Negatives):
    """Settings of sources that draw labels for each chosen positive, with replacement."""

    code_version = "2"  # filtered pairs were negatives
    draws: int = 1
    """Labels drawn for each chosen positive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, draws=1)


@NEGATIVES.register("uniform")
@dataclass(frozen=True, kw_only=True)
class Uniform(Drawn):
    """Every label with the same probability: p_n(y) = 1 / L."""

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return UniformSource(self, documents, seed)


@NEGATIVES.register("frequency")
@dataclass(frozen=True, kw_only=True)
class Frequency(Drawn):
    """Every label with its share of the train pairs (the noise of word2vec, without the exponent)."""

    draws_from_noise = True

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return FrequencySource(self, documents, seed)


@NEGATIVES.register("tree")
@dataclass(frozen=True, kw_only=True)
class Tree(Drawn):
    """Labels from a probabilistic label tree, fitted once to the documents' vectors: p_n(y | x) (Bamler and Mandt)."""

    draws_from_noise = True
    adapts = True
    width: int = 16
    """Principal components of the document vectors that the tree uses."""
    regulariser: float = 0.01
    """lambda_n of the fit (equation 8)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, width=1)
        at_most(self, width=65_536)
        if self.regulariser <= 0:
            raise ConfigError(f"regulariser {self.regulariser}", expected="above 0", do="fix the value")

    def due(self, epoch: int) -> bool:
        """Return True for the first epoch, before which the tree is fitted."""
        return epoch == 0

    def reads(self, epoch: int) -> bool:
        """Return True if the tree is fitted before ``epoch``."""
        return self.due(epoch)

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return TreeSource(self, documents, seed)


D = TypeVar("D", bound=Drawn)


class _DrawnSource(Source[D]):
    """``draws`` labels for each chosen positive."""

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return positives and draws; a label's weight is how often it was drawn.

        Draws depend on the seed, ``step`` and the noise alone.
        """
        chosen = self._chosen(docs_B, step)
        rows, _ = chosen.pairs()
        drawn_PK = self._draw(docs_B, rows, generator(self.seed, "noise", step))
        labels_U, position = np.unique(np.concatenate([chosen.indices, drawn_PK.ravel()]), return_inverse=True)
        weight_BU = np.zeros((len(docs_B), len(labels_U)), np.float32)
        columns = position[len(rows) :].reshape(drawn_PK.shape)
        np.add.at(weight_BU, (np.broadcast_to(rows[:, None], columns.shape), columns), 1.0)
        known_BU, chosen_BU = mask(self.known.rows(docs_B), labels_U), mask(chosen, labels_U)
        if self.filters is not None:
            weight_BU[mask(self.filters.rows(docs_B), labels_U)] = 0.0
        noise_BU = np.zeros_like(weight_BU)
        used = np.nonzero(chosen_BU | (weight_BU > 0))
        noise_BU[used] = self._log_prob(docs_B, used[0], labels_U[used[1]])
        return LabelPool(labels_U.astype(np.int64), chosen_BU, known_BU, weight_BU, noise_BU)

    def _draw(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        """Return the draws for each chosen pair of the batch's ``rows`` (P x draws)."""
        raise NotImplementedError

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> Any:
        """Return log p_n of pairs (batch row, label)."""
        raise NotImplementedError


class UniformSource(_DrawnSource[Uniform]):
    """Uniform draws."""

    def _draw(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        return random.integers(0, self.truth.num_labels, (len(rows), self.settings.draws))

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> Any:
        return -np.log(self.truth.num_labels)


class FrequencySource(_DrawnSource[Frequency]):
    """Draws from the train pairs."""

    def __init__(self, settings: Frequency, documents: Documents, seed: int) -> None:
        super().__init__(settings, documents, seed)
        self.shares = FrequencyNoise.of(self.truth)
        self.cumulative_L = np.cumsum(np.exp(self.shares.log_prob_L))

    def noise(self) -> Noise:
        """Return the distribution."""
        return self.shares

    def _draw(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        uniform = random.random((len(rows), self.settings.draws)) * self.cumulative_L[-1]
        labels = np.searchsorted(self.cumulative_L, uniform, side="right")
        return np.asarray(np.minimum(labels, self.truth.num_labels - 1), np.int64)

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> F64:
        return self.shares.log_prob_L[labels]


class TreeSource(_DrawnSource[Tree]):
    """Draws from the label tree."""

    def __init__(self, settings: Tree, documents: Documents, seed: int) -> None:
        super().__init__(settings, documents, seed)
        self.tree: LabelTree | None = None
        self.features_NQ: F64 = np.zeros((len(self.truth), 0))

    def refresh(self, epoch: int, doc_ND: F32, labels: LabelVectors) -> dict[str, float]:
        """Fit the tree if there is none yet; return its likelihood, its signal, and that of other noise."""
        if self.tree is not None:
            return {}
        seed = derive(self.seed, "tree")
        self.tree = LabelTree.fit(
            doc_ND, self.truth, width=self.settings.width, regulariser=self.settings.regulariser, seed=seed
        )
        self.features_NQ = self.tree.features(doc_ND)
        return self._figures()

    def noise(self) -> Noise | None:
        """Return the tree."""
        return self.tree

    def arrays(self) -> dict[str, Array]:
        """Return the tree and the documents after its PCA."""
        if self.tree is None:
            return {}
        return {"features": self.features_NQ} | {f"tree/{name}": values for name, values in self.tree.arrays().items()}

    def load(self, arrays: dict[str, Array]) -> None:
        """Restore a fitted tree."""
        if arrays:
            prefix = "tree/"
            tree = {name.removeprefix(prefix): v for name, v in arrays.items() if name.startswith(prefix)}
            self.tree, self.features_NQ = LabelTree.from_arrays(tree), arrays["features"]

    def _draw(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        return self._require_tree().walk(self.features_NQ[docs_B[rows]], random, self.settings.draws)

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> F64:
        return self._require_tree().path_log_prob(self.features_NQ[docs_B[rows]], labels[:, None])[:, 0]

    def _require_tree(self) -> LabelTree:
        if self.tree is None:
            raise RuntimeError("a draw before the first refresh, which fits the tree")
        return self.tree

    def _figures(self) -> dict[str, float]:
        """Return the mean log likelihood of train pairs, and the signal of the tree, frequencies and uniform draws."""
        random = generator(self.seed, "signal")
        docs = np.sort(random.choice(len(self.truth), min(2000, len(self.truth)), replace=False))
        rows, labels = self.truth.rows(docs).pairs()
        tree = self._log_prob(docs, rows, labels.astype(np.int64))
        share = 1 / np.maximum(self.truth.counts_N[docs][rows], 1)
        baselines = {
            "frequency": FrequencyNoise.of(self.truth).log_prob_L[labels],
            "uniform": -np.log(self.truth.num_labels),
        }
        return {"tree_log_likelihood": float(tree.mean())} | {
            f"signal_{name}": signal(share, np.exp(noise), len(docs))
            for name, noise in {"tree": tree, **baselines}.items()
        }


def signal(data_P: F64, noise_P: F64, docs: int) -> float:
    """Return 2 sum_y p_D p_n / (p_D + p_n), averaged over documents: between 0 and 1, 1 if noise equals data.

    ``data_P`` and ``noise_P`` are p_D(y | x) and p_n(y | x) of the positive pairs of ``docs`` documents (for other
    pairs p_D is 0 and so is the term). It is twice the trace of the Hessian at the optimum. The signal-to-noise ratio
    of a gradient of negative sampling rises with it (Bamler and Mandt, equations 13 to 16 and theorem 2).
    """
    return float((2 * data_P * noise_P / (data_P + noise_P)).sum() / max(docs, 1))
