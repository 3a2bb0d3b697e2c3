"""The jobs: prepare a dataset, retrain an experiment, refresh it without training, compare.

Takes: asset keys.                    Gives: job definitions.
May import: dagster, assets, pipelines.policies.  Never: ops of its own.

Partitions differ (a dataset, or dataset x recipe), so the chain is prepare, then retrain or refresh, then compare; the
run tag ``xc/next`` names what follows (pipelines.sensors).
"""

from __future__ import annotations

import dagster as dg

from assets.partitions import DATASETS, EXPERIMENTS
from assets.station import MODE_TAG
from xc_core.stages.registry import STAGES

NEXT_TAG = "xc/next"
"""Run tag: the job that follows for the same dataset when this one succeeds (retrain, refresh)."""

_RETRAIN = [stage.name for stage in STAGES.values() if stage.scope == "experiment"]
_REFRESH = [name for name in _RETRAIN if name != "encoder"]

prepare = dg.define_asset_job(
    "prepare",
    dg.AssetSelection.assets("corpus", "tokens"),
    partitions_def=DATASETS,
    description="Reads a dataset's raw folder and tokenises it.",
)
retrain = dg.define_asset_job(
    "retrain",
    dg.AssetSelection.assets(*_RETRAIN),
    partitions_def=EXPERIMENTS,
    description="Trains, evaluates and registers one recipe on one dataset.",
)
refresh = dg.define_asset_job(
    "refresh",
    dg.AssetSelection.assets(*_REFRESH),
    partitions_def=EXPERIMENTS,
    tags={MODE_TAG: "refresh"},
    description="New documents and labels without training: embeds, clusters, indexes, refits, evaluates, registers.",
)
compare = dg.define_asset_job(
    "compare",
    dg.AssetSelection.assets("leaderboard"),
    partitions_def=DATASETS,
    description="Compares all evaluated recipes of a dataset.",
)
ALL = [prepare, retrain, refresh, compare]
