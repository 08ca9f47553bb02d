"""Nested fields under dotted names, and what is wrong with them in words."""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from .. import files

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # many times faster, where libyaml is there
MOST_DIGITS = 40  # of a whole number
MOST_VALUES = 100_000  # of a text whose aliases are written out: a few lines can stand for more than memory holds


class RecipeError(ValueError):
    """A recipe that cannot be used; the message says which line and what would be right."""


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`["lr=1e-3", "model.depth=2"]` -> {"lr": ..., "model.depth": ...}; values are YAML."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"{setting!r} is not of the form key=value, such as model.depth=2")
        try:
            parsed[key.strip()] = parse_yaml(value)
        except yaml.YAMLError:
            cure = "put it in quotes, such as 'key=\"value\"'"
            raise RecipeError(f"the value of {key.strip()[:200]} is not YAML: {value[:200]!r}; {cure}") from None
    return parsed


@contextmanager
def blaming(part: str) -> Iterator[None]:
    """What only shows when the data is known is still a mistake of the recipe."""
    try:
        yield
    except ValueError as error:
        raise RecipeError(f"{part}: {error}; change it in the recipe, or with --set {part}.FIELD=VALUE") from None


def shipped_names(shipped: Traversable) -> list[str]:
    """Of the YAML files in a folder of the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in shipped.iterdir() if entry.name.endswith(".yaml"))


def read_text(
    source: str | Path, shipped: Traversable, what: str, error: type[Exception]
) -> tuple[str, str, Path | None]:
    """Text and name of a shipped recipe or study or of a YAML file, and its folder, None if it ships."""
    name, path = str(source), Path(source)
    known = shipped_names(shipped)
    if name in known:
        return (shipped / f"{name}.yaml").read_text(encoding="utf-8"), name, None
    try:
        return files.read_text(path), path.stem, path.parent
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        if path.suffix in (".yaml", ".yml") or os.path.exists(path):
            cure = "save it as UTF-8" if isinstance(problem, UnicodeDecodeError) else "give the path of a YAML file"
            raise error(f"cannot read {source}: {problem}; {cure}") from None
        hint = f"{nearest(name[:200], known)}; shipped are {', '.join(known)}; or give the path of a YAML file"
        raise error(f"no {what} {shortened(name, 200)!r}{hint}") from None


def parse_mapping(text: str, source: object, right: str, error: type[Exception]) -> dict[str, Any]:
    """The fields of a YAML text; what is not YAML, or no mapping, is the given error, which says what is right."""
    try:
        fields = parse_yaml(text)
    except yaml.YAMLError as problem:
        why = " ".join(str(problem).replace('in "<unicode string>", ', "at ").split())
        raise error(f"{source} is not YAML: {shortened(why)}; mend it there") from None
    if not isinstance(fields, dict):
        raise error(f"{source} must be a mapping {right}")
    return fields


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; a YAMLError for whatever is wrong with it, such as a date or a depth that is none."""
    try:
        loader = LOADER(text)
        node = loader.get_single_node()
        if _values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {MOST_VALUES:,} values; write fewer")
        return None if node is None else loader.construct_document(node)
    except (ValueError, OverflowError) as problem:  # of int() and date(), which the loader calls
        raise yaml.YAMLError(str(problem)) from None
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply, or an alias holds itself") from None


def _values(node: Any, known: dict[int, int]) -> int:
    """How many values a node stands for with its aliases written out; numbers without end are refused on the way."""
    if id(node) not in known:
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and len(node.value) > MOST_DIGITS:
            raise yaml.YAMLError(f"a number of {len(node.value)} digits; write one of at most {MOST_DIGITS}")
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        inner = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_values(part, known) for part in inner)
    return known[id(node)]


def merged(fields: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested fields with dotted settings on top."""
    whole: dict[str, Any] = dict(fields)
    for key, value in settings.items():
        head, _, rest = str(key).partition(".")
        if rest:
            inner = whole.get(head) or {}
            if not isinstance(inner, Mapping):
                raise RecipeError(f"{shortened(key, 200)}: {head} has no fields of its own; give it one value")
            whole[head] = merged(inner, {rest: value})
        else:
            whole[head] = value
    return whole


def flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested fields."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def listed(source: object, problems: Sequence[str]) -> str:
    """One problem on the line of the file that has it, several on lines of their own."""
    return f"{source}: {problems[0]}" if len(problems) == 1 else "\n  ".join((f"{source}:", *problems))


def explain(problem: Any, kind_at: Callable[[list[str]], type[BaseModel]]) -> str:
    """A problem that pydantic found, in words; `kind_at` gives the model that stands at a path."""
    path = [str(part) for part in problem["loc"]]
    where = shortened(".".join(path), 200)
    if problem["type"] == "extra_forbidden":
        known = kind_at(path[:-1]).model_fields
        cure = nearest(path[-1], known) or f"; leave it out, or use one of {', '.join(known)}"
        return f"{where}: no such field{cure}"
    if problem["type"] == "missing":
        return f"{where}: missing, and there is no default"
    is_endless = problem["type"] == "int_parsing_size"  # of which pydantic says only that it is no number
    message = "Input should be a smaller number" if is_endless else problem["msg"].removeprefix("Value error, ")
    given = problem["input"]
    shown = (
        f", not {shortened(repr(given), 200)}" if isinstance(given, str | int | float | bool | None) and where else ""
    )
    return f"{where}: {shortened(message)}{shown}" if where else shortened(message)


def shortened(text: str, most: int = 1000) -> str:
    """Without its middle: a value may be as long as its file."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def nearest(word: str, known: Any) -> str:
    """A question after the nearest of the known words, empty if none is close: it ends an error message."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
