"""Blocking asset checks: if one fails, the run stops before the next stage."""

import warnings
from typing import Any, Final

import dagster as dg

from assets.partitions import DATASETS, EXPERIMENTS, split_key
from assets.resources import Project
from xc_core.chain.workspace import Workspace

warnings.filterwarnings("ignore", category=dg.PreviewWarning, message=".*partitions_def on an AssetCheckSpec")
# Partitioned checks are a preview in Dagster 1.13; without partitions a check could not name the failed experiment.

_CLUSTER_SPREAD: Final = 1
"""Sizes of balanced clusters differ by at most one."""


def _where(context: dg.AssetCheckExecutionContext, project: Project) -> tuple[Workspace, str, str | None]:
    dataset, recipe = split_key(context.partition_key)
    return project.workspace, dataset, recipe


@dg.asset_check(
    asset="corpus",
    blocking=True,
    partitions_def=DATASETS,
    description="The Parquet files are complete and have the columns that the pipeline reads.",
)
def schema(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Verify the hashes of the files, and compare the names and types of columns."""
    from xc_core.data.corpus import Corpus

    workspace, dataset, _ = _where(context, project)
    wrong = Corpus.open(workspace.folder("corpus", dataset)).wrong_schemas()
    return dg.AssetCheckResult(passed=not wrong, metadata={"wrong": ", ".join(wrong) or "none"})


@dg.asset_check(
    asset="corpus",
    blocking=True,
    partitions_def=DATASETS,
    description="Every document has labels and every label has train documents, unless the dataset allows otherwise.",
)
def empty_labels(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Count documents without a label and labels without a train or validation document."""
    from xc_core.data.corpus import Corpus

    workspace, dataset, _ = _where(context, project)
    opened = Corpus.open(workspace.folder("corpus", dataset))
    bare = int((opened.labels.counts_N == 0).sum())
    unseen = int((opened.published_train().frequency_L() == 0).sum())
    known = unseen <= opened.labels_in_test_only or opened.allows("unseen-labels")
    passed = (not bare or opened.allows("empty-labels")) and known
    return dg.AssetCheckResult(
        passed=passed, metadata={"documents_without_labels": bare, "labels_without_train_documents": unseen}
    )


@dg.asset_check(
    asset="corpus",
    blocking=True,
    partitions_def=DATASETS,
    description="No test document has the uid of a train or validation document, and hardly any has the same text.",
)
def leakage(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Compare uids, which must differ, and texts, of which few may be equal."""
    from xc_core.data.checks import MOST_SHARED
    from xc_core.data.corpus import Corpus
    from xc_core.data.splits import TEST

    workspace, dataset, _ = _where(context, project)
    opened = Corpus.open(workspace.folder("corpus", dataset))
    uids, texts = opened.shared("uid"), opened.shared("title", "content")
    share = texts / max(len(opened.rows(TEST)), 1)
    return dg.AssetCheckResult(
        passed=uids == 0 and (share <= MOST_SHARED or opened.allows("shared-texts")),
        metadata={"shared_uids": uids, "shared_texts": texts, "share_of_test": share},
    )


@dg.asset_check(
    asset="clusters",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="Every train and validation document is in exactly one cluster; sizes differ by at most one.",
)
def cluster_balance(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Check the documents and the sizes of all clusters."""
    from xc_core.cluster import Clusters
    from xc_core.data.corpus import Corpus

    workspace, dataset, recipe = _where(context, project)
    clusters = Clusters.open(workspace.folder("clusters", dataset, recipe))
    whole = clusters.covers(Corpus.open(workspace.folder("corpus", dataset)).published_rows())
    spread = int(clusters.sizes.max() - clusters.sizes.min())
    return dg.AssetCheckResult(
        passed=whole and spread <= _CLUSTER_SPREAD, metadata={"covers_documents": whole, "spread": spread}
    )


@dg.asset_check(
    asset="classifier",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="There is one row per label; all numbers are finite; rows are unit vectors if the recipe needs that.",
)
def finite_weights(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Check every number of the final table."""
    from xc_core.classifiers import LabelTables
    from xc_core.data.corpus import Corpus

    workspace, dataset, recipe = _where(context, project)
    tables = LabelTables.open(workspace.folder("classifier", dataset, recipe))
    rows, labels = tables.rows(), Corpus.open(workspace.folder("corpus", dataset)).num_labels
    finite, unit = _sound(rows, rows.shape[1] - tables.biased)
    return dg.AssetCheckResult(
        passed=finite and (unit or not tables.unit) and len(rows) == labels,
        metadata={"finite": finite, "unit": unit, "rows": len(rows)},
    )


def _sound(rows: Any, width: int) -> tuple[bool, bool]:
    """Return whether all numbers are finite, and whether the first ``width`` of each row are a unit vector.

    A block of rows is in memory at a time: tables are large.
    """
    import numpy as np

    from xc_core.classifiers.storage import blocks

    finite = unit = True
    for at in blocks(*rows.shape):
        finite = finite and bool(np.isfinite(rows[at]).all())
        unit = unit and bool(np.abs(np.linalg.norm(rows[at, :width], axis=1) - 1).max() < 1e-3)
    return finite, unit


@dg.asset_check(
    asset="scores",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="The recall of every search index against exact search is at least the minimum of the recipe.",
)
def index_recall(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Compare the lowest recall with the minimum of the recipe."""
    from xc_core.scores import Scores

    workspace, dataset, recipe = _where(context, project)
    recalls = Scores.open(workspace.folder("scores", dataset, recipe)).recalls
    found, floor = min(recalls.values(), default=1.0), float(_floor(workspace, dataset, recipe, "min_index_recall"))
    return dg.AssetCheckResult(passed=found >= floor, metadata={"recall": found, "floor": floor})


@dg.asset_check(
    asset="evaluation",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="P@1 on test documents is at least the minimum of the recipe.",
)
def metric_floor(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Compare P@1 with the minimum of the recipe."""
    from xc_core.metrics.evaluation import Evaluation

    workspace, dataset, recipe = _where(context, project)
    found = float(Evaluation.open(workspace.folder("evaluation", dataset, recipe)).metrics["P_at_1"])
    floor = float(_floor(workspace, dataset, recipe, "min_P_at_1"))
    return dg.AssetCheckResult(passed=found >= floor, metadata={"P_at_1": found, "floor": floor})


def _floor(workspace: Workspace, dataset: str, recipe: str | None, name: str) -> Any:
    return getattr(workspace.params.partition(dataset, recipe).settings("model"), name)


GATE: Final = dg.AssetCheckSpec(
    "gate",
    asset="model",
    partitions_def=EXPERIMENTS,
    description="The model is not worse than the champion on the acceptance set (docs/runbook.md#the-gate).",
)
"""Decided by the asset model itself, after it has registered the model (assets/release/model.py)."""

ALL = [schema, empty_labels, leakage, cluster_balance, finite_weights, index_recall, metric_floor]
