"""What each stage of a recipe costs, as formulas: its work and what it searches; ``stage_bytes`` counts bytes.

    seconds = imports + fixed + rate x work + searches (+ steps of a training)

``work`` and searches are counted here, in words beside each. Fixed costs and rates come from pilots
(``pilots``), steps from the budget's timings (``budget``). Assumed throughout: texts like those of the pilots, and
rates that do not change with size, although rows of tables larger than the caches are slower. Several processes
(torchrun) divide the work of four stages equally (docs/many-machines.md); what they exchange takes no time here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

from xc_core.ann.base import BATCHES_EXACT_UP_TO, EXACT_UP_TO
from xc_core.ann.ivf import POINTS
from xc_core.planning.data_size import DataSize, uniform_pool
from xc_core.planning.frozen import freezes_layers
from xc_core.recipes import Recipe
from xc_core.scores.base import Footprint, HasIndex, Score, Size
from xc_core.scores.vectors import ALONE

_TEXT_TOKENS: Final = 8
"""A text costs as much as these tokens, whatever its length: an id, a row, a line (a guess)."""
FLOAT: Final = 4
"""Bytes of a number of a vector."""
_UNTRAINED_ROW: Final = 0.5
"""Work of a label row that M4 does not train, as a share of one that it trains: it is written and hashed, but not
copied into a table and out of it (a guess: two passes over the row against four)."""
_AUDIT_SEARCHES: Final = 2
"""Exact searches of the stage audit per sampled document."""
_KMEANS_ROUNDS: Final = 10
"""Rounds of k-means by which faiss fits the cells of an IVF index."""
_SPECIAL_TOKENS: Final = 2
"""Special tokens of a text."""


@dataclass(frozen=True)
class Case:
    """A recipe on a data set of some size, with vectors of ``width``."""

    recipe: Recipe
    world: DataSize
    width: int
    processes: int = 1
    """Processes of the stages that can be distributed; all other stages run in one."""
    memory: float = math.inf
    """Bytes of memory of the machine: M1 encodes texts twice if a step takes more (``step_memory``)."""

    @property
    def fused(self) -> int:
        """Validation documents that the fusion is fitted on."""
        return min(self.recipe.fusion.rows, self.world.validation)

    @property
    def fitted(self) -> int:
        """Documents that scores are fitted on, over all folds."""
        return sum(self.world.folds(self.recipe))

    @property
    def searched(self) -> int:
        """Scores that search among the vectors of labels."""
        return sum(score.searches and isinstance(score, HasIndex) for score in self.recipe.scores.values())

    @property
    def searched_per_fold(self) -> int:
        """The same, of the scores that are fitted and kept for each fold."""
        scores = self.recipe.scores.values()
        return sum(score.searches and score.per_fold and isinstance(score, HasIndex) for score in scores)

    @property
    def measured(self) -> int:
        """Documents that the indexes of all searching scores are asked for their recall, each one once."""
        return self.searched * min(self.world.validation or self.world.train, ALONE)

    @cached_property
    def footprint(self) -> Footprint:
        """What the scores, fitted on all documents, take beside indexes over labels."""
        return self._footprint(*self.recipe.scores.values())

    @cached_property
    def footprint_per_fold(self) -> Footprint:
        """The same, of the scores that are fitted and kept for each fold."""
        return self._footprint(*(score for score in self.recipe.scores.values() if score.per_fold))

    def _footprint(self, *scores: Score) -> Footprint:
        world = self.world
        pairs, chars = world.published * world.pairs, (world.document_chars, world.label_chars)
        size = Size(world.published, world.labels, pairs, self.width, *chars)
        return sum((score.footprint(size) for score in scores), Footprint())

    @property
    def table_bytes(self) -> int:
        """Bytes of a table with a row per label."""
        return self.world.labels * self.width * FLOAT

    @property
    def shard_bytes(self) -> int:
        """Bytes of the rows of such a table that a process of a distributed stage has."""
        return self.shard * self.width * FLOAT

    @property
    def shard(self) -> int:
        """Labels of a process of a distributed stage."""
        return math.ceil(self.world.labels / self.processes)

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors of train and validation documents."""
        return self.world.published * self.width * FLOAT

    @property
    def batch(self) -> int:
        """Documents of a batch of M1."""
        return int(min(getattr(self.recipe.encoder.order, "batch_size", 1), trained_documents("encoder", self)))

    @cached_property
    def pool(self) -> int:
        """Labels that a batch of M1 is scored against, if it reads their texts; for sizes alone, drawn uniformly."""
        world = self.world
        return world.pool or uniform_pool(self.recipe.encoder, self.batch, round(world.pairs), world.labels)

    @property
    def refreshes(self) -> int:
        """Epochs of M1 before which documents are clustered or searched for."""
        settings = self.recipe.encoder
        epochs = range(math.ceil(settings.epochs))
        return sum(settings.order.due(epoch) or settings.negatives.due(epoch) for epoch in epochs)

    @property
    def fills_banks(self) -> bool:
        """True if M1 encodes everything before its first step."""
        settings = self.recipe.encoder
        return settings.epochs > 0 and settings.fills_banks

    @property
    def keeps_states(self) -> bool:
        """True if M1, in one process on a CPU, computes the layers that are not trained once, before its first step."""
        return self.processes == 1 and self.repeats_frozen

    @property
    def repeats_frozen(self) -> bool:
        """True if M1 reads a text in several steps through layers that are not trained."""
        settings = self.recipe.encoder
        return freezes_layers(settings) and settings.epochs > 0 and settings.repeats

    def encoded(self, documents: int, labels: int) -> float:
        """Return the tokens that an encoder reads of so many documents and labels, special tokens included."""
        longest, world = self.recipe.encoder.encoder.max_length, self.world
        document = world.document_read or min(world.document_tokens + _SPECIAL_TOKENS, longest)
        label = world.label_read or min(world.label_tokens + _SPECIAL_TOKENS, longest)
        return documents * document + labels * label

    def read(self, documents: int) -> float:
        """Return the tokens that M1 reads with so many documents: each has one label text of the pool (a guess)."""
        return self.encoded(documents, documents)


def texts(case: Case) -> float:
    """Reading, checking and writing all texts: proportional to their tokens, and a constant per text."""
    world = case.world
    tokens = world.documents * world.document_tokens + world.labels * world.label_tokens
    return tokens + _TEXT_TOKENS * (world.documents + world.labels)


def clustering(size: int, target: int) -> float:
    """Return the work of balanced 2-means on ``size`` vectors: one pass over all of them per level of the tree."""
    return size * math.log2(max(size / target, 2))


WORK: Final[dict[str, Callable[[Case], float]]] = {
    "corpus": texts,
    "tokens": texts,
    # before the first step: train documents and labels are encoded into the banks
    "encoder": lambda case: case.encoded(case.world.train, case.world.labels),
    # every document and label is encoded once
    "embeddings": lambda case: case.encoded(case.world.documents, case.world.labels),
    "clusters": lambda case: clustering(case.world.published, case.recipe.clusters.size),
    # positives are removed from what the search found
    "negatives": lambda case: float(case.world.published if case.recipe.negatives.k else 1),
    # beside the steps: rows and vectors are copied, hashed and written for every fold
    "classifier": lambda case: float(
        case.fitted
        + case.world.labels
        * len(case.world.folds(case.recipe))
        * (1.0 if case.recipe.classifier.epochs else _UNTRAINED_ROW)
    ),
    # scores read the texts of their documents (the lexical score dominates where there is one)
    "scores": lambda case: case.fitted * case.world.document_tokens + case.world.labels * case.world.label_tokens,
    # values of all scores for all candidates, and the fit of the rule
    "fusion": lambda case: float(case.fused),
    # every test document is ranked by each score, their sum and the rule
    "evaluation": lambda case: float(case.world.test),
    "audit": lambda case: float(min(case.recipe.audit.sample, case.world.train)),
    # rows, indexes and texts are copied and hashed
    "model": lambda case: float(case.world.labels + case.world.published),
}
"""Work of each stage: the number that its seconds are proportional to, beside searches and steps of trainings."""


class SearchRates(Protocol):
    """What is read of the rates of a machine (``Rates``)."""

    @property
    def width(self) -> int:
        """Width of the vectors."""

    @property
    def exact(self) -> float:
        """Seconds per comparison and dimension."""

    @property
    def query(self) -> float:
        """Seconds per query."""

    @property
    def walked(self) -> float:
        """Seconds per query and level of a graph."""

    @property
    def built(self) -> float:
        """Seconds per vector and level of a graph that is built."""


@dataclass(frozen=True)
class SearchWork:
    """``queries`` searches among ``among`` vectors, and the graphs that are built for them."""

    queries: int
    among: int
    exact: bool = False
    """True if all vectors are compared whatever their number."""
    graphs: int = 0
    """Graphs that are built over the vectors."""
    nearest: bool = False
    """True if only the nearest vector is kept, which costs nothing beside the comparisons."""

    def seconds(self, rates: SearchRates) -> float:
        """Exact search compares every pair; a graph takes log2 of its size steps per query and per vector built."""
        levels = math.log2(max(self.among, 2))
        built = self.graphs * self.among * levels * rates.built
        if self.exact or self.among <= BATCHES_EXACT_UP_TO:
            per_query = 0.0 if self.nearest or not self.among else rates.query
            return built + self.queries * (self.among * rates.width * rates.exact + per_query)
        return built + self.queries * levels * rates.walked


def searches(case: Case) -> dict[str, list[SearchWork]]:
    """Return the searches of each stage, among labels and, for a vote of neighbours, among documents."""
    world, recipe, labels = case.world, case.recipe, case.world.labels
    large, shards = (int(size > BATCHES_EXACT_UP_TO) for size in (labels, case.shard))
    mined = case.refreshes if recipe.encoder.negatives.searches is not None else 0
    held_out = len(world.folds(recipe)) - 1
    served = int(labels > EXACT_UP_TO)
    near = case.footprint.compared
    return {
        "encoder": [SearchWork(mined * world.train, labels, graphs=mined * large)],
        "negatives": [SearchWork(world.published, case.shard, graphs=shards)] if recipe.negatives.k else [],
        # the recall compares an index with exact search, a graph is quick; cells are fitted, then filled
        "scores": [
            SearchWork(
                case.measured * (2 - served),
                labels,
                exact=True,
                graphs=case.searched * served + case.searched_per_fold * held_out * large,
            ),
            *(
                SearchWork(
                    (held_out + 1) * _KMEANS_ROUNDS * POINTS * cells + case.fitted, cells, exact=True, nearest=True
                )
                for cells in case.footprint.cells
            ),
        ],
        "fusion": [SearchWork(case.searched * case.fused, labels), SearchWork(case.fused, near, exact=True)],
        # the served index compares batches of queries with all labels
        "evaluation": [
            SearchWork(case.searched * world.test, labels, exact=True),
            SearchWork(world.test, near, exact=True),
        ],
        "audit": [SearchWork(_AUDIT_SEARCHES * min(recipe.audit.sample, world.train), labels, exact=True)],
    }


def trained_documents(name: str, case: Case) -> float:
    """Return the documents that a training reads per epoch, label texts included if they are documents too."""
    settings: Any = getattr(case.recipe, name)
    folds = (
        case.world.folds(case.recipe)
        if name == "classifier"
        else [case.world.published if settings.refit else case.world.train]
    )
    return float(sum(folds) + len(folds) * (case.world.labels if settings.augment else 0))
