"""What each stage of a recipe holds in memory and writes to disk, as formulas; ``stage_costs`` counts its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from xc_core.ann.base import BATCHES_EXACT_UP_TO, EXACT_UP_TO
from xc_core.classifiers import MAPPED
from xc_core.classifiers.storage import BF16, FP32, RESIDENT
from xc_core.infer.ranker import DOCS_AT_ONCE
from xc_core.planning.stage_costs import FLOAT, Case, texts, trained_documents
from xc_core.planning.step_memory import step_bytes
from xc_core.train.checkpoint import BESIDE

_WORD_BYTES: Final = 6
"""Bytes of a token as text (English: five letters and a space)."""
_STRING_BYTES: Final = 60
"""Bytes of a Python string or number in a list beside its letters."""
_TABLE_COPIES: Final = 1.75
"""Label tables that M4 holds at most: its rows, their running means, and the blocks that are written
(``tests/classifiers/test_storage.py``)."""
_LINK_BYTES: Final = 272
"""Bytes of a vector's links in a graph of 32 links per node (``tests/planning/test_stage_costs.py``)."""
_MEASURE_BYTES: Final = 3000
"""Bytes that the evaluation keeps of a test document: a hundred labels and scores, and the numbers behind each rule's
metrics."""

HELD: Final[dict[str, Callable[[Case], float]]] = {
    # a digest of every uid and text finds repeated ones; pairs are ids
    "corpus": lambda case: _STRING_BYTES * (case.world.documents + case.world.labels) + 12 * _num_pairs(case),
    # places of texts, and the set of train rows
    "tokens": lambda case: _STRING_BYTES * (case.world.documents + case.world.labels),
    # banks of both sides, if they are kept, and a small copy; the table of a joint training; what a search finds; what
    # may be resident of the states after the frozen layers; what a step keeps for its gradient
    "encoder": lambda case: (
        _bank_bytes(case)
        + min(_bank_bytes(case), BESIDE)
        + _joint_row_bytes(case)
        + _mined_bytes(case)
        + min(_state_bytes(case), RESIDENT)
        + step_bytes(case, min(_state_bytes(case), RESIDENT))
        + 12 * _num_pairs(case)
    ),
    # the files are memory-mapped: pages are resident while they are written, and can be evicted
    "embeddings": lambda case: 0.0,
    "clusters": lambda case: 2 * case.vector_bytes,
    "negatives": lambda case: (
        case.shard_bytes + case.vector_bytes + 12 * case.world.published * case.recipe.negatives.k
        if case.recipe.negatives.k
        else 0.0
    ),
    "classifier": lambda case: (
        case.vector_bytes
        + _row_bytes(case, case.recipe.classifier.table, _TABLE_COPIES / case.processes)
        + 12 * _num_pairs(case)
    ),
    # a vector and an index per searching score; what scores are fitted with, or take; texts as Python strings
    "scores": lambda case: (
        2 * case.searched * case.table_bytes
        + max(case.footprint.kept + case.footprint.fit, case.footprint.held)
        + case.vector_bytes
        + case.world.published * (_STRING_BYTES + _WORD_BYTES * case.world.document_tokens)
    ),
    "fusion": lambda case: (
        case.searched * _searched_bytes(case, served=False)
        + case.footprint.held
        + case.footprint.searching(case.fused)
        + _candidate_bytes(case, case.fused)
        + _fit_bytes(case)
    ),
    "evaluation": lambda case: (
        case.searched * _searched_bytes(case, served=True)
        + case.footprint.held
        + case.footprint.searching(min(case.world.test, DOCS_AT_ONCE))
        + _candidate_bytes(case, min(case.world.test, DOCS_AT_ONCE))
        + _MEASURE_BYTES * case.world.test
    ),
    "audit": lambda case: case.vector_bytes + case.table_bytes,
    "model": lambda case: _STRING_BYTES * 3 * case.world.labels,
}
"""Bytes that a stage holds in memory at once, beside what any process holds."""


def _bank_bytes(case: Case) -> float:
    """Return the bytes of the latest vectors that M1 keeps; those of label texts are as wide as one head."""
    settings = case.recipe.encoder
    documents, texts = settings.keeps
    return (
        documents * trained_documents("encoder", case) * case.width * FLOAT
        + texts * case.table_bytes / settings.encoder.heads
    )


def _joint_row_bytes(case: Case) -> float:
    """Return the bytes of the rows that M1 trains along, as wide as one head."""
    settings = case.recipe.encoder
    if not settings.joint:
        return 0.0
    return _row_bytes(case, getattr(settings.scorer, "rows", None), 1 / settings.encoder.heads)


def _state_bytes(case: Case) -> float:
    """Return the bytes of the states after the layers that are not trained, in a file that M1 maps."""
    tokens = case.encoded(int(trained_documents("encoder", case)), case.world.labels)
    return case.keeps_states * tokens * case.width * FLOAT


def _mined_bytes(case: Case) -> float:
    """Return the bytes of the hard negatives in use and of the next ones, and of a graph's vectors.

    With two heads a graph is built from a copy of the vectors.
    """
    settings = case.recipe.encoder
    if settings.epochs == 0 or settings.negatives.searches is None:
        return 0.0
    graph = case.world.labels > BATCHES_EXACT_UP_TO
    vectors = graph * settings.encoder.heads * case.table_bytes
    return 2 * trained_documents("encoder", case) * settings.negatives.kept * FLOAT + vectors


def _num_pairs(case: Case) -> float:
    return case.world.documents * case.world.pairs


def _row_bytes(case: Case, table: Any, copies: float) -> float:
    """Return the bytes of a label table in training; of one in a mapped file, what may be resident."""
    size = copies * case.table_bytes * (0.5 if getattr(table, "precision", FP32) == BF16 else 1)
    return float(min(size, RESIDENT) if getattr(table, "storage", None) == MAPPED else size)


def _candidate_bytes(case: Case, documents: int) -> float:
    """Return the bytes of an id and a value per score for each candidate, which every searching score proposes."""
    return _candidate_floats(case, documents) * (2 + len(case.recipe.scores))


def _candidate_floats(case: Case, documents: int) -> float:
    """Return the bytes of one number per candidate."""
    return documents * case.recipe.fusion.candidates * max(case.searched, 1) * FLOAT


def _fit_bytes(case: Case) -> float:
    """Return the bytes that the fit of the fusion holds beside the candidates' values."""
    return case.recipe.fusion.rule.fit_bytes(_candidate_floats(case, case.fused) * len(case.recipe.scores))


WRITTEN: Final[dict[str, Callable[[Case], float]]] = {
    "corpus": lambda case: _WORD_BYTES * texts(case) + 12 * _num_pairs(case),
    "tokens": lambda case: 2 * texts(case),
    # its size depends on the encoder alone, unless rows are trained along
    "encoder": lambda case: float(case.table_bytes if case.recipe.encoder.joint else 0),
    "embeddings": lambda case: (case.world.documents + case.world.labels) * case.width * FLOAT,
    "clusters": lambda case: 8.0 * case.world.published,
    "negatives": lambda case: 8.0 * case.world.published * case.recipe.negatives.k,
    "classifier": lambda case: float(len(case.world.folds(case.recipe)) * case.table_bytes),
    "scores": lambda case: (
        _score_bytes(case, served=True) + (len(case.world.folds(case.recipe)) - 1) * _score_bytes(case, served=False)
    ),
    "fusion": lambda case: 0.0,
    "evaluation": lambda case: float(case.world.test),
    "audit": lambda case: 0.0,
    "model": lambda case: _score_bytes(case, served=True) + _WORD_BYTES * case.world.label_tokens * case.world.labels,
}
"""Bytes that a stage writes and keeps."""
COPIES: Final = {"model": "encoder"}
"""Stages that also write a copy of another one's artefact."""


def _searched_bytes(case: Case, *, served: bool) -> float:
    """Return the bytes of a searching score: the vectors, and above some number of labels a graph with its own copy.

    What is served has a copy in half precision, and the vectors a second time as an index for many queries.
    """
    labels = case.world.labels
    if labels <= (EXACT_UP_TO if served else BATCHES_EXACT_UP_TO):
        return float(case.table_bytes)
    return (2.5 if served else 2.0) * case.table_bytes + _LINK_BYTES * labels


def _score_bytes(case: Case, *, served: bool) -> float:
    """Return the bytes of the scores of a fold: indexes, vectors of documents for neighbours, label trees.

    A held-out fold has no copy of a score that is the same in every fold.
    """
    searched = case.searched if served else case.searched_per_fold
    footprint = case.footprint if served else case.footprint_per_fold
    return searched * _searched_bytes(case, served=served) + footprint.written


def held_bytes(case: Case) -> tuple[str, float]:
    """Return the stage that holds most in memory, and its bytes beside what any process holds."""
    return max(((name, held(case)) for name, held in HELD.items()), key=lambda pair: pair[1])


def written_bytes(case: Case) -> float:
    """Return the bytes that all stages write and keep."""
    return sum(written(case) for written in WRITTEN.values())
