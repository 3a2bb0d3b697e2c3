"""The stations of the chain: what each takes and gives, and the one way to run one."""

from xc_core.stages.registry import STAGES, Stage
from xc_core.stages.runner import Ran, outdated, run_stage
from xc_core.stages.workspace import Experiment, Workspace

__all__ = ["STAGES", "Experiment", "Ran", "Stage", "Workspace", "outdated", "run_stage"]
