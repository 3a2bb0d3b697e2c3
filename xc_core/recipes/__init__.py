"""Recipes: one file per paper.

A file gives every setting that its results depend on, but for those whose default is off, such as no dropout
(``tests/recipes/test_given.py`` lists them). So a new default elsewhere moves no figure of a recipe.

A new recipe is a new module of this folder, or a module of another package that an entry point of ``xc.parts`` names.
"""

from xc_core.plugins import import_all
from xc_core.recipes.base import RECIPES, Recipe, find_recipe, named, register

import_all(__name__, __path__)

__all__ = ["RECIPES", "Recipe", "find_recipe", "named", "register"]
