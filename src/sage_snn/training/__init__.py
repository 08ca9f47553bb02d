"""Training: recipes as data, a loop that resumes to the same bits, and what a run leaves behind."""

from .folder import RunError, RunFolder
from .loop import InterruptedRunError, train
from .recipe import Recipe, RecipeError, differences, load_recipe, parse_settings, shipped_recipes

__all__ = [
    "InterruptedRunError",
    "Recipe",
    "RecipeError",
    "RunError",
    "RunFolder",
    "differences",
    "load_recipe",
    "parse_settings",
    "shipped_recipes",
    "train",
]
