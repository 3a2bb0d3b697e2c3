"""GPUs of the pods of runs that train, as tags that Dagster's launcher for Kubernetes reads."""

from __future__ import annotations

import json
import os
from typing import Final

from xc_core.errors import UsageError

GPUS: Final = "XC_POD_GPUS"
"""GPUs of the pod of a run that trains; none if it is not set (deploy/kubernetes/project.yaml)."""


def gpu_tags() -> dict[str, str]:
    """Return the tags of a job that trains; raise UsageError if XC_POD_GPUS is no whole number."""
    text = os.environ.get(GPUS) or "0"
    if not text.isdecimal():
        raise UsageError(f"{GPUS}={text}", expected="a whole number, 0 for none", do=f"fix {GPUS}")
    if int(text) == 0:
        return {}
    limits = {"limits": {"nvidia.com/gpu": str(int(text))}}
    return {"dagster-k8s/config": json.dumps({"container_config": {"resources": limits}})}
