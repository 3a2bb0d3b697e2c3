"""Blocking asset checks: if one fails, the run stops before the next stage."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import dagster as dg

from assets.partitions import EXPERIMENTS, partitions_of, split_key
from assets.resources import Project
from xc_core.chain.context import A
from xc_core.chain.registry import STAGES
from xc_core.chain.workspace import Workspace

_CLUSTER_SPREAD: Final = 1
"""Sizes of balanced clusters differ by at most one."""

ALL: Final[list[dg.AssetChecksDefinition]] = []
"""The checks of this module."""


class _Partition(NamedTuple):
    """What a check judges."""

    workspace: Workspace
    dataset: str
    recipe: str | None

    def open(self, artefact: type[A]) -> A:
        """Open an artefact of the partition, or of its dataset."""
        return self.workspace.open(artefact, self.dataset, self.recipe)

    def minimum(self, name: str) -> float:
        """Return the setting ``model.<name>`` of the recipe."""
        return float(getattr(self.workspace.params.partition(self.dataset, self.recipe).settings("model"), name))


_Judge = Callable[[_Partition], tuple[bool, dict[str, Any]]]
"""Returns whether the check passed, and what it found."""


def _check(stage: str) -> Callable[[_Judge], _Judge]:
    """Return a decorator that makes a function a check of the artefact of ``stage``, with its name and docstring."""

    def add(judge: _Judge) -> _Judge:
        @dg.asset_check(
            name=judge.__name__,
            asset=stage,
            blocking=True,
            partitions_def=partitions_of(STAGES[stage]),
            description=judge.__doc__,
        )
        def check(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
            passed, metadata = judge(_Partition(project.workspace, *split_key(context.partition_key)))
            return dg.AssetCheckResult(passed=passed, metadata=metadata)

        ALL.append(check)
        return judge

    return add


@_check("corpus")
def schema(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """The Parquet files are complete and have the columns that the pipeline reads."""
    from xc_core.data.corpus import Corpus

    wrong = partition.open(Corpus).wrong_schemas()
    return not wrong, {"wrong": ", ".join(wrong) or "none"}


@_check("corpus")
def empty_labels(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """Every document has labels and every label has train documents, unless the dataset allows otherwise."""
    from xc_core.data.corpus import Corpus

    corpus = partition.open(Corpus)
    unlabelled = int((corpus.labels.counts_N == 0).sum())
    unseen = int((corpus.published_train().frequency_L() == 0).sum())
    allowed = unseen <= corpus.labels_in_test_only or corpus.allows("unseen-labels")
    passed = (not unlabelled or corpus.allows("empty-labels")) and allowed
    return passed, {"documents_without_labels": unlabelled, "labels_without_train_documents": unseen}


@_check("corpus")
def leakage(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """No test document has the uid of a train or validation document, and hardly any has the same text."""
    from xc_core.data.checks import MOST_SHARED
    from xc_core.data.corpus import Corpus
    from xc_core.data.splits import TEST

    corpus = partition.open(Corpus)
    uids, texts = corpus.shared("uid"), corpus.shared("title", "content")
    share = texts / max(len(corpus.rows(TEST)), 1)
    passed = uids == 0 and (share <= MOST_SHARED or corpus.allows("shared-texts"))
    return passed, {"shared_uids": uids, "shared_texts": texts, "share_of_test": share}


@_check("clusters")
def cluster_balance(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """Every train and validation document is in exactly one cluster; sizes differ by at most one."""
    from xc_core.cluster import Clusters
    from xc_core.data.corpus import Corpus

    clusters = partition.open(Clusters)
    covered = clusters.covers(partition.open(Corpus).published_rows())
    spread = int(clusters.sizes.max() - clusters.sizes.min())
    return covered and spread <= _CLUSTER_SPREAD, {"covers_documents": covered, "spread": spread}


@_check("classifier")
def finite_weights(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """There is one row per label; all numbers are finite; rows are unit vectors if the recipe needs that."""
    from xc_core.classifiers import LabelTables
    from xc_core.data.corpus import Corpus

    tables = partition.open(LabelTables)
    rows = tables.rows()
    finite, unit = _finite_and_unit(rows, rows.shape[1] - tables.biased)
    passed = finite and (unit or not tables.unit) and len(rows) == partition.open(Corpus).num_labels
    return passed, {"finite": finite, "unit": unit, "rows": len(rows)}


def _finite_and_unit(rows: Any, width: int) -> tuple[bool, bool]:
    """Return whether all numbers are finite, and whether the first ``width`` of each row are a unit vector.

    A block of rows is in memory at a time: tables are large.
    """
    import numpy as np

    from xc_core.classifiers.storage import blocks

    finite = unit = True
    for block in blocks(*rows.shape):
        finite = finite and bool(np.isfinite(rows[block]).all())
        unit = unit and bool(np.abs(np.linalg.norm(rows[block, :width], axis=1) - 1).max() < 1e-3)
    return finite, unit


@_check("scores")
def index_recall(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """The recall of every search index against exact search is at least the minimum of the recipe."""
    from xc_core.scores import Scores

    recall, floor = min(partition.open(Scores).recalls.values(), default=1.0), partition.minimum("min_index_recall")
    return recall >= floor, {"recall": recall, "floor": floor}


@_check("evaluation")
def metric_floor(partition: _Partition) -> tuple[bool, dict[str, Any]]:
    """P@1 on test documents is at least the minimum of the recipe."""
    from xc_core.metrics.evaluation import Evaluation

    precision, floor = float(partition.open(Evaluation).metrics["P_at_1"]), partition.minimum("min_P_at_1")
    return precision >= floor, {"P_at_1": precision, "floor": floor}


GATE: Final = dg.AssetCheckSpec(
    "gate",
    asset="model",
    partitions_def=EXPERIMENTS,
    description="The model is not worse than the champion on the acceptance set (docs/runbook.md#the-gate).",
)
"""Decided by the asset model itself, after it has registered the model (assets/release/model.py)."""
