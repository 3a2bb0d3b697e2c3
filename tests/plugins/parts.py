"""A loss, an order of mini-batches, a source of negatives, an index and a layout, each the smallest that is of use."""

import json
from dataclasses import dataclass

import numpy as np

from xc_core.ann.base import INDEXES, IndexPart
from xc_core.ann.exact import ExactIndex
from xc_core.data.formats.base import LAYOUTS, Block, Layout, need
from xc_core.losses.base import LOSSES, Stateless
from xc_core.sampling.base import NEGATIVES, ORDERS, Negatives, Order
from xc_core.sampling.negatives import Source
from xc_core.sampling.order import RandomOrder


@LOSSES.register("hinge")
@dataclass(frozen=True, kw_only=True)
class Hinge(Stateless):
    """Every positive must beat the mean negative by a margin."""

    margin: float = 0.5

    def __call__(self, scores_BU, chosen_BU, known_BU, sampled=None):
        negative_BU = (~(chosen_BU | known_BU)).float()
        mean_B = (scores_BU * negative_BU).sum(1) / negative_BU.sum(1).clamp(min=1)
        cost_BU = (mean_B[:, None] - scores_BU + self.margin).clamp(min=0) * chosen_BU
        return cost_BU.sum(), chosen_BU.sum()


@ORDERS.register("by-label")
@dataclass(frozen=True, kw_only=True)
class ByLabel(Order):
    """Documents whose first label is the same are next to each other."""

    batch_size: int = 32

    def build(self, documents, seed):
        first_N = np.full(len(documents), -1)
        docs, labels = documents.truth.pairs()
        first_N[docs[::-1]] = labels[::-1]
        return Sorted(self.batch_size, len(documents), seed, np.argsort(first_N, kind="stable"))


@dataclass
class Sorted(RandomOrder):
    sorted_N: np.ndarray

    def batches(self, epoch):
        return np.array_split(self.sorted_N, max(-(-self.size // self.batch_size), 1))


@NEGATIVES.register("popular")
@dataclass(frozen=True, kw_only=True)
class Popular(Negatives):
    """The batch's positives and the most frequent labels."""

    most: int = 4

    def build(self, documents, seed):
        return PopularSource(self, documents, seed)


class PopularSource(Source):
    def pool(self, docs_B, step):
        chosen = self._chosen(docs_B, step)
        popular = np.argsort(-self.truth.frequency_L(), kind="stable")[: self.settings.most]
        return self._pool(docs_B, chosen, np.union1d(chosen.indices, popular).astype(np.int64))


@INDEXES.register("half")
@dataclass(frozen=True, kw_only=True)
class Half(IndexPart):
    """Exact search over vectors of half precision."""

    def _built(self, vectors_LD):
        return HalfIndex(vectors_LD.astype(np.float16).astype(np.float32))

    def load(self, folder, width):
        return HalfIndex(np.load(folder / "half.npy", allow_pickle=False).astype(np.float32))


class HalfIndex(ExactIndex):
    part = Half()

    def save(self, folder):
        np.save(folder / "half.npy", self.vectors_LD.astype(np.float16))


class Pairs:
    """Reads ``train.pairs`` and ``test.pairs``: one JSON list [text, label, label, ...] a line; labels are numbers."""

    def __init__(self, folder, options):
        self.paths = {split: need(folder, f"{split}.pairs") for split in ("train", "test")}
        self.names = need(folder, "names.json")
        self.files = [*self.paths.values(), self.names]

    def labels(self):
        names = json.loads(self.names.read_text("utf-8"))
        yield Block("names.json", 1, names, names, [""] * len(names))

    def documents(self, split):
        rows = [json.loads(line) for line in self.paths[split].read_text("utf-8").splitlines()]
        ids, counts = np.concatenate([row[1:] for row in rows]), np.array([len(row) - 1 for row in rows])
        uids, texts = [f"{split}-{i}" for i in range(len(rows))], [row[0] for row in rows]
        yield Block(self.paths[split].name, 1, uids, texts, [""] * len(rows), ids.astype(np.int64), counts)

    def filters(self, split):
        return None


LAYOUTS.add("pairs", Layout("pairs", ("train.pairs", "names.json"), "train.pairs, test.pairs, names.json", Pairs))
