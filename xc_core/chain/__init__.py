"""Runs the pipeline: folders of a project, the registry of stages, which artefacts are up to date, running a stage."""

from xc_core.chain.registry import STAGES, Stage
from xc_core.chain.runner import Ran, recut_corpus, run_stage
from xc_core.chain.workspace import Workspace

__all__ = ["STAGES", "Ran", "Stage", "Workspace", "recut_corpus", "run_stage"]
