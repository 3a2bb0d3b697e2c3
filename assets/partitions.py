"""The partitions of the pipeline, one per dataset and one per dataset and recipe, from params.yaml."""

from __future__ import annotations

import warnings

import dagster as dg

from xc_core.chain.registry import Stage
from xc_core.chain.workspace import Workspace
from xc_core.errors import UsageError

warnings.filterwarnings("ignore", category=dg.PreviewWarning, message=".*partitions_def on an AssetCheckSpec")
# Partitioned checks are a preview in Dagster 1.13; without partitions a check could not name the failed experiment.

DATASETS = dg.DynamicPartitionsDefinition(name="dataset")
RECIPES = dg.DynamicPartitionsDefinition(name="recipe")
EXPERIMENTS = dg.MultiPartitionsDefinition({"dataset": DATASETS, "recipe": RECIPES})


def partitions_of(stage: Stage) -> dg.PartitionsDefinition:
    """Return the partitions of a stage's asset, and of its checks."""
    return DATASETS if stage.scope == "dataset" else EXPERIMENTS


def sync(instance: dg.DagsterInstance, workspace: Workspace) -> None:
    """Add every dataset and recipe of params.yaml to the instance; none is removed, so its history stays visible."""
    pairs = workspace.params.experiments()
    for definition, names in (
        (DATASETS, workspace.params.datasets()),
        (RECIPES, sorted({recipe for _, recipe in pairs})),
    ):
        name = str(definition.name)
        missing = set(names) - set(instance.get_dynamic_partitions(name))
        if missing:
            instance.add_dynamic_partitions(name, sorted(missing))


def experiment_key(dataset: str, recipe: str) -> dg.MultiPartitionKey:
    """Return the partition key of one experiment."""
    return dg.MultiPartitionKey({"dataset": dataset, "recipe": recipe})


def split_key(key: str) -> tuple[str, str | None]:
    """Return (dataset, recipe) of a partition key; recipe is None for a partition per dataset.

    Dagster writes a key with two dimensions as dataset|recipe: the values, sorted by the names of the dimensions.
    """
    parts = key.split("|")
    if len(parts) > 2:
        raise UsageError(
            f"partition key {key!r}", expected="dataset, or dataset|recipe", do="choose a partition in the UI"
        )
    return parts[0], parts[1] if len(parts) == 2 else None
