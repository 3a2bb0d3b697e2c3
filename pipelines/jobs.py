"""The jobs: prepare a dataset, retrain an experiment, refresh it without training, compare recipes.

Partitions differ (per dataset, or per dataset and recipe), so a complete update is three runs: prepare, then retrain or
refresh, then compare. The sensor ``follow_up`` starts the second, named by the run tag ``xc/next``, and the third. With
the tag "drift" the second is decided by a rule (``xc_core.lifecycle.drift``).
"""

from __future__ import annotations

import json
from typing import Final

import dagster as dg

from assets.stages import MODE_TAG
from xc_core.chain.registry import STAGES
from xc_core.environment import whole

NEXT_TAG = "xc/next"
"""Run tag of prepare: the job that follows for every recipe of the dataset (retrain, refresh or drift)."""

GPUS: Final = "XC_POD_GPUS"
"""GPUs of the pod of a run that trains; none if it is not set (deploy/kubernetes/project.yaml)."""
_RETRAIN = [stage.name for stage in STAGES.values() if stage.scope == "experiment"]
_REFRESH = [name for name in _RETRAIN if name != "encoder"]


def gpu_tags() -> dict[str, str]:
    """Return the tags of a job that trains, which Dagster's launcher for Kubernetes reads.

    Raises ConfigError if XC_POD_GPUS is no whole number.
    """
    number = whole(GPUS, 0)
    limits = {"limits": {"nvidia.com/gpu": str(number)}}
    return {"dagster-k8s/config": json.dumps({"container_config": {"resources": limits}})} if number else {}


prepare = dg.define_asset_job(
    "prepare",
    dg.AssetSelection.assets("corpus", "tokens"),
    description="Reads the raw files of a dataset and tokenises its texts.",
)
retrain = dg.define_asset_job(
    "retrain",
    dg.AssetSelection.assets(*_RETRAIN),
    tags=gpu_tags(),
    description="Trains one recipe on one dataset, evaluates the model and registers it.",
)
refresh = dg.define_asset_job(
    "refresh",
    dg.AssetSelection.assets(*_REFRESH),
    tags={MODE_TAG: "refresh", **gpu_tags()},
    description="Updates a model for new documents and labels without training, evaluates it and registers it.",
)
compare = dg.define_asset_job(
    "compare",
    dg.AssetSelection.assets("leaderboard"),
    description="Compares all evaluated recipes of a dataset.",
)
drift = dg.define_asset_job(
    "drift",
    dg.AssetSelection.assets("data_drift"),
    description="Measures how far the data have moved away from a model; refresh or retrain follows by a rule.",
)
ALL = [prepare, retrain, refresh, compare, drift]
