"""GPUs of the pods of runs that train, as tags that Dagster's launcher for Kubernetes reads."""

from __future__ import annotations

import json
from typing import Final

from xc_core.environment import whole

GPUS: Final = "XC_POD_GPUS"
"""GPUs of the pod of a run that trains; none if it is not set (deploy/kubernetes/project.yaml)."""


def gpu_tags() -> dict[str, str]:
    """Return the tags of a job that trains; raise ConfigError if XC_POD_GPUS is no whole number."""
    number = whole(GPUS, 0)
    if not number:
        return {}
    limits = {"limits": {"nvidia.com/gpu": str(number)}}
    return {"dagster-k8s/config": json.dumps({"container_config": {"resources": limits}})}
