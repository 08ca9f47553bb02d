"""A training run as data: what is trained, on what, how. Read from YAML, checked, written back with every run."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_serializer, model_validator

from ..data import DATASETS, DataError, arrays
from ..data.augmentation import Augmentation
from ..data.digest import file_digest
from .fields import RecipeError, explain, flat, merged, nearest, parse_mapping

SHIPPED = resources.files("sage_snn") / "recipes"
FACTS = ("about", "applied")  # told by or to people; no part of what is trained
ELSEWHERE = ("data_dir", "workers", "init_from")  # may differ between machines without changing a result
DIGESTS = ("data_digest", "init_digest")  # of files as a run found them; never settings


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Part):
    """The network; sizes of images and classes come from the data."""

    name: Literal["spikformer"] = "spikformer"
    depth: int = Field(default=4, ge=1)
    dim: int = Field(default=384, ge=8)
    heads: int = Field(default=12, ge=1)
    time_steps: int = Field(default=4, ge=1)
    patch_size: Literal[1, 2, 4, 8, 16] = 4
    mlp_ratio: float = Field(default=4.0, gt=0)
    form: Literal["cifar", "imagenet"] = "cifar"

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "ModelConfig":
        if self.dim % self.heads or self.dim % 8:
            raise ValueError(f"heads ({self.heads}) and 8 must divide dim ({self.dim})")
        return self


class PolicyConfig(_Part):
    """Who sets the slopes. Fields that a kind does not use are ignored by it."""

    kind: Literal["fixed", "learnable", "sage"] = "sage"
    slope: float = Field(default=4.0, gt=0, description="fixed, and where learnable starts")
    per: Literal["network", "block", "layer", "time"] = "network"
    signal: Literal["entropy", "gini", "random", "constant"] = "entropy"
    spread: Literal["std", "sample_std", "mean"] = "std"
    temperature: float = Field(default=0.25, gt=0)
    decay: float = Field(default=0.95, ge=0, lt=1)
    first: Literal["observation", "zero"] = "observation"
    running: Literal["cumulative", "exponential"] = "cumulative"
    momentum: float = Field(default=0.01, gt=0, le=1)
    restart: bool = False
    eps: float = Field(default=1e-8, ge=0)
    relative_eps: bool = False
    center: bool = True
    gain: float = 0.5
    dead_zone: float = Field(default=0.25, ge=0)
    low: float = Field(default=3.0, gt=0)
    high: float = Field(default=5.0, gt=0)
    continuous: bool = False
    neurons: Literal["block", "attention", "all"] = "block"
    every: int = Field(default=1, ge=1)
    warmup_epochs: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _bounds_hold_the_base(self) -> "PolicyConfig":
        if not self.low <= 4.0 <= self.high:
            raise ValueError(f"low ({self.low}) and high ({self.high}) must hold the base slope 4 between them")
        return self


class ObserveConfig(_Part):
    """What to record of the attention besides what the policy reads, at each of these temperatures."""

    temperatures: tuple[float, ...] = ()

    @field_validator("temperatures")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not temperature > 0 for temperature in value):
            raise ValueError("temperatures must be positive")
        return value


class Recipe(_Part):
    """All that decides a run. `batch_size` counts the images of one optimizer step on all ranks together."""

    name: str = "unnamed"
    data: str = "digits"
    data_dir: str | None = None
    train_images: int | None = Field(default=None, ge=1)
    test_images: int | None = Field(default=None, ge=1)
    classes_file: str | None = None
    per_class: int = Field(default=640, ge=1)
    model: ModelConfig = Field(default_factory=ModelConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    augmentation: Augmentation = Field(default_factory=Augmentation)  # pyright: ignore[reportArgumentType]
    observe: ObserveConfig = Field(default_factory=ObserveConfig)
    epochs: int = Field(default=300, ge=1)  # Choice: decision 20
    warmup_epochs: int = Field(default=20, ge=0)
    cooldown_epochs: int = Field(default=10, ge=0)
    batch_size: int = Field(default=128, ge=1)
    accumulate: int = Field(default=1, ge=1)
    max_steps_per_epoch: int | None = Field(default=None, ge=1)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = Field(default=5e-4, gt=0)
    warmup_lr: float = Field(default=1e-5, ge=0)
    min_lr: float = Field(default=1e-5, ge=0)
    weight_decay: float = Field(default=0.06, ge=0)
    precision: Literal["auto", "32", "16", "bf16"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=0, ge=0)
    seed: int = Field(default=42, ge=0, lt=2**63)
    init_from: str | None = None  # weights to start from
    data_digest: str | None = None  # of the file of `data: arrays`; both digests are filled in by a run
    init_digest: str | None = None
    about: dict[str, Any] = {}

    @field_validator("precision", mode="before")
    @classmethod
    def _precision_may_be_a_number(cls, value: Any) -> Any:
        return str(value)

    @field_validator("data")
    @classmethod
    def _data_is_known(cls, value: str) -> str:
        if value not in DATASETS:
            raise ValueError(f"unknown data {value!r}{nearest(value, DATASETS)}; known are {', '.join(DATASETS)}")
        return value

    @model_validator(mode="after")
    def _epochs_fit(self) -> "Recipe":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs ({self.warmup_epochs}) must be fewer than epochs ({self.epochs})")
        if self.policy.kind == "sage" and self.policy.warmup_epochs > self.total_epochs:
            raise ValueError(f"policy.warmup_epochs ({self.policy.warmup_epochs}) is longer than the training")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate ({self.accumulate}) must divide batch_size ({self.batch_size})")
        return self

    @model_serializer(mode="wrap")
    def _without_files_that_are_none(self, write: Any) -> dict[str, Any]:
        """Few runs have them: the recipes of all others stay as they are."""
        optional = {"init_from", *DIGESTS}
        return {key: value for key, value in write(self).items() if value is not None or key not in optional}

    @property
    def total_epochs(self) -> int:
        """Epochs of the schedule and of the cooldown."""
        return self.epochs + self.cooldown_epochs

    def updated(self, settings: Mapping[str, Any]) -> "Recipe":
        """The same with other values; keys are dotted (`model.depth`)."""
        return parse_recipe(merged(self.model_dump(exclude={*DIGESTS}), settings), source=self.name)

    def pinned(self) -> "Recipe":
        """The same with the digests of its files as they are now."""
        found = {name: read() for name, read in self._digests().items()}
        return self.model_copy(update=dict.fromkeys(DIGESTS) | found)

    def identity(self) -> dict[str, Any]:
        """Dotted key -> value of all that decides the result, machine matters left out; files count by content."""
        digests = self._digests()
        fields = self.model_dump(mode="json", exclude={*FACTS, *ELSEWHERE, "name", *(set(DIGESTS) - digests.keys())})
        for name in digests.keys() - fields:
            with suppress(DataError, OSError):  # recipes are compared where their files are not, too
                fields[name] = digests[name]()
        return dict(flat(fields))

    def _digests(self) -> dict[str, Callable[[], str]]:
        """How to read the digest of each file whose content decides the result."""
        digests: dict[str, Callable[[], str]] = {}
        if self.data == "arrays":
            folder = None if self.data_dir is None else Path(self.data_dir).expanduser()
            digests["data_digest"] = lambda: arrays.digest(folder)
        if (start := self.init_from) is not None:
            digests["init_digest"] = lambda: file_digest(weights_file(start))
        return digests


def weights_file(path: str | Path) -> Path:
    """The file itself, or that of a finished run's folder."""
    path = Path(path)
    return path / "model.safetensors" if path.is_dir() else path


def shipped_recipes() -> list[str]:
    """Names of the recipes in the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(source: "str | Path | Mapping[str, Any] | Recipe", settings: Mapping[str, Any] | None = None) -> Recipe:
    """A shipped name, a YAML file, a mapping or a recipe, with dotted settings on top."""
    if isinstance(source, Recipe):
        return source.updated(settings) if settings else source
    if isinstance(source, Mapping):
        return parse_recipe(merged(source, settings or {}))
    fields = {key: value for key, value in _fields(source).items() if key not in DIGESTS}
    return parse_recipe(merged(fields, settings or {}), source=str(source))


def load_written_recipe(path: Path) -> Recipe:
    """The recipe that a run wrote, with the digests of the files that it was trained from."""
    return parse_recipe(_fields(path), source=str(path))


def parse_recipe(fields: Mapping[str, Any], source: str = "the recipe") -> Recipe:
    """Check the fields; unknown keys and wrong types are errors that name the nearest right one."""
    given = {key: value for key, value in fields.items() if key != "applied"}
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        problems = "\n".join(f"  {explain(problem, _kind_at)}" for problem in error.errors())
        raise RecipeError(f"{source}:\n{problems}") from None


def differences(a: Recipe, b: Recipe) -> list[tuple[str, Any, Any]]:
    """Dotted keys in which two recipes differ, with both values."""
    left, right = a.identity(), b.identity()
    return [(key, left.get(key), right.get(key)) for key in sorted(left | right) if left.get(key) != right.get(key)]


def _fields(source: str | Path) -> dict[str, Any]:
    text, name = _read(source)
    return {"name": name} | parse_mapping(text, source, "of fields to values, such as `epochs: 10`", RecipeError)


def _read(source: str | Path) -> tuple[str, str]:
    name, path = str(source), Path(source)
    if name in shipped_recipes():
        return (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name
    try:
        return path.read_text(encoding="utf-8"), path.stem
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if path.suffix in (".yaml", ".yml") or path.exists():
            raise RecipeError(f"cannot read {source}: {error}") from None
        known = shipped_recipes()
        hint = f"{nearest(name, known)}; shipped are {', '.join(known)}; or give the path of a YAML file"
        raise RecipeError(f"no recipe {name!r}{hint}") from None


def _kind_at(path: list[str]) -> type[BaseModel]:
    kind: Any = Recipe
    for part in path:
        kind = kind.model_fields[part].annotation
    return kind
