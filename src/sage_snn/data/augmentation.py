"""What happens to training images, as data that a recipe can hold, and the transforms built from it with timm."""

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .dataset import Data, DataError
from .erasing import eraser
from .mixing import mix
from .transform import Fit, Transform

__all__ = ["OPERATIONS", "Augmentation", "describe", "mix", "test_transform", "train_transform"]

Probability = Annotated[float, Field(ge=0, le=1)]

_LEVELS = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
# timm's names, written out so that a recipe can be checked without importing timm.
OPERATIONS = frozenset(
    {"AutoContrast", "Equalize", "Invert", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel"}
    | {"TranslateYRel", "PosterizeOriginal", "SolarizeAdd", "Desaturate", "GaussianBlur", "GaussianBlurRand"}
    | {name + ending for name in _LEVELS for ending in ("", "Increasing")}
)
_COLOUR = {"Color", "ColorIncreasing", "Desaturate"}  # these leave a grey image as it is


class Augmentation(BaseModel):
    """Augmentation of training images; the defaults change nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    flip: Probability = 0.0  # left to right
    shift: int = Field(0, ge=0)  # pixels, each way; the border is filled by reflection
    rand_augment: str | None = None  # timm's notation, such as rand-m9-n1-mstd0.4-inc1
    operations: tuple[str, ...] | None = None  # what rand_augment draws from; None: timm's list
    crop_scale: tuple[float, float] | None = None  # area of a random resized crop; None: no crop
    erasing: Probability = 0.0
    interpolation: Literal["nearest", "bilinear", "bicubic", "random"] = "bicubic"
    mixup: float = Field(0.0, ge=0)  # alpha of the Beta distribution
    cutmix: float = Field(0.0, ge=0)
    mixup_probability: Probability = 1.0  # of a batch, for mixup and cutmix
    mixup_off_epoch: int | None = Field(None, ge=0)  # the first epoch without; None: always on
    smoothing: float = Field(0.0, ge=0, lt=1)

    @field_validator("rand_augment")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        # timm skips a part without a number and stops at an unknown one with a bare assertion.
        part = r"(?:(?:m|n|mmax|inc)\d+|(?:p|mstd)\d+(?:\.\d+)?|t(?:weights|3a|3aw))"
        if value is not None and not re.fullmatch(rf"rand(?:-{part})*", value):
            raise ValueError(f"{value!r} is not timm's notation; write it like rand-m9-n1-mstd0.4-inc1")
        return value

    @field_validator("operations")
    @classmethod
    def _known(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if name not in OPERATIONS:
                near = difflib.get_close_matches(name, OPERATIONS, 1, cutoff=0)
                raise ValueError(f"{name!r} is no operation of RandAugment; did you mean {near[0]}?")
        if value == ():
            raise ValueError("name at least one operation, or leave operations out for timm's list")
        return value

    @field_validator("crop_scale")
    @classmethod
    def _shares(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 < value[0] <= value[1] <= 1:
            raise ValueError(f"crop_scale is the smallest and the largest share of the area in (0, 1], not {value}")
        return value

    @model_validator(mode="after")
    def _without_contradiction(self) -> "Augmentation":
        if self.operations is not None and self.rand_augment is None:
            raise ValueError("operations are those of rand_augment; set it, too, such as rand-m9-n1-mstd0.4-inc1")
        if self.operations is not None and "-t" in (self.rand_augment or ""):
            raise ValueError("rand_augment names a list of operations (-t...) and operations another; keep one")
        return self


def train_transform(augmentation: Augmentation, data: Data) -> Transform:
    """Picture -> normalised tensor (C, size, size), in the order of timm's create_transform; mix and erase later."""
    from timm.data.transforms import RandomResizedCropAndInterpolation
    from torchvision.transforms import RandomCrop, RandomHorizontalFlip

    fit: Any = _fit(data.size, data.size, augmentation.interpolation)
    if augmentation.crop_scale:
        fit = RandomResizedCropAndInterpolation(
            data.size, scale=augmentation.crop_scale, interpolation=augmentation.interpolation
        )
    steps: list[Any] = []
    if augmentation.shift:
        if augmentation.shift >= data.size:
            raise DataError(f"shift is {augmentation.shift} pixels, the images have {data.size}; shift them by less")
        steps.append(RandomCrop(data.size, padding=augmentation.shift, padding_mode="reflect"))
    if augmentation.flip:
        steps.append(RandomHorizontalFlip(augmentation.flip))
    if augmentation.rand_augment:
        steps.append(_rand_augment(augmentation, data))
    return Transform(fit, tuple(steps), data.mean, data.std)


def test_transform(data: Data) -> Transform:
    """The same for evaluation: of photographs in files at 224 px and more the middle 0.875, else the whole image."""
    kept = 0.875 if data.size >= 224 and not hasattr(data.test.pixels, "shape") else 1.0
    return Transform(_fit(data.size, int(data.size / kept), "bicubic"), (), data.mean, data.std)


def describe(augmentation: Augmentation, data: Data) -> list[str]:
    """What is really applied to the training images, read from the transform as it was built."""
    transform = train_transform(augmentation, data)
    lines = [f"resize to {data.size} px where needed" if isinstance(transform.fit, Fit) else repr(transform.fit)]
    for step in transform.steps:
        lines.append(_in_words(step, augmentation))
    lines.append(f"normalise by mean {data.mean}, std {data.std}")
    until = "" if augmentation.mixup_off_epoch is None else f" before epoch {augmentation.mixup_off_epoch}"
    for name in ("mixup", "cutmix"):
        if alpha := getattr(augmentation, name):
            lines.append(f"{name} {alpha} with probability {augmentation.mixup_probability}{until}")
    lines += [repr(eraser(augmentation.erasing))] if augmentation.erasing else []
    return lines + [f"label smoothing {augmentation.smoothing}"] * (augmentation.smoothing > 0)


def _in_words(step: Any, augmentation: Augmentation) -> str:
    kind = type(step).__name__
    if kind == "RandAugment":
        names, chance = ", ".join(operation.name for operation in step.ops), step.ops[0].prob
        return f"RandAugment {augmentation.rand_augment}: {step.num_layers} of {names}, each with probability {chance}"
    if kind == "RandomCrop":
        return f"shift by up to {augmentation.shift} px, borders reflected"
    return repr(step)


def _fit(size: int, scaled: int, interpolation: str) -> Fit:
    from timm.data.transforms import str_to_interp_mode
    from torchvision.transforms import CenterCrop, Compose, Resize

    mode: Any = str_to_interp_mode("bicubic" if interpolation == "random" else interpolation)
    return Fit(size, Compose([Resize(scaled, mode), CenterCrop(size)]), exact=scaled == size)


def _rand_augment(augmentation: Augmentation, data: Data) -> Any:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.transforms import str_to_pil_interp

    colour = tuple(min(255, round(255 * x)) for x in data.mean)
    hparams: dict[str, Any] = {"translate_const": int(data.size * 0.45), "img_mean": colour}
    if data.channels == 1:
        hparams["img_mean"] = colour[0]  # Pillow fills a grey image with a number
    if augmentation.interpolation != "random":
        hparams["interpolation"] = str_to_pil_interp(augmentation.interpolation)
    operations = None if augmentation.operations is None else list(augmentation.operations)
    built = rand_augment_transform(augmentation.rand_augment or "", hparams, operations)
    names = [operation.name for operation in built.ops]
    if data.channels == 1 and _COLOUR.intersection(names):
        useful = [name for name in names if name not in _COLOUR]
        raise DataError(
            f"{data.name} has grey images, on which {', '.join(sorted(_COLOUR.intersection(names)))} of RandAugment "
            f"would do nothing; name the operations: operations={useful}"
        )
    return built
