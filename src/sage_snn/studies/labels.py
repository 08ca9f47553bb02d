"""Short names for runs that are compared: the policy, and what else tells them apart."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..recipes.policies import POLICIES
from ..recipes.recipe import FAMILIES, Recipe

Fields = Mapping[str, Any]

# Columns of their own in every table, so that a label need not repeat them.
APART = ("data", "seed", "model.time_steps", "policy.kind")
# Columns of recipe fields and of applied facts begin so: no other column of a table is taken for one of them.
RECIPE, APPLIED = "recipe.", "applied."
THREADS = "threads"


def varying(recipes: Iterable[Recipe]) -> list[str]:
    """Dotted fields that differ between runs of the same data, those with a column of their own left out.

    Threads move results by rounding only: they count where nothing else tells two runs apart.
    """
    by_data: dict[str, list[Fields]] = {}
    for recipe in recipes:
        by_data.setdefault(recipe.data, []).append(recipe.identity())
    fields = {
        key: None
        for group in by_data.values()
        for key in {key: None for fields in group for key in fields}
        if key not in APART and any(fields.get(key) != group[0].get(key) for fields in group)
        if key != THREADS or _tells_apart(key, group)
    }
    return list(fields)


def is_context(field: str) -> bool:
    """Does it set the scene (width, learning rate), rather than the policy or what is recorded?"""
    return not field.startswith(("policy.", "observe."))


def labels(recipes: Sequence[Recipe], fields: list[str]) -> list[str]:
    """A label per recipe, such as `sage gain=-0.5`, from varying fields; defaults of the policy are left out."""
    return [" ".join([recipe.policy.kind, *_words(recipe, fields)]) for recipe in recipes]


def context_words(values: Fields, fields: Iterable[str]) -> list[str]:
    """`depth=2`, `lr=0.001`: the words that a label has for fields outside the policy."""
    fields = list(fields)
    chosen = (key for key in fields if is_context(key) and is_looked_at(key, values))
    return [f"{_short(key, fields)}={told(values.get(key))}" for key in chosen]


def is_looked_at(key: str, values: Fields) -> bool:
    """Does the kind that the values name (`policy.kind`) look at this field? Fields outside of families count."""
    head, _, name = key.partition(".")
    family = FAMILIES.get(head)
    return family is None or not name or family.looks_at(str(values.get(f"{head}.{family.tag}")), name)


def told(value: Any) -> str:
    """A value in a label or a cell: `0.001`, `ann(epochs=5)` for stages."""
    if isinstance(value, list | tuple) and value and all(isinstance(part, Mapping) for part in value):
        return "+".join(_stage(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _stage(fields: Fields) -> str:
    settings = ",".join(f"{key}={told(value)}" for key, value in (fields.get("settings") or {}).items())
    return f"{fields.get('name')}({settings})"


def _tells_apart(key: str, group: Sequence[Fields]) -> bool:
    """Are there two runs that differ in this field alone?"""
    values: dict[str, set[str]] = {}
    for fields in group:
        others = repr(sorted((name, repr(value)) for name, value in fields.items() if name != key))
        values.setdefault(others, set()).add(repr(fields.get(key)))
    return any(len(different) > 1 for different in values.values())


def _words(recipe: Recipe, fields: list[str]) -> list[str]:
    identity, words = recipe.identity(), list[str]()
    for key in fields:
        name = key.removeprefix("policy.")
        if name != key and is_looked_at(key, identity) and identity[key] != POLICIES.defaults[name]:
            words.append(f"{_short(key, fields)}={told(identity[key])}")
    return words + context_words(identity, fields)


def _short(key: str, fields: Sequence[str]) -> str:
    """The last part of a dotted name, or all of it where two would read the same; `loss` for `loss.kind`."""
    head, _, last = key.rpartition(".")
    if head in FAMILIES and last == FAMILIES[head].tag:
        return head
    return last if sum(other.rpartition(".")[2] == last for other in fields) == 1 else key
