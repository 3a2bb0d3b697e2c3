"""Fusion: combines the values of several scores into one.

To add a fusion, add a module to this folder; importing the package registers all of them.
"""

from xc_core.fusion.base import FUSIONS, FittedFusion, Fusion
from xc_core.fusion.boosting import Boosted, BoostedTrees
from xc_core.fusion.inputs import Inputs, Pairs
from xc_core.fusion.lightgbm import LightGBM, Objective
from xc_core.fusion.rules import Sum, Tree, summed
from xc_core.fusion.tree import RegressionTree
from xc_core.plugins import import_all

import_all(__name__, __path__)

__all__ = [
    "FUSIONS",
    "Boosted",
    "BoostedTrees",
    "FittedFusion",
    "Fusion",
    "Inputs",
    "LightGBM",
    "Objective",
    "Pairs",
    "RegressionTree",
    "Sum",
    "Tree",
    "summed",
]
