"""Training: a loop that resumes to the same bits, from a recipe to what a run leaves behind."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from ..recipes import Recipe, RecipeError, differences, load_recipe, parse_settings, shipped_recipes
    from ..runs import RunError, RunFolder
    from .loop import InterruptedRunError
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "..recipes": ("Recipe", "RecipeError", "differences", "load_recipe", "parse_settings", "shipped_recipes"),
        "..runs": ("RunError", "RunFolder"),
        ".loop": ("InterruptedRunError",),
        ".start": ("train",),
    },
)
