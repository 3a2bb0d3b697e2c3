"""What each stage of a recipe costs, as formulas: its work, what it searches, what it holds and what it writes.

    seconds = imports + fixed + rate x work + searches (+ steps of a training)

``work``, searches and bytes are counted here, in words beside each. Fixed costs and rates come from pilots
(``pilots``), steps from the budget's timings (``budget``). Assumed throughout: one process, one device, texts like
those of the pilots, and rates that do not change with size, although rows of tables larger than the caches are slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from xc_core.ann.base import BATCHES_EXACT_UP_TO, EXACT_UP_TO
from xc_core.chain.pilots import Rates
from xc_core.chain.world import World
from xc_core.classifiers import MAPPED
from xc_core.classifiers.storage import BF16, FP32, RESIDENT
from xc_core.infer.score import DOCS_AT_ONCE
from xc_core.recipes import Recipe
from xc_core.scores import Neighbours

_TEXT: Final = 8
"""A text costs as much as these tokens, whatever its length: an id, a row, a line (a guess)."""
_FLOAT: Final = 4
_WORD: Final = 6
"""Bytes of a token as text (English: five letters and a space)."""
_STRING: Final = 60
"""Bytes of a Python string or number in a list beside its letters."""
_MEASURED: Final = 1000
"""Documents on which the scores' indexes are measured (``stages.scores``)."""
_AUDITED: Final = 2
"""Exact searches of the stage audit per sampled document."""
_TABLE: Final = 1.75
"""Label tables that M4 holds at most: its rows, their running means, and the blocks that are written
(``tests/classifiers/test_storage.py``)."""
_LINKS: Final = 272
"""Bytes of a vector's links in a graph of 32 links per node (``tests/chain/test_stage_costs.py``)."""
_COPIED: Final = 1 << 28
"""Bytes of latest vectors, at most, that M1 copies for a checkpoint or a search beside it (``tests/train``)."""
_MEASURES: Final = 3000
"""Bytes that it keeps of a test document: a hundred labels and scores, and the numbers behind each rule's metrics."""
_ROUNDS, _POINTS = 25, 64
"""Rounds of k-means, and vectors per cell, that the cells of an IVF index are fitted on."""
_SPECIAL: Final = 2
"""Special tokens of a text."""


@dataclass(frozen=True)
class Case:
    """A recipe on a data set of some size, with vectors of ``width``."""

    recipe: Recipe
    world: World
    width: int

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
        return sum(score.searches and hasattr(score, "index") for score in self.recipe.scores.values())

    @property
    def table_bytes(self) -> int:
        """Bytes of a table with a row per label."""
        return self.world.labels * self.width * _FLOAT

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors of train and validation documents."""
        return self.world.published * self.width * _FLOAT

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
        return settings.epochs > 0 and (settings.order.due(0) or settings.negatives.due(0))

    def encoded(self, documents: int, labels: int) -> float:
        """Return the tokens that an encoder reads of so many documents and labels, special tokens included."""
        longest, world = self.recipe.encoder.encoder.max_length, self.world
        return documents * min(world.document_tokens + _SPECIAL, longest) + labels * min(
            world.label_tokens + _SPECIAL, longest
        )


def texts(case: Case) -> float:
    """Reading, checking and writing all texts: proportional to their tokens, and a constant per text."""
    world = case.world
    tokens = world.documents * world.document_tokens + world.labels * world.label_tokens
    return tokens + _TEXT * (world.documents + world.labels)


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
        case.fitted + case.world.labels * len(case.world.folds(case.recipe)) * _share(case)
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


def _share(case: Case) -> float:
    return 1.0 if case.recipe.classifier.epochs else 0.5


@dataclass(frozen=True)
class Search:
    """``queries`` searches among ``among`` vectors, and the graphs that are built for them."""

    queries: int
    among: int
    exact: bool = False
    """True if all vectors are compared whatever their number."""
    graphs: int = 0
    """Graphs that are built over the vectors."""
    nearest: bool = False
    """True if only the nearest vector is kept, which costs nothing beside the comparisons."""

    def seconds(self, rates: Rates) -> float:
        """Exact search compares every pair; a graph takes log2 of its size steps per query and per vector built."""
        levels = math.log2(max(self.among, 2))
        built = self.graphs * self.among * levels * rates.built
        if self.exact or self.among <= BATCHES_EXACT_UP_TO:
            kept = 0.0 if self.nearest or not self.among else rates.query
            return built + self.queries * (self.among * rates.width * rates.exact + kept)
        return built + self.queries * levels * rates.walked


def searches(case: Case) -> dict[str, list[Search]]:
    """Return the searches of each stage, among labels and, for a vote of neighbours, among documents."""
    world, recipe, labels = case.world, case.recipe, case.world.labels
    large = int(labels > BATCHES_EXACT_UP_TO)
    mined = case.refreshes if recipe.encoder.negatives.searches is not None else 0
    held = len(world.folds(recipe)) - 1
    served = int(labels > EXACT_UP_TO)
    near, cells = _neighbours(case)
    return {
        "encoder": [Search(mined * world.train, labels, graphs=mined * large)],
        "negatives": [Search(world.published, labels, graphs=large)] if recipe.negatives.k else [],
        "scores": [
            Search(case.searched * _MEASURED, labels, exact=True, graphs=case.searched * (served + held * large)),
            Search((held + 1) * _ROUNDS * _POINTS * cells, cells, exact=True, nearest=True),
        ],
        "fusion": [Search(case.searched * case.fused, labels), Search(case.fused, near, exact=True)],
        # the served index compares batches of queries with all labels
        "evaluation": [Search(case.searched * world.test, labels, exact=True), Search(world.test, near, exact=True)],
        "audit": [Search(_AUDITED * min(recipe.audit.sample, world.train), labels, exact=True)],
    }


def _neighbours(case: Case) -> tuple[int, int]:
    """Return the document vectors that a query of the score ``neighbours`` is compared with, and its cells (IVF)."""
    found = [score for score in case.recipe.scores.values() if isinstance(score, Neighbours)]
    size = case.world.published
    if not found:
        return 0, 0
    if size <= found[0].exact_up_to:
        return size, 0
    cells = round(4 * math.sqrt(size))
    return cells + found[0].probes * size // cells, cells


HELD: Final[dict[str, Callable[[Case], float]]] = {
    # a digest of every uid and text finds repeated ones; pairs are ids
    "corpus": lambda case: _STRING * (case.world.documents + case.world.labels) + 12 * _pairs(case),
    # places of texts, and the set of train rows
    "tokens": lambda case: _STRING * (case.world.documents + case.world.labels),
    # banks of both sides, if they are kept, and a small copy; the table of a joint training; what a search finds
    "encoder": lambda case: (
        _banks(case) + min(_banks(case), _COPIED) + _joint_rows(case) + _mined(case) + 12 * _pairs(case)
    ),
    # the files are memory-mapped: pages are resident while they are written, and can be evicted
    "embeddings": lambda case: 0.0,
    "clusters": lambda case: 2 * case.vector_bytes,
    "negatives": lambda case: (
        case.table_bytes + case.vector_bytes + 12 * case.world.published * case.recipe.negatives.k
        if case.recipe.negatives.k
        else 0.0
    ),
    "classifier": lambda case: (
        case.vector_bytes + _rows(case, case.recipe.classifier.table, _TABLE) + 12 * _pairs(case)
    ),
    # a vector and an index per searching score; texts as Python strings
    "scores": lambda case: (
        2 * case.searched * case.table_bytes
        + case.vector_bytes
        + case.world.published * (_STRING + _WORD * case.world.document_tokens)
    ),
    "fusion": lambda case: case.searched * _searched_bytes(case, served=False) + _candidates(case, case.fused),
    "evaluation": lambda case: (
        case.searched * _searched_bytes(case, served=True)
        + _candidates(case, min(case.world.test, DOCS_AT_ONCE))
        + _MEASURES * case.world.test
    ),
    "audit": lambda case: case.vector_bytes + case.table_bytes,
    "model": lambda case: _STRING * 3 * case.world.labels,
}
"""Bytes that a stage holds in memory at once, beside what any process holds."""


def _trained(case: Case) -> int:
    """Return the documents that M1 trains on, label texts included if they are documents too."""
    settings, world = case.recipe.encoder, case.world
    return (world.published if settings.refit else world.train) + (world.labels if settings.augment else 0)


def _banks(case: Case) -> float:
    """Return the bytes of the latest vectors that M1 keeps; those of label texts are as wide as one head."""
    settings = case.recipe.encoder
    documents, texts = settings.keeps
    return documents * _trained(case) * case.width * _FLOAT + texts * case.table_bytes / settings.encoder.heads


def _joint_rows(case: Case) -> float:
    """Return the bytes of the rows that M1 trains along, as wide as one head."""
    settings = case.recipe.encoder
    return _rows(case, getattr(settings.scorer, "rows", None), 1 / settings.encoder.heads) if settings.joint else 0.0


def _mined(case: Case) -> float:
    """Return the bytes of the hard negatives in use and of the next ones, and of a graph's vectors.

    With two heads a graph is built from a copy of the vectors.
    """
    settings = case.recipe.encoder
    if settings.epochs == 0 or settings.negatives.searches is None:
        return 0.0
    graph = case.world.labels > BATCHES_EXACT_UP_TO
    return 2 * _trained(case) * settings.negatives.kept * _FLOAT + graph * settings.encoder.heads * case.table_bytes


def _pairs(case: Case) -> float:
    return case.world.documents * case.world.pairs


def _rows(case: Case, table: Any, copies: float) -> float:
    """Return the bytes of a label table in training; of one in a mapped file, what may be resident."""
    held = copies * case.table_bytes * (0.5 if getattr(table, "precision", FP32) == BF16 else 1)
    return float(min(held, RESIDENT) if getattr(table, "storage", None) == MAPPED else held)


def _candidates(case: Case, documents: int) -> float:
    """Return the bytes of an id and a value per score for each candidate, which every searching score proposes."""
    width = case.recipe.fusion.candidates * max(case.searched, 1)
    return documents * width * _FLOAT * (2 + len(case.recipe.scores))


WRITTEN: Final[dict[str, Callable[[Case], float]]] = {
    "corpus": lambda case: _WORD * texts(case) + 12 * _pairs(case),
    "tokens": lambda case: 2 * texts(case),
    # its size depends on the encoder alone, unless rows are trained along
    "encoder": lambda case: float(case.table_bytes if case.recipe.encoder.joint else 0),
    "embeddings": lambda case: (case.world.documents + case.world.labels) * case.width * _FLOAT,
    "clusters": lambda case: 8.0 * case.world.published,
    "negatives": lambda case: 8.0 * case.world.published * case.recipe.negatives.k,
    "classifier": lambda case: float(len(case.world.folds(case.recipe)) * case.table_bytes),
    "scores": lambda case: (
        _score_bytes(case, served=True) + (len(case.world.folds(case.recipe)) - 1) * _score_bytes(case, served=False)
    ),
    "fusion": lambda case: 0.0,
    "evaluation": lambda case: float(case.world.test),
    "audit": lambda case: 0.0,
    "model": lambda case: _score_bytes(case, served=True) + _WORD * case.world.label_tokens * case.world.labels,
}
"""Bytes that a stage writes and keeps."""


def _searched_bytes(case: Case, *, served: bool) -> float:
    """Return the bytes of a searching score: the vectors, and above some number of labels a graph with its own copy.

    What is served has a copy in half precision, and the vectors a second time as an index for many queries.
    """
    labels = case.world.labels
    if labels <= (EXACT_UP_TO if served else BATCHES_EXACT_UP_TO):
        return float(case.table_bytes)
    return (2.5 if served else 2.0) * case.table_bytes + _LINKS * labels


def _score_bytes(case: Case, *, served: bool) -> float:
    """Searching scores; vectors of documents for neighbours, terms of documents for words."""
    return case.searched * _searched_bytes(case, served=served) + (_neighbours(case)[0] > 0) * case.vector_bytes


def held_bytes(case: Case) -> tuple[str, float]:
    """Return the stage that holds most in memory, and its bytes beside what any process holds."""
    return max(((name, held(case)) for name, held in HELD.items()), key=lambda pair: pair[1])


def written_bytes(case: Case) -> float:
    """Return the bytes that all stages write and keep."""
    return sum(written(case) for written in WRITTEN.values())


def trained_documents(name: str, case: Case) -> float:
    """Return the documents that a training reads per epoch, label texts included if they are documents too."""
    settings: Any = getattr(case.recipe, name)
    folds = (
        case.world.folds(case.recipe)
        if name == "classifier"
        else [case.world.published if settings.refit else case.world.train]
    )
    return float(sum(folds) + len(folds) * (case.world.labels if settings.augment else 0))
