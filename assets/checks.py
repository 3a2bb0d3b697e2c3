"""Blocking checks: a failing one stops the chain before the next station.

Takes: artefacts on disk.                          Gives: asset checks.
May import: dagster, polars, assets.*, xc_core light rooms.  Never: torch; a check that cannot fail.
"""

import warnings
from typing import Any, Final

import dagster as dg

from assets.metadata import read_json
from assets.partitions import DATASETS, EXPERIMENTS, split_key
from assets.resources import Project
from xc_core.artifacts import read_manifest, verify
from xc_core.stages.workspace import Workspace

warnings.filterwarnings("ignore", category=dg.PreviewWarning, message=".*partitions_def on an AssetCheckSpec")
# Partitioned checks are a preview in Dagster 1.13; without partitions a check could not say which experiment failed.

_CLUSTER_SPREAD: Final = 1
"""Sizes of balanced clusters differ by at most one."""


def _where(context: dg.AssetCheckExecutionContext, project: Project) -> tuple[Workspace, str, str | None]:
    dataset, recipe = split_key(context.partition_key)
    return project.workspace, dataset, recipe


@dg.asset_check(
    asset="corpus",
    blocking=True,
    partitions_def=DATASETS,
    description="The Parquet files have the schema the chain reads, and are whole.",
)
def schema(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Verify hashes and compare column names and types."""
    import pyarrow.parquet as pq

    from xc_core.data import corpus

    workspace, dataset, _ = _where(context, project)
    folder = workspace.folder("corpus", dataset)
    verify(folder, kind="corpus")
    wanted = {
        "documents": corpus.DOCUMENTS,
        "labels": corpus.LABELS,
        "pairs": corpus.PAIRS,
        "filters": corpus.PAIRS,
    }
    wrong = [name for name, schema in wanted.items() if not pq.read_schema(folder / f"{name}.parquet").equals(schema)]
    return dg.AssetCheckResult(passed=not wrong, metadata={"wrong": ", ".join(wrong) or "none"})


@dg.asset_check(
    asset="corpus",
    blocking=True,
    partitions_def=DATASETS,
    description="Documents have labels, labels have train documents, unless the dataset allows otherwise.",
)
def empty_labels(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Count documents without a label and labels without a train or validation document."""
    from xc_core.data.corpus import Corpus

    workspace, dataset, _ = _where(context, project)
    opened = Corpus.open(workspace.folder("corpus", dataset))
    allowed = set(opened.facts["config"]["allow"])
    bare = int((opened.labels.counts_N == 0).sum())
    unseen = int((opened.published_train().frequency_L() == 0).sum())
    passed = (not bare or "empty-labels" in allowed) and (not unseen or "unseen-labels" in allowed)
    return dg.AssetCheckResult(
        passed=passed, metadata={"documents_without_labels": bare, "labels_without_train_documents": unseen}
    )


@dg.asset_check(
    asset="corpus",
    blocking=True,
    partitions_def=DATASETS,
    description="No uid, and hardly a text, is in train and in test or validation.",
)
def leakage(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Compare uids (must differ) and texts (few test texts may stand in train word for word)."""
    from xc_core.data.checks import MOST_SHARED
    from xc_core.data.corpus import Corpus

    workspace, dataset, _ = _where(context, project)
    opened = Corpus.open(workspace.folder("corpus", dataset))
    uids, texts = opened.shared("uid"), opened.shared("title", "content")
    share = texts / max(len(opened.rows("test")), 1)
    allowed = "shared-texts" in opened.facts["config"]["allow"]
    return dg.AssetCheckResult(
        passed=uids == 0 and (share <= MOST_SHARED or allowed),
        metadata={"shared_uids": uids, "shared_texts": texts, "share_of_test": share},
    )


@dg.asset_check(
    asset="clusters",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="Every train document is in one cluster; sizes differ by at most one.",
)
def cluster_balance(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Check the partition and its sizes."""
    import numpy as np

    workspace, dataset, recipe = _where(context, project)
    folder = workspace.folder("clusters", dataset, recipe)
    order, sizes = np.load(folder / "order.npy"), np.load(folder / "sizes.npy")
    rows = read_manifest(workspace.folder("corpus", dataset)).facts["rows"]["train"]
    whole = np.array_equal(np.sort(order), np.arange(rows)) and int(sizes.sum()) == rows
    spread = int(sizes.max() - sizes.min())
    return dg.AssetCheckResult(
        passed=bool(whole and spread <= _CLUSTER_SPREAD),
        metadata={"covers_train": bool(whole), "spread": spread},
    )


@dg.asset_check(
    asset="classifier",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="All rows are finite, one a label, and unit vectors where the recipe makes such.",
)
def finite_weights(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Check every number of the table."""
    import numpy as np

    from xc_core.stages.classifier import unit_rows

    workspace, dataset, recipe = _where(context, project)
    rows = np.load(workspace.folder("classifier", dataset, recipe) / "rows.npy", mmap_mode="r")
    labels = read_manifest(workspace.folder("corpus", dataset)).facts["labels"]
    finite = bool(np.isfinite(rows).all())
    lengths = np.linalg.norm(rows, axis=1)
    unit = bool(np.abs(lengths - 1).max() < 1e-3)
    made = workspace.experiment(dataset, recipe).recipe
    assert made is not None
    return dg.AssetCheckResult(
        passed=finite and (unit or not unit_rows(made)) and len(rows) == labels,
        metadata={"finite": finite, "unit": unit, "rows": len(rows)},
    )


@dg.asset_check(
    asset="index",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="The index finds what exact search finds.",
)
def index_recall(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Compare the measured recall with the recipe's floor."""
    workspace, dataset, recipe = _where(context, project)
    found = float(read_manifest(workspace.folder("index", dataset, recipe)).facts["recall_by_row"])
    floor = float(_floor(workspace, dataset, recipe, "min_index_recall"))
    return dg.AssetCheckResult(passed=found >= floor, metadata={"recall": found, "floor": floor})


@dg.asset_check(
    asset="evaluation",
    blocking=True,
    partitions_def=EXPERIMENTS,
    description="P@1 on test documents is at or above the recipe's floor.",
)
def metric_floor(context: dg.AssetCheckExecutionContext, project: Project) -> dg.AssetCheckResult:
    """Compare P@1 with the recipe's floor."""
    workspace, dataset, recipe = _where(context, project)
    found = float(read_json(workspace.folder("evaluation", dataset, recipe) / "metrics.json")["P_at_1"])
    floor = float(_floor(workspace, dataset, recipe, "min_P_at_1"))
    return dg.AssetCheckResult(passed=found >= floor, metadata={"P_at_1": found, "floor": floor})


def _floor(workspace: Workspace, dataset: str, recipe: str | None, name: str) -> Any:
    return getattr(workspace.experiment(dataset, recipe).config("model"), name)


ALL = [schema, empty_labels, leakage, cluster_balance, finite_weights, index_recall, metric_floor]
