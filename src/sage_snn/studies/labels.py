"""Short names for runs that are compared: the policy, and what else tells them apart."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..training.recipe import PolicyConfig, Recipe

Fields = Mapping[str, Any]

# Columns of their own in every table, so that a label need not repeat them.
APART = ("data", "seed", "model.time_steps", "policy.kind")
USED_BY = {"fixed": {"slope"}, "learnable": {"slope", "per"}}  # sage uses all but these
DEFAULTS = PolicyConfig().model_dump(mode="json")
SCHEDULE = ("kind", "warmup_epochs")  # when a policy acts depends on the length of a training, not on the method


def varying(recipes: Iterable[Recipe]) -> list[str]:
    """Dotted fields that differ between runs of the same data, those with a column of their own left out."""
    by_data: dict[str, list[Fields]] = {}
    for recipe in recipes:
        by_data.setdefault(recipe.data, []).append(recipe.identity())
    fields = {
        key: None
        for group in by_data.values()
        for key in {key: None for fields in group for key in fields}
        if key not in APART and any(fields.get(key) != group[0].get(key) for fields in group)
    }
    return list(fields)


def is_context(field: str) -> bool:
    """Does it set the scene (width, learning rate), rather than the policy or what is recorded?"""
    return not field.startswith(("policy.", "observe."))


def labels(recipes: Sequence[Recipe]) -> list[str]:
    """A label per recipe, such as `sage gain=-0.5`; policy fields at their defaults are left out."""
    fields = varying(recipes)
    return [" ".join([recipe.policy.kind, *_words(recipe, fields)]) for recipe in recipes]


def context_words(values: Fields, fields: Iterable[str]) -> list[str]:
    """`depth=2`, `lr=0.001`: the words that a label has for fields outside the policy."""
    fields = list(fields)
    return [f"{_short(key, fields)}={_value(values.get(key))}" for key in fields if is_context(key)]


def unusual(policy: PolicyConfig) -> tuple[str, ...]:
    """Fields of the policy, as `policy.gain`, that it looks at and that are not the paper's."""
    chosen = policy.model_dump(mode="json")
    return tuple(
        f"policy.{name}"
        for name, value in chosen.items()
        if name not in SCHEDULE and is_used(policy.kind, name) and value != DEFAULTS[name]
    )


def _words(recipe: Recipe, fields: list[str]) -> list[str]:
    identity, words = recipe.identity(), list[str]()
    for key in fields:
        name = key.removeprefix("policy.")
        if key.startswith("policy.") and is_used(recipe.policy.kind, name) and identity[key] != DEFAULTS[name]:
            words.append(f"{_short(key, fields)}={_value(identity[key])}")
    return words + context_words(identity, fields)


def is_used(kind: str, name: str) -> bool:
    """Does a policy of this kind look at this field?"""
    return name in USED_BY[kind] if kind in USED_BY else name not in ("slope", "per")


def _short(key: str, fields: Sequence[str]) -> str:
    """The last part of a dotted name, or all of it where two would read the same."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in fields) == 1 else key


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
