"""A study as data: a recipe, the axes over which it varies, and what is compared. Read from YAML, checked whole."""

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


class Variant(_Part):
    """Settings that belong together, as one point of an axis of their own."""

    label: str | None = None
    settings: dict[str, Any]

    @field_validator("settings")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dict(flat(spelled_out(value)))


class Comparing(_Part):
    """Against whom, and in what, runs are compared; without a baseline it is fixed, or else the first."""

    baseline: str | None = None
    metric: Literal["last_top1", "best_top1", "images_per_second"] = "last_top1"


# The beginnings of the figures' names: what a study may put first on its page.
# fmt: off
Family = Literal[
    "accuracy", "difference", "curves", "sensitivity", "slopes", "heads", "idle", "firing", "gini", "temperature",
    "overhead",
]
# fmt: on


@dataclass(frozen=True)
class Planned:
    """One run of a study: `settings` is where it differs from the others, `key` the name of its folder."""

    recipe: Recipe
    settings: dict[str, Any]
    key: str
    label: str


class Study(_Part):
    """A grid of runs of one recipe."""

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
        return [
            Planned(point.recipe, point.settings, point.key, point.label(fields) or name)
            for point, name in zip(points, labels(recipes, fields), strict=True)
        ]

    def count(self) -> int:
        """How many runs there are, without the labels that take time."""
        return len(self._distinct())

    def _distinct(self) -> list["_Point"]:
        try:
            base = load_recipe(self.recipe, self.settings)
            return _once([_Point(variant, point, base) for variant, point in self._points()], self.name)
        except RecipeError as error:
            raise StudyError(f"study {self.name}: {error}") from None

    def _points(self) -> Iterator[tuple[Variant, dict[str, Any]]]:
        seeds = self.axes.get("seed", [None])
        others = {key: values for key, values in self.axes.items() if key != "seed"}
        for seed in seeds:
            for variant in self.variants or [Variant(settings={})]:
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

    def label(self, fields: list[str]) -> str | None:
        """The variant's, with what the axes add."""
        if self.variant.label is None:
            return None
        apart = [name for name in fields if name not in self.variant.settings]
        return " ".join([self.variant.label, *context_words(self.recipe.identity(), apart)])


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
    _check_baseline(study, source)
    return study


def _fields(source: str | Path) -> dict[str, Any]:
    text, stem, beside = read_text(source, SHIPPED, "study", StudyError)
    fields = parse_mapping(text, source, "with `recipe:` and `axes:`; see `sage-snn study --help`", StudyError)
    recipe = fields.get("recipe")
    if beside is not None and isinstance(recipe, str) and (beside / recipe).is_file():
        fields["recipe"] = str(beside / recipe)
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


def _check_baseline(study: Study, source: str) -> None:
    known = list(dict.fromkeys(planned.label for planned in study.runs()))
    baseline = study.compare.baseline
    if baseline is not None and not any(label == baseline or label.startswith(f"{baseline} ") for label in known):
        raise StudyError(f"{source}: the baseline {baseline!r} is none of its runs: {', '.join(known)}")


def _once(points: list[_Point], name: str) -> list[_Point]:
    """Each run once; two places that ask for the same run in so many words are a mistake."""
    seen: dict[str, _Point] = {}
    for point in points:
        first = seen.setdefault(point.key, point)
        if first is not point and point.used == point.settings:
            raise StudyError(
                f"study {name}: {first.settings} and {point.settings} are the same run; "
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
