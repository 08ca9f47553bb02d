"""Recipes with settings that somebody typed: none of them may be without effect."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .fields import RecipeError, flat, listed
from .inheritance import spelled_out
from .recipe import FAMILIES, Recipe, load_recipe


def load_typed(source: str | Path, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with dotted settings on top; a field that its policy, model or loss does not look at is an error.

    In files and studies it is none: there fields are inherited, and kinds change.
    """
    recipe = load_recipe(source, settings)
    problems = [problem for key, _ in flat(spelled_out(settings)) for problem in _unseen(recipe, key)]
    if problems:
        raise RecipeError(listed(source, problems))
    return recipe


def _unseen(recipe: Recipe, key: str) -> list[str]:
    """What is wrong with a setting that changes nothing, in words; empty for any other."""
    head, _, field = key.partition(".")
    family = FAMILIES.get(head)
    kind = getattr(getattr(recipe, head, None), family.tag, "") if family else ""
    if family is None or not field or family.looks_at(kind, field):
        return []
    own = ", ".join(name for name in family.kinds[kind].model_fields if name != family.tag)
    having = ", ".join(name for name in family.names if family.looks_at(name, field))
    choose = f"leave it out, or choose another {head}.{family.tag}"
    return [f"{key} is a field of {having}; {kind} has {own or 'none'}: {choose}"]
