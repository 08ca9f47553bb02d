"""Training: recipes as data, a loop that resumes to the same bits, and what a run leaves behind."""

from .fields import RecipeError, parse_settings
from .folder import RunError, RunFolder
from .loop import InterruptedRunError
from .recipe import Recipe, differences, load_recipe, shipped_recipes
from .start import train

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
