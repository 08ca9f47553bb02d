"""Recipes that begin with another one: `from: cifar10`, and below it what differs."""

from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from .fields import RecipeError, flat, merged, parse_mapping, read_text, shortened

KEY = "from"
RIGHT = "of fields to values, such as `epochs: 10`"
_OWN = ("name", "about", "applied", "data_digest", "init_digest")  # told of one recipe, and not true of the next


def read_fields(source: str | Path, shipped: Traversable) -> dict[str, Any]:
    """All fields of a shipped recipe or a YAML file, those of the recipes that it begins with included."""
    return _read(source, shipped, ())


def complete(fields: Mapping[str, Any], shipped: Traversable) -> dict[str, Any]:
    """The same for a mapping; files that it names are looked for in the current folder."""
    return _complete(fields, shipped, None, ("the recipe",))


def _read(source: str | Path, shipped: Traversable, before: tuple[str, ...]) -> dict[str, Any]:
    try:
        text, name, folder = read_text(source, shipped, "recipe", RecipeError)
    except RecipeError as error:
        told = f"{before[-1]}, {KEY}: " if before else ""
        raise RecipeError(f"{told}{error}") from None
    here = name if folder is None else str(Path(source).resolve())
    if here in before:
        told = " -> ".join((*before[before.index(here) :], here))
        raise RecipeError(f"{told}: recipes begin with each other in a circle; remove one `from`")
    fields = {"name": name} | parse_mapping(text, source, RIGHT, RecipeError)
    return _complete(fields, shipped, folder, (*before, here))


def _complete(
    fields: Mapping[str, Any], shipped: Traversable, folder: Path | None, chain: tuple[str, ...]
) -> dict[str, Any]:
    own = spelled_out({key: value for key, value in fields.items() if key != KEY})
    if KEY not in fields:
        return own
    parent = fields[KEY]
    if not isinstance(parent, str) or not parent:
        raise RecipeError(
            f"{chain[-1]}: {KEY} names one recipe, shipped or a YAML file, not {shortened(repr(parent), 200)}; "
            "write one such as `from: digits`, or leave it out"
        )
    is_file = Path(parent).suffix in (".yaml", ".yml")
    first = _read((folder or Path()) / parent if is_file else parent, shipped, chain)
    kept = {key: value for key, value in first.items() if key not in _OWN}
    told = {key: own.pop(key) for key in _OWN if key in own}
    try:
        return merged(kept, dict(flat(own))) | told
    except RecipeError as error:
        raise RecipeError(f"{chain[-1]}: {error}") from None


def spelled_out(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with `loss: tet` as `loss: {kind: tet}`, so that settings reach what is inside."""
    loss = fields.get("loss")
    return dict(fields) | ({"loss": {"kind": loss}} if isinstance(loss, str) else {})
