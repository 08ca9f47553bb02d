"""A study as data: recipes, the axes over which they vary, and what is compared. Read from YAML, checked whole."""

import itertools
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from ..recipes.fields import RecipeError, explain, listed, parse_mapping, read_text, shipped_names
from ..recipes.recipe import Recipe, load_recipe
from .labels import labels, varying
from .mistakes import refuse_mistakes
from .phase import Phase, refuse_wrong_phase
from .plan import Planned, Point, once
from .variant import Comparing, StudyError, StudyPart, Variant, dotted

SHIPPED = resources.files("sage_snn.studies") / "shipped"

# The beginnings of the figures' names: what a study may put first on its page.
# fmt: off
Family = Literal[
    "accuracy", "difference", "curves", "sensitivity", "slopes", "heads", "idle", "firing", "gini", "temperature",
    "overhead", "steps", "policies",
]
# fmt: on


class Study(StudyPart):
    """A grid of runs of one recipe, or of several that its variants name.

    `without` names places of the grid that are not run; a confirmation `follows` the searches that it repeats.
    """

    name: str = Field(default="unnamed", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: dict[str, Any] = Field(default_factory=dict)
    phase: Phase | None = None
    follows: tuple[str, ...] = ()
    recipe: str
    settings: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    variants: list[Variant] = Field(default_factory=list)
    without: list[dict[str, Any]] = Field(default_factory=list)
    compare: Comparing = Comparing()
    report: list[Family] = Field(default_factory=list)
    claims: Literal["paper"] | None = None  # whose claims the page judges

    @field_validator("settings")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dotted(value)

    @field_validator("follows", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def runs(self) -> list[Planned]:
        """Every run, all of the first seed before any of the second, so that an early stop compares like with like."""
        points = self._distinct()
        for axis in self.axes:
            if not any(axis in point.used for point in points):
                who = {"policy": "policies", "model": "models", "loss": "losses"}[axis.partition(".")[0]]
                raise StudyError(f"study {self.name}: none of its {who} looks at {axis}; remove that axis")
        recipes = [point.recipe for point in points]
        fields = varying(recipes)
        # Whole recipes differ in more than a label can hold.
        told = [name for name in fields if name in self.axes] if self._has_recipes else fields
        return [
            point.planned(told, otherwise) for point, otherwise in zip(points, labels(recipes, fields), strict=True)
        ]

    @property
    def compares_systems(self) -> bool:
        """Do its variants name protocols, so that each is a system of its own?"""
        return any(variant.protocol for variant in self.variants)

    def count(self) -> int:
        """How many runs there are, without the labels that take time."""
        return len(self._distinct())

    def recipes(self) -> list[Recipe]:
        """Of every run, without the labels."""
        return [point.recipe for point in self._distinct()]

    def _distinct(self) -> list[Point]:
        try:
            names = [self.recipe, *(variant.recipe for variant in self.variants if variant.recipe)]
            bases = {name: load_recipe(name, self.settings) for name in dict.fromkeys(names)}
            points = [Point(variant, point, bases[variant.recipe or self.recipe]) for variant, point in self._points()]
        except RecipeError as error:
            raise StudyError(f"study {self.name}: {error}") from None
        for place in self.without:
            if not any(point.is_at(place) for point in points):
                raise StudyError(f"study {self.name}: no run is at {place}, so `without` need not name it; remove it")
        kept = [point for point in points if not any(point.is_at(place) for place in self.without)]
        if not kept:
            raise StudyError(f"study {self.name}: `without` leaves no run; remove a place from it")
        return once(kept, self.name)

    @property
    def _has_recipes(self) -> bool:
        return any(variant.recipe for variant in self.variants)

    def _points(self) -> Iterator[tuple[Variant, dict[str, Any]]]:
        seeds = self.axes.get("seed", [None])
        others = {key: values for key, values in self.axes.items() if key != "seed"}
        for seed in seeds:
            for variant in self.variants or [Variant()]:
                for values in itertools.product(*others.values()):
                    point = variant.settings | dict(zip(others, values, strict=True))
                    yield variant, (point if seed is None else point | {"seed": seed})


def shipped_studies() -> list[str]:
    """Names of the studies in the package."""
    return shipped_names(SHIPPED)


def is_study(source: str | Path) -> bool:
    """Is it the name of a study, unless a folder is called so too, or the path of a file?"""
    # Of os.path, which says no of a name that is too long; pathlib raises.
    is_file = os.path.isfile(source) or Path(source).suffix in (".yaml", ".yml")
    return not os.path.isdir(source) and (is_file or str(source) in shipped_studies())


def load_study(source: str | Path, settings: Mapping[str, Any] | None = None) -> Study:
    """A shipped name or a YAML file, with dotted settings on top of its own."""
    return parse_study(_fields(source), str(source), settings)


def shipped_study(name: str) -> Study:
    """One that ships, which need not be checked run by run."""
    return _validated(_fields(name), name)


def searches_of(study: Study) -> list[Study]:
    """The studies that a confirmation follows."""
    return [_validated(_fields(name), name) for name in study.follows]


def parse_study(
    fields: Mapping[str, Any], source: str = "the study", settings: Mapping[str, Any] | None = None
) -> Study:
    """Check the fields and every run that follows from them."""
    study = _validated(fields, source)
    if settings:
        study = study.model_copy(update={"settings": study.settings | dotted(dict(settings))})
    refuse_mistakes(study, source)
    refuse_wrong_phase(study, source, searches_of(study))
    return study


def _validated(fields: Mapping[str, Any], source: str) -> Study:
    try:
        return Study.model_validate(fields)
    except ValidationError as error:
        raise StudyError(listed(source, [explain(problem, _kind_at) for problem in error.errors()])) from None


def _fields(source: str | Path) -> dict[str, Any]:
    text, stem, beside = read_text(source, SHIPPED, "study", StudyError)
    fields = parse_mapping(text, source, "with `recipe:` and `axes:`; see `sage-snn study --help`", StudyError)
    if beside is None:
        return {"name": stem} | fields
    variants, follows = fields.get("variants"), fields.get("follows")
    for part in [fields, *(variants if isinstance(variants, list) else [])]:
        if isinstance(part, dict) and "recipe" in part:
            part["recipe"] = _found(part["recipe"], beside)
    if follows is not None:
        fields["follows"] = [_found(name, beside) for name in (follows if isinstance(follows, list) else [follows])]
    return {"name": stem} | fields


def _found(name: Any, beside: Path) -> Any:
    """A file beside the study, or the name as it is."""
    return str(beside / name) if isinstance(name, str) and os.path.isfile(beside / name) else name


def _kind_at(path: list[str]) -> type[BaseModel]:
    return {"compare": Comparing, "variants": Variant}.get(path[0], Study) if path else Study
