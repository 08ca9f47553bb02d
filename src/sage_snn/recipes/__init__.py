"""Recipes: training runs as data; those that ship, and the parts of which all are made."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .fields import RecipeError, parse_settings
    from .losses import LOSSES
    from .models import MODELS
    from .policies import POLICIES
    from .recipe import Recipe, differences, load_recipe, parse_recipe, shipped_recipes
    from .typed import load_typed

__all__ = [
    "LOSSES",
    "MODELS",
    "POLICIES",
    "Recipe",
    "RecipeError",
    "differences",
    "load_recipe",
    "load_typed",
    "parse_recipe",
    "parse_settings",
    "shipped_recipes",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".fields": ("RecipeError", "parse_settings"),
        ".losses": ("LOSSES",),
        ".models": ("MODELS",),
        ".policies": ("POLICIES",),
        ".recipe": ("Recipe", "differences", "load_recipe", "parse_recipe", "shipped_recipes"),
        ".typed": ("load_typed",),
    },
)
