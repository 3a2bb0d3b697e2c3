"""One file a paper; importing this loads every module of the folder, and recipes that other packages offer.

A new recipe is a new file here (or an entry point of the group ``xc.recipes``); nothing else is edited.
"""

import importlib
import pkgutil
from importlib import metadata

from xc_core.recipes.base import RECIPES, Recipe, find_recipe

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
for _entry in metadata.entry_points(group="xc.recipes"):
    _entry.load()

__all__ = ["RECIPES", "Recipe", "find_recipe"]
