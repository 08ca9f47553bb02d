"""A study as data: recipes, the axes over which they vary, and what is compared. Read from YAML, checked whole."""

import difflib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..recipes.fields import RecipeError, explain, flat, nearest, parse_mapping, read_text, shipped_names
from ..recipes.recipe import FAMILIES, Recipe, load_recipe, spelled_out
from ..runs.folder import RunError
from .labels import context_words, is_looked_at, labels, varying

SHIPPED = resources.files("sage_snn.studies") / "shipped"


class StudyError(RunError):
    """A study that cannot be used or run; the message says what would be right."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Protocol = Literal["own", "common"]


class Variant(_Part):
    """Settings that belong together, as one point of an axis of their own; on top of the study's recipe or another.

    `protocol` says of a whole system whether it is trained by its own recipe or by the one that all share.
    """

    label: str | None = None
    recipe: str | None = None
    protocol: Protocol | None = None
    settings: dict[str, Any] = {}

    @field_validator("settings")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dict(flat(spelled_out(value)))

    @property
    def title(self) -> str | None:
        """The label, with the protocol where there is one."""
        return f"{self.label} ({self.protocol})" if self.label and self.protocol else self.label


class Comparing(_Part):
    """Against whom, and in what, runs are compared; without a baseline it is fixed, or else the first."""

    baseline: str | None = None
    metric: Literal["last_top1", "best_top1", "images_per_second"] = "last_top1"


# The beginnings of the figures' names: what a study may put first on its page.
# fmt: off
Family = Literal[
    "accuracy", "difference", "curves", "sensitivity", "slopes", "heads", "idle", "firing", "gini", "temperature",
    "overhead", "steps",
]
# fmt: on


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


class Study(_Part):
    """A grid of runs of one recipe, or of several that its variants name."""

    name: str = Field(default="unnamed", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: dict[str, Any] = {}
    recipe: str
    settings: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}
    variants: list[Variant] = []
    compare: Comparing = Comparing()
    report: list[Family] = []
    claims: Literal["paper"] | None = None  # whose claims the page judges

    @field_validator("settings")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dict(flat(spelled_out(value)))

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

    def _distinct(self) -> list["_Point"]:
        try:
            names = [self.recipe, *(variant.recipe for variant in self.variants if variant.recipe)]
            bases = {name: load_recipe(name, self.settings) for name in dict.fromkeys(names)}
            points = [_Point(variant, point, bases[variant.recipe or self.recipe]) for variant, point in self._points()]
            return _once(points, self.name)
        except RecipeError as error:
            raise StudyError(f"study {self.name}: {error}") from None

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


class _Point:
    """One point of the grid. What its policy does not look at is left out: a fixed slope is the same with any gain."""

    def __init__(self, variant: Variant, settings: dict[str, Any], base: Recipe) -> None:
        tags = {f"{name}.{family.tag}": getattr(getattr(base, name), family.tag) for name, family in FAMILIES.items()}
        self.used = {key: value for key, value in settings.items() if is_looked_at(key, tags | settings)}
        self.variant, self.settings = variant, settings
        self.recipe = base.updated(self.used)
        self.key = run_key(self.recipe)

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


def run_key(recipe: Recipe) -> str:
    """The same for a recipe in every study; defaults are no part of it, so that new fields change no key."""
    defaults = _defaults()
    chosen = {key: value for key, value in recipe.identity().items() if value != defaults.get(key)}
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]
    return f"{recipe.data}-{recipe.policy.kind}-t{recipe.model.time_steps}-s{recipe.seed}-{digest}"


@cache
def _defaults() -> dict[str, Any]:
    return Recipe().identity()


def shipped_studies() -> list[str]:
    """Names of the studies in the package."""
    return shipped_names(SHIPPED)


def is_study(source: str | Path) -> bool:
    """Is it the name of a study, unless a folder is called so too, or the path of a file?"""
    path = Path(source)
    is_file = path.is_file() or path.suffix in (".yaml", ".yml")
    return not path.is_dir() and (is_file or str(source) in shipped_studies())


def load_study(source: str | Path, settings: Mapping[str, Any] | None = None) -> Study:
    """A shipped name or a YAML file, with dotted settings on top of its own."""
    return parse_study(_fields(source), str(source), settings)


def shipped_study(name: str) -> Study:
    """One that ships, which need not be checked run by run."""
    return Study.model_validate(_fields(name))


def parse_study(
    fields: Mapping[str, Any], source: str = "the study", settings: Mapping[str, Any] | None = None
) -> Study:
    """Check the fields and every run that follows from them."""
    try:
        study = Study.model_validate(fields)
    except ValidationError as error:
        problems = "\n".join(f"  {explain(problem, _kind_at)}" for problem in error.errors())
        raise StudyError(f"{source}:\n{problems}") from None
    if settings:
        study = study.model_copy(update={"settings": study.settings | dict(flat(spelled_out(settings)))})
    _check_fields(study, source)
    _check_variants(study, source)
    _check_baseline(study, source)
    return study


def _fields(source: str | Path) -> dict[str, Any]:
    text, stem, beside = read_text(source, SHIPPED, "study", StudyError)
    fields = parse_mapping(text, source, "with `recipe:` and `axes:`; see `sage-snn study --help`", StudyError)
    variants = fields.get("variants")
    for part in [fields, *(variants if isinstance(variants, list) else [])]:
        recipe = part.get("recipe") if isinstance(part, dict) else None
        if beside is not None and isinstance(recipe, str) and (beside / recipe).is_file():
            part["recipe"] = str(beside / recipe)
    return {"name": stem} | fields


def recipe_fields() -> list[str]:
    """Dotted names that an axis may have."""
    return list(_defaults())


def _check_fields(study: Study, source: str) -> None:
    varied = [key for variant in study.variants for key in variant.settings]
    if not study.axes and not study.variants:
        raise StudyError(f"{source}: nothing varies; add `axes:`, such as `seed: [1, 2, 3]`")
    for key in [*study.axes, *varied, *study.settings]:
        if key in ("data_dir", "workers", "name", "about"):
            if key in study.settings:
                continue
            raise StudyError(f"{source}: {key} does not change a result, so it cannot be an axis; remove it")
        if key not in recipe_fields():
            raise StudyError(f"{source}: no recipe field {key!r}{_nearest_field(key)}")
    for key, values in study.axes.items():
        if not values:
            raise StudyError(f"{source}: the axis {key} is empty; give it at least one value, or remove it")
        if key in study.settings:
            raise StudyError(f"{source}: {key} is both an axis and a setting; keep one of them")
        if key in varied:
            raise StudyError(f"{source}: {key} is both an axis and set by a variant; keep one of them")
    if both := sorted(set(varied) & set(study.settings)):
        raise StudyError(f"{source}: {both[0]} is both in settings and set by a variant; keep one of them")


def _check_variants(study: Study, source: str) -> None:
    """Recipes of one's own and protocols need labels that tell them apart."""
    titles = list[str]()
    for number, variant in enumerate(study.variants, start=1):
        if study.compares_systems and not variant.protocol:
            who = variant.label or f"variant {number}"
            raise StudyError(f"{source}: {who} names no protocol and others do; give it `protocol: own` or `common`")
        if not (variant.recipe or variant.protocol):
            continue
        if not variant.title:
            raise StudyError(f"{source}: variant {number} names a recipe or protocol; give it a label too")
        titles.append(variant.title)
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise StudyError(f"{source}: two variants are called {twice!r}; give each a label of its own")


def _check_baseline(study: Study, source: str) -> None:
    known = list(dict.fromkeys(planned.label for planned in study.runs()))
    baseline = study.compare.baseline
    starts = [variant.title for variant in study.variants] if study.compares_systems else []
    is_known = any(label == baseline or label.startswith(f"{baseline} ") for label in known)
    if baseline is not None and not (baseline in starts if starts else is_known):
        raise StudyError(f"{source}: the baseline {baseline!r} is none of its runs: {', '.join(known)}")


def _once(points: list[_Point], name: str) -> list[_Point]:
    """Each run once; two places that ask for the same run in so many words are a mistake."""
    seen: dict[str, _Point] = {}
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


def _kind_at(path: list[str]) -> type[BaseModel]:
    return {"compare": Comparing, "variants": Variant}.get(path[0], Study) if path else Study


def _nearest_field(key: str) -> str:
    """A field whose last part reads the same comes first: time_steps -> model.time_steps."""
    known = recipe_fields()
    last = {name.rpartition(".")[2]: name for name in reversed(known)}
    near = difflib.get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.6)
    return f"; did you mean {last[near[0]]!r}?" if near else nearest(key, known)
