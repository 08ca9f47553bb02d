"""A training run as data: what is trained, on what, how. Read from YAML, checked, written back with every run."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    SerializationInfo,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from ..data.augmentation import Augmentation, Probability
from ..data.digest import arrays_digest, file_digest
from ..data.errors import DataError
from ..data.sets import DATASETS
from .events import require_events_fit
from .fields import RecipeError, explain, flat, listed, merged, nearest, parse_mapping, read_text, shipped_names
from .inheritance import RIGHT, complete, read_fields, spelled_out
from .losses import LOSSES, AnyLoss, CrossEntropyPart
from .models import MODELS, AnyModel, SpikformerPart
from .parts import Part
from .policies import POLICIES, AnyPolicy, SagePart
from .stages import BalancePart, StagePart, stage_recipes

SHIPPED = resources.files("sage_snn.recipes")
FAMILIES = {"model": MODELS, "policy": POLICIES, "loss": LOSSES}  # of which a recipe has one kind each
FACTS = ("about", "applied")  # told by or to people; no part of what is trained
ELSEWHERE = ("data_dir", "workers", "init_from", "loggers")  # may differ between machines without changing a result
DIGESTS = ("data_digest", "init_digest")  # of files as a run found them; never settings
_USUAL_LOSS = CrossEntropyPart()
# Written where they differ.
_SELDOM = ("subset", "stages", "balance", "schedule", "decay_at", "decay_rate", "decay_all", "loggers", "extended_from")


class ObservePart(Part):
    """What to record besides what the policy reads.

    Attention at each of these temperatures, in every step; at the end, operations and energy of so many test images
    (`activity`), and the accuracy after each of these numbers of time steps (`steps`).
    """

    temperatures: tuple[float, ...] = ()
    activity: int = Field(default=0, ge=0)
    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @field_validator("temperatures")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not temperature > 0 for temperature in value):
            raise ValueError("temperatures must be positive")
        return value


class Recipe(Part):
    """All that decides a run. `batch_size` counts the images of one optimizer step on all ranks together."""

    name: str = Field(default="unnamed", min_length=1, max_length=100)
    data: str = "digits"
    data_dir: str | None = None
    train_images: int | None = Field(default=None, ge=1)
    test_images: int | None = Field(default=None, ge=1)
    subset: int = Field(default=0, ge=0)  # which images these are: subsets of two numbers share none
    classes_file: str | None = None
    per_class: int = Field(default=640, ge=1)
    model: Annotated[AnyModel, MODELS] = Field(default_factory=SpikformerPart)
    policy: Annotated[AnyPolicy, POLICIES] = Field(default_factory=SagePart)
    loss: Annotated[AnyLoss, LOSSES] = Field(default_factory=CrossEntropyPart)
    augmentation: Augmentation = Field(default_factory=Augmentation)  # pyright: ignore[reportArgumentType]
    observe: ObservePart = Field(default_factory=ObservePart)
    stages: tuple[StagePart, ...] = ()  # trained before, each from the one before it
    balance: BalancePart | None = None  # of the weights that training starts from
    epochs: int = Field(default=300, ge=0)  # Choice: decision 20; 0 for a network that is converted only
    extended_from: tuple[Annotated[int, Field(ge=0)], ...] = ()  # epochs of a finished run that was trained on
    warmup_epochs: int = Field(default=20, ge=0)
    cooldown_epochs: int = Field(default=10, ge=0)
    batch_size: int = Field(default=128, ge=1)
    accumulate: int = Field(default=1, ge=1)
    max_steps_per_epoch: int | None = Field(default=None, ge=1)
    optimizer: Literal["adamw", "adam", "amsgrad", "sgd"] = "adamw"
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    decay_at: tuple[Probability, ...] = (0.6, 0.8, 0.9)  # shares of the epochs after which `steps` lowers the rate
    decay_rate: float = Field(default=0.1, gt=0, lt=1)  # to this share of it
    lr: float = Field(default=5e-4, gt=0)
    warmup_lr: float = Field(default=1e-5, ge=0)
    min_lr: float = Field(default=1e-5, ge=0)
    weight_decay: float = Field(default=0.06, ge=0)
    decay_all: bool = False  # biases, normalisation and thresholds too
    precision: Literal["auto", "32", "16", "bf16"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=0, ge=0)
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)  # who draws curves of the run
    seed: int = Field(default=42, ge=0, lt=2**63)
    init_from: str | None = None  # weights to start from
    data_digest: str | None = None  # of the file of `data: arrays`; both digests are filled in by a run
    init_digest: str | None = None
    about: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _name_is_that_of_a_folder(cls, value: str) -> str:
        if value.startswith(".") or not value.isprintable() or {"/", "\\"} & set(value):
            raise ValueError("a run's folder is named after it: no slash, no dot in front, no control character")
        return value

    @field_validator("precision", mode="before")
    @classmethod
    def _precision_may_be_a_number(cls, value: Any) -> Any:
        return str(value)

    @field_validator("loggers", mode="before")
    @classmethod
    def _one_logger_needs_no_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("data")
    @classmethod
    def _data_is_known(cls, value: str) -> str:
        if value not in DATASETS:
            raise ValueError(f"unknown data {value!r}{nearest(value, DATASETS)}; known are {', '.join(DATASETS)}")
        return value

    @model_validator(mode="after")
    def _epochs_fit(self) -> "Recipe":
        problems, cures = list[str](), list[str]()
        if self.epochs == 0 and (self.cooldown_epochs or not (self.stages or self.init_from)):
            raise ValueError(
                "0 epochs train nothing: add stages, or --init-from, and set cooldown_epochs: 0; or train longer"
            )
        if self.warmup_epochs >= max(self.epochs, 1):
            problems.append(f"warmup_epochs ({self.warmup_epochs}) must be fewer than epochs ({self.epochs})")
            cures.append(f"--set warmup_epochs={max(self.epochs - 1, 0)}")
        if (warmup := getattr(self.policy, "warmup_epochs", 0)) > self.total_epochs:
            problems.append(f"policy.warmup_epochs ({warmup:g}) is longer than the training ({self.total_epochs})")
            cures.append(f"--set policy.warmup_epochs={self.total_epochs - 1}" if self.epochs else "--policy none")
        if problems:
            raise ValueError(f"{', and '.join(problems)}: add {' '.join(cures)}, or train longer")
        if list(self.extended_from) != sorted({*self.extended_from} - {self.epochs}) or self.epochs < max(
            self.extended_from, default=0
        ):
            raise ValueError("extended_from are ever larger numbers of epochs, all below `epochs`; a run writes them")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate ({self.accumulate}) must divide batch_size ({self.batch_size})")
        return self

    @model_validator(mode="after")
    def _steps_can_be_observed(self) -> "Recipe":
        if self.policy.keeps_steps and self.observe.steps and max(self.observe.steps) != self.model.time_steps:
            raise ValueError(
                f"a network trained with {self.policy.kind} has thresholds for {self.model.time_steps} time steps and "
                f"cannot be observed at {max(self.observe.steps)}; let observe.steps end at model.time_steps"
            )
        return self

    @model_validator(mode="after")
    def _network_has_the_neuron(self) -> "Recipe":
        if (neuron := self.model._aside.get("neuron")) is not None:  # pyright: ignore[reportPrivateUsage]
            having = [name for name, kind in MODELS.kinds.items() if "neuron" in kind.model_fields]
            raise ValueError(
                f"model.neuron: {neuron} is for {', '.join(having)}, not for {self.model.name}; "
                "choose one of them, or set model.neuron: lif"
            )
        return self

    @model_validator(mode="after")
    def _events_fit(self) -> "Recipe":
        require_events_fit(self)
        return self

    @model_validator(mode="after")
    def _subset_is_one(self) -> "Recipe":
        if self.subset and self.train_images is None and self.test_images is None:
            raise ValueError(
                "subset chooses among subsets of the images: set train_images or test_images, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _stages_fit(self) -> "Recipe":
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"stages: two are called {max(names, key=names.count)}; give each a name of its own")
        if self.balance is not None and not (self.stages or self.init_from):
            raise ValueError("balance needs trained weights: add stages, or --init-from")
        if self.balance is not None and getattr(self.model, "neuron", None) not in ("rate", "diet", "stdb"):
            raise ValueError(
                "balance sets the thresholds of model.neuron: rate, diet or stdb; choose one, or remove it"
            )
        stage_recipes(self)
        return self

    @model_serializer(mode="wrap")
    def _without_what_few_have(self, write: Any, info: SerializationInfo) -> dict[str, Any]:
        """The recipes of all other runs stay as they are."""
        unused = [name for name in ("init_from", *DIGESTS) if getattr(self, name) is None]
        if info.context != "whole":
            unused += ["loss"] if self.loss == _USUAL_LOSS else []
            unused += [name for name in _SELDOM if getattr(self, name) == type(self).model_fields[name].default]
        return {key: value for key, value in write(self).items() if key not in unused}

    @property
    def total_epochs(self) -> int:
        """Epochs of the schedule and of the cooldown."""
        return self.epochs + self.cooldown_epochs

    def updated(self, settings: Mapping[str, Any]) -> "Recipe":
        """The same with other values; keys are dotted (`model.depth`)."""
        given = self.model_dump(exclude={*DIGESTS}, context="given")
        return parse_recipe(merged(given, spelled_out(settings)), source=self.name)

    def pinned(self) -> "Recipe":
        """The same with the digests of its files as they are now."""
        digests = {name: read() for name, read in self._digests().items()}
        return self.model_copy(update=dict.fromkeys(DIGESTS) | digests)

    def all_fields(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """Every field, nested and ready for JSON, those that are seldom written and those of other kinds too."""
        kinds = {name: family.fields(getattr(self, name)) for name, family in FAMILIES.items()}
        return self.model_dump(mode="json", exclude=exclude, context="whole") | kinds

    def identity(self) -> dict[str, Any]:
        """Dotted key -> value of all that decides the result, machine matters left out; files count by content."""
        digests = self._digests()
        fields = self.all_fields(exclude={*FACTS, *ELSEWHERE, "name", *(set(DIGESTS) - digests.keys())})
        for name in digests.keys() - fields:
            with suppress(DataError, OSError):  # recipes are compared where their files are not, too
                fields[name] = digests[name]()
        return dict(flat(fields))

    def _digests(self) -> dict[str, Callable[[], str]]:
        """How to read the digest of each file whose content decides the result."""
        digests: dict[str, Callable[[], str]] = {}
        if self.data == "arrays":
            folder = None if self.data_dir is None else Path(self.data_dir).expanduser()
            digests["data_digest"] = lambda: arrays_digest(folder)
        if (start := self.init_from) is not None:
            digests["init_digest"] = lambda: file_digest(weights_file(start))
        return digests


def weights_file(path: str | Path) -> Path:
    """The file itself, or that of a finished run's folder."""
    path = Path(path)
    return path / "model.safetensors" if os.path.isdir(path) else path


def shipped_recipes() -> list[str]:
    """Names of the recipes in the package."""
    return shipped_names(SHIPPED)


def load_recipe(source: "str | Path | Mapping[str, Any] | Recipe", settings: Mapping[str, Any] | None = None) -> Recipe:
    """A shipped name, a YAML file, a mapping or a recipe, with dotted settings on top."""
    if isinstance(source, Recipe):
        return source.updated(settings) if settings else source
    chosen = spelled_out(settings or {})
    if isinstance(source, Mapping):
        return parse_recipe(merged(complete(source, SHIPPED), chosen))
    fields = {key: value for key, value in read_fields(source, SHIPPED).items() if key not in DIGESTS}
    return parse_recipe(merged(fields, chosen), source=str(source))


def load_written_recipe(path: Path) -> Recipe:
    """The recipe that a run wrote, with the digests of the files that it was trained from."""
    text, name, _ = read_text(path, SHIPPED, "recipe", RecipeError)
    return parse_recipe({"name": name} | parse_mapping(text, path, RIGHT, RecipeError), source=str(path))


def parse_recipe(fields: Mapping[str, Any], source: str = "the recipe") -> Recipe:
    """Check the fields; unknown keys and wrong types are errors that name the nearest right one."""
    given = {key: value for key, value in spelled_out(fields).items() if key != "applied"}
    kind_at = partial(_kind_at, given)
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        raise RecipeError(listed(source, [explain(problem, kind_at) for problem in error.errors()])) from None


def differences(a: Recipe, b: Recipe) -> list[tuple[str, Any, Any]]:
    """Dotted keys in which two recipes differ, with both values."""
    left, right = a.identity(), b.identity()
    return [(key, left.get(key), right.get(key)) for key in sorted(left | right) if left.get(key) != right.get(key)]


def _kind_at(given: Mapping[str, Any], path: list[str]) -> type[BaseModel]:
    kind: Any = Recipe
    inside = {name: family.shape(given.get(name)) for name, family in FAMILIES.items()}
    inside |= {"stages": StagePart, "balance": BalancePart}
    for part in path:
        kind = kind if part.isdigit() else inside.get(part) or kind.model_fields[part].annotation
    return kind
