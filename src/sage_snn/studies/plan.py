"""The runs that follow from a study: points of its grid, each with its recipe, its key and its label."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..recipes.recipe import FAMILIES, Recipe
from .labels import context_words, is_looked_at
from .variant import Protocol, StudyError, Variant


@dataclass(frozen=True)
class Planned:
    """One run of a study: `settings` is where it differs from the others, `key` the name of its folder.

    `name` is its label without the protocol.
    """

    recipe: Recipe
    settings: dict[str, Any]
    key: str
    label: str
    name: str
    protocol: Protocol | None = None


class Point:
    """One point of the grid. What its policy does not look at is left out: a fixed slope is the same with any gain."""

    def __init__(self, variant: Variant, settings: dict[str, Any], base: Recipe) -> None:
        tags = {f"{name}.{family.tag}": getattr(getattr(base, name), family.tag) for name, family in FAMILIES.items()}
        self.used = {key: value for key, value in settings.items() if is_looked_at(key, tags | settings)}
        self.variant, self.settings = variant, settings
        self.recipe = base.updated(self.used)
        self.key = run_key(self.recipe)

    def is_at(self, place: Mapping[str, Any]) -> bool:
        """Does its recipe have these values, or one of several? A field that its kinds lack has none."""
        return all(
            _value(self.recipe, key) in (wanted if isinstance(wanted, list) else [wanted])
            for key, wanted in place.items()
        )

    def planned(self, fields: list[str], otherwise: str) -> Planned:
        """The run; its label is the variant's, with what the axes add, or the other one."""
        variant = self.variant
        if variant.label is None or variant.title is None:
            return Planned(self.recipe, self.settings, self.key, otherwise, otherwise, variant.protocol)
        apart = [name for name in fields if name not in variant.settings]
        words = context_words(self.recipe.identity(), apart)
        label, name = (" ".join([start, *words]) for start in (variant.title, variant.label))
        return Planned(self.recipe, self.settings, self.key, label, name, variant.protocol)

    def __str__(self) -> str:
        told = [repr(self.variant.title)] if self.variant.title else []
        return " with ".join([*told, str(self.settings)])


def once(points: Sequence[Point], name: str) -> list[Point]:
    """Each run once; two places that ask for the same run in so many words are a mistake."""
    seen: dict[str, Point] = {}
    for point in points:
        first = seen.setdefault(point.key, point)
        # A system that vanishes because another is the same run would be missed.
        is_lost = first.variant is not point.variant and bool(point.variant.protocol)
        if first is not point and (is_lost or point.used == point.settings):
            raise StudyError(
                f"study {name}: {first} and {point} are the same run; "
                "remove a value that stands twice, or a variant that changes nothing"
            )
    return list(seen.values())


def run_key(recipe: Recipe) -> str:
    """The same for a recipe in every study; defaults are no part of it, so that new fields change no key."""
    defaults = _defaults()
    chosen = {key: value for key, value in recipe.identity().items() if value != defaults.get(key)}
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]
    return f"{recipe.data}-{recipe.policy.kind}-t{recipe.model.time_steps}-s{recipe.seed}-{digest}"


def recipe_fields() -> list[str]:
    """Dotted names that an axis may have."""
    return list(_defaults())


@cache
def _defaults() -> dict[str, Any]:
    return Recipe().identity()


def _value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name, None)
    return value
