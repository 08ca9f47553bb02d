"""What decides the meaning of a policy's state: its settings as plain data, compared field by field."""

import ast
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from ..signals import SPREADS

Settings = dict[str, Any]


def settings_of(thing: Any) -> Any:
    """Plain data that tells a setting from another: numbers and words as they are, objects by kind and fields.

    A function is known by its qualified name only, an object of one's own by its attributes that are numbers or words.
    """
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, list | tuple):
        return [settings_of(item) for item in thing]
    if is_dataclass(thing) and not isinstance(thing, type):
        own = {field.name: settings_of(getattr(thing, field.name)) for field in fields(thing) if field.repr}
        return {"kind": type(thing).__qualname__} | own
    if hasattr(thing, "__qualname__"):
        return {"function": thing.__qualname__}
    told = {name: value for name, value in sorted(vars(thing).items()) if isinstance(value, bool | int | float | str)}
    return {"kind": type(thing).__qualname__} | told


def differences(saved: Mapping[str, Any], things: Mapping[str, Any]) -> list[str]:
    """In what saved settings differ from those of the things, in words; a field that was not saved had its default."""
    lines: list[str] = []
    for name, thing in things.items():
        mine = settings_of(thing)
        theirs = _completed(saved[name], thing) if name in saved else mine
        if theirs != mine:
            lines.append(f"{name}: {_told(theirs, mine)} there, {_told(mine, theirs)} here")
    return lines


def functions_among(things: Mapping[str, Any]) -> list[str]:
    """Names of the settings that are functions: two of the same name look alike."""
    return [name for name, thing in things.items() if hasattr(thing, "__qualname__")]


def parse_settings(text: str) -> Settings:
    """Settings as they were written before they were plain data: calls and names, apart by semicolons."""
    signal, spread, statistics, law, rest = text.split("; ")
    known = {function.__name__: name for name, function in SPREADS.items()}
    parts: Settings = {"signal": _parsed(signal), "spread": known.get(spread, _parsed(spread))}
    parts |= {"statistics": _parsed(statistics), "law": _parsed(law)}
    for part in rest.split(", "):
        name, _, value = part.removeprefix("self.").partition("=")
        parts[name] = ast.literal_eval(value)
    return parts


def _parsed(text: str) -> Any:
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return {"function": text}  # such as <lambda>
    if isinstance(call, ast.Call):
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return {"kind": ast.unparse(call.func)} | given
    return {"function": text}


def _completed(saved: Any, thing: Any) -> Any:
    if not (isinstance(saved, Mapping) and is_dataclass(thing) and saved.get("kind") == type(thing).__qualname__):
        return saved
    defaults = {f.name: settings_of(f.default) for f in fields(thing) if f.repr and f.default is not MISSING}
    return {"kind": saved["kind"]} | defaults | dict(saved)


def _told(one: Any, other: Any) -> str:
    """Only the fields in which two objects of one kind differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("kind") == other.get("kind") is not None:
        apart = [f"{key}={value!r}" for key, value in one.items() if other.get(key, MISSING) != value]
        return f"{one['kind']}({', '.join(apart)})"
    if isinstance(one, Mapping):
        return str(one.get("kind") or one.get("function"))
    return repr(one)
