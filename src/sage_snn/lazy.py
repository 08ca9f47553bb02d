"""Names of a package that are imported when they are first used, so that light ones do not load heavy ones."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `homes` maps modules, relative to it (`.loop`), to their names."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def getattribute(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name], package), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *home_of})

    return getattribute, names
