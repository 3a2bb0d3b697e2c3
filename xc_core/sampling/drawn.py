"""Sources that draw negatives for each chosen positive from a noise distribution: uniform, frequency, label tree.

Takes: LabelMatrix, document positions, document vectors.   Gives: NegativeSource.
May import: seeds, shapes, data.labels, sampling.*.         Never: leaves out a draw that happens to be a positive.

A draw that is a positive of its document counts as a negative too: equation 2 of Bamler and Mandt (2020) has it so, and
without it the optimum would not be log p - log p_n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.sampling.base import NEGATIVES, LabelPool, NegativesConfig, mask
from xc_core.sampling.label_tree import LabelTree
from xc_core.sampling.negatives import InBatch
from xc_core.sampling.noise import FrequencyNoise, Noise
from xc_core.seeds import derive, generator
from xc_core.shapes import F32, F64, I64, Array


@NEGATIVES.register("uniform")
class Uniform(InBatch):
    """``draws`` labels for each chosen positive, each label as likely as any other: p_n(y) = 1 / L."""

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return positives and draws, each counted; they depend on the seed, ``step`` and the noise alone."""
        chosen = self._chosen(docs_B, step)
        rows, _ = chosen.pairs()
        drawn_PK = self._drawn(docs_B, rows, generator(self.seed, "noise", step))
        labels_U, at = np.unique(np.concatenate([chosen.indices, drawn_PK.ravel()]), return_inverse=True)
        weight_BU = np.zeros((len(docs_B), len(labels_U)), np.float32)
        columns = at[len(rows) :].reshape(drawn_PK.shape)
        np.add.at(weight_BU, (np.broadcast_to(rows[:, None], columns.shape), columns), 1.0)
        known_BU, chosen_BU = mask(self.known.rows(docs_B), labels_U), mask(chosen, labels_U)
        noise_BU = np.zeros_like(weight_BU)
        used = np.nonzero(chosen_BU | (weight_BU > 0))
        noise_BU[used] = self._log_prob(docs_B, used[0], labels_U[used[1]])
        return LabelPool(labels_U.astype(np.int64), chosen_BU, known_BU, weight_BU, noise_BU)

    def _drawn(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        """Return the draws for each chosen pair of the batch's ``rows`` (P x draws)."""
        return random.integers(0, self.truth.num_labels, (len(rows), self.config.draws))

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> Any:
        """Return log p_n of pairs (batch row, label)."""
        return -np.log(self.truth.num_labels)


@NEGATIVES.register("frequency")
class Frequency(Uniform):
    """Draws from the train pairs: p_n(y) = share of y among them (word2vec's, without its power)."""

    def __init__(
        self, config: NegativesConfig, truth: LabelMatrix, seed: int, filters: LabelMatrix | None = None
    ) -> None:
        super().__init__(config, truth, seed, filters)
        self.shares = FrequencyNoise.of(self.truth)
        self.cumulative_L = np.cumsum(np.exp(self.shares.log_prob_L))

    def noise(self) -> Noise:
        """Return the shares."""
        return self.shares

    def _drawn(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        uniform = random.random((len(rows), self.config.draws)) * self.cumulative_L[-1]
        at = np.searchsorted(self.cumulative_L, uniform, side="right")
        return np.asarray(np.minimum(at, self.truth.num_labels - 1), np.int64)

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> F64:
        return self.shares.log_prob_L[labels]


@NEGATIVES.register("tree")
class Tree(Uniform):
    """Draws from the probabilistic label tree, fitted once to the documents' vectors: p_n(y | x) (Bamler and Mandt)."""

    def __init__(
        self, config: NegativesConfig, truth: LabelMatrix, seed: int, filters: LabelMatrix | None = None
    ) -> None:
        super().__init__(config, truth, seed, filters)
        self.tree: LabelTree | None = None
        self.features_NQ: F64 = np.zeros((len(self.truth), 0))

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Fit the tree where there is none yet; return its likelihood and the signal it promises beside others'."""
        if self.tree is not None:
            return {}
        config = self.config
        self.tree = LabelTree.fit(
            doc_ND,
            self.truth,
            width=config.tree_width,
            regulariser=config.tree_regulariser,
            seed=derive(self.seed, "tree"),
        )
        self.features_NQ = self.tree.features(doc_ND)
        return self._figures()

    def noise(self) -> Noise | None:
        """Return the tree."""
        return self.tree

    def arrays(self) -> dict[str, Array]:
        """Return the tree and the documents as it sees them."""
        if self.tree is None:
            return {}
        return {"features": self.features_NQ} | {f"tree/{name}": part for name, part in self.tree.arrays().items()}

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over a fitted tree."""
        if arrays:
            own = {name.removeprefix("tree/"): part for name, part in arrays.items() if name.startswith("tree/")}
            self.tree, self.features_NQ = LabelTree.from_arrays(own), arrays["features"]

    def _drawn(self, docs_B: I64, rows: I64, random: np.random.Generator) -> I64:
        return self._fitted().walk(self.features_NQ[docs_B[rows]], random, self.config.draws)

    def _log_prob(self, docs_B: I64, rows: I64, labels: I64) -> F64:
        return self._fitted().path_log_prob(self.features_NQ[docs_B[rows]], labels[:, None])[:, 0]

    def _fitted(self) -> LabelTree:
        if self.tree is None:
            raise RuntimeError("the tree draws only after its first refresh")
        return self.tree

    def _figures(self) -> dict[str, float]:
        """Return the mean log likelihood of train pairs, and the signal of the tree, frequencies and uniform draws."""
        random = generator(self.seed, "signal")
        docs = np.sort(random.choice(len(self.truth), min(2000, len(self.truth)), replace=False))
        rows, labels = self.truth.rows(docs).pairs()
        tree = self._log_prob(docs, rows, labels.astype(np.int64))
        share = 1 / np.maximum(self.truth.counts_N[docs][rows], 1)
        others = {
            "frequency": FrequencyNoise.of(self.truth).log_prob_L[labels],
            "uniform": -np.log(self.truth.num_labels),
        }
        return {"tree_log_likelihood": float(tree.mean())} | {
            f"signal_{name}": signal(share, np.exp(noise), len(docs))
            for name, noise in {"tree": tree, **others}.items()
        }


def signal(data_P: F64, noise_P: F64, docs: int) -> float:
    """Return 2 sum_y p_D p_n / (p_D + p_n), averaged over documents: between 0 and 1, 1 where noise equals data.

    ``data_P`` and ``noise_P`` are p_D(y | x) and p_n(y | x) of the positive pairs of ``docs`` documents (elsewhere p_D
    is 0 and so is the term). It is the quantity that theorem 2 maximises, the trace of the Hessian at the optimum,
    times 2: the signal-to-noise ratio of a gradient of negative sampling rises with it (equations 13 to 16).
    """
    return float((2 * data_P * noise_P / (data_P + noise_P)).sum() / max(docs, 1))
