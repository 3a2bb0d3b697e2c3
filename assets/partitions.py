"""Dataset x recipe: the partitions of the chain, kept equal to params.yaml.

Takes: params.yaml through Workspace.          Gives: partition definitions, their keys.
May import: dagster, xc_core.stages.           Never: keeps a list of its own.
"""

from __future__ import annotations

import dagster as dg

from xc_core.errors import UsageError
from xc_core.stages.workspace import Workspace

DATASETS = dg.DynamicPartitionsDefinition(name="dataset")
RECIPES = dg.DynamicPartitionsDefinition(name="recipe")
EXPERIMENTS = dg.MultiPartitionsDefinition({"dataset": DATASETS, "recipe": RECIPES})


def sync(instance: dg.DagsterInstance, workspace: Workspace) -> None:
    """Make the instance know every dataset and recipe of params.yaml; nothing is taken away: history stays visible."""
    pairs = workspace.experiments()
    for definition, names in (
        (DATASETS, workspace.datasets()),
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
    """Return (dataset, recipe) of a partition key as text; recipe is None for a partition of a dataset alone.

    Dagster writes a key of two dimensions as the values in the order of the dimensions' names, with | between.
    """
    parts = key.split("|")
    if len(parts) > 2:
        raise UsageError(
            f"partition key {key!r}", expected="dataset, or dataset|recipe", do="choose a partition in the UI"
        )
    return parts[0], parts[1] if len(parts) == 2 else None
