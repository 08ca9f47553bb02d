"""What happens to training images, as data that a recipe can hold."""

import difflib
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Probability = Annotated[float, Field(ge=0, le=1)]

_LEVELS = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
# timm's names, written out so that a recipe can be checked without importing timm.
OPERATIONS = frozenset(
    {"AutoContrast", "Equalize", "Invert", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel"}
    | {"TranslateYRel", "PosterizeOriginal", "SolarizeAdd", "Desaturate", "GaussianBlur", "GaussianBlurRand"}
    | {name + ending for name in _LEVELS for ending in ("", "Increasing")}
)
EventOperation = Literal["Identity", "ShearX", "TranslateX", "TranslateY", "Rotate", "Cutout"]
_OF_IMAGES = ("shift", "rand_augment", "operations", "auto_augment", "cutout", "crop_scale", "erasing")


class Augmentation(BaseModel):
    """Augmentation of training images or events; the defaults change nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    flip: Probability = 0.0  # left to right
    shift: int = Field(0, ge=0)  # pixels, each way; the border is filled by reflection
    rand_augment: str | None = None  # timm's notation, such as rand-m9-n1-mstd0.4-inc1
    operations: tuple[str, ...] | None = None  # what rand_augment draws from; None: timm's list
    auto_augment: bool = False  # torchvision's, with the policy that was searched on CIFAR-10
    cutout: int = Field(0, ge=0)  # pixels; the side of a square of the mean colour around a random pixel
    crop_scale: tuple[float, float] | None = None  # area of a random resized crop; None: no crop
    erasing: Probability = 0.0
    interpolation: Literal["nearest", "bilinear", "bicubic", "random"] = "bicubic"
    mixup: float = Field(0.0, ge=0)  # alpha of the Beta distribution
    cutmix: float = Field(0.0, ge=0)
    mixup_probability: Probability = 1.0  # of a batch, for mixup and cutmix
    mixup_off_epoch: int | None = Field(None, ge=0)  # the first epoch without; None: always on
    smoothing: float = Field(0.0, ge=0, lt=1)
    event_operations: tuple[EventOperation, ...] = ()  # one of them for all frames of a recording of events

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
        if self.auto_augment and self.rand_augment is not None:
            raise ValueError("auto_augment and rand_augment both choose the operations; keep one")
        if self.operations is not None and self.rand_augment is None:
            raise ValueError("operations are those of rand_augment; set it, too, such as rand-m9-n1-mstd0.4-inc1")
        if self.operations is not None and "-t" in (self.rand_augment or ""):
            raise ValueError("rand_augment names a list of operations (-t...) and operations another; keep one")
        return self

    def require_for(self, *, events: bool) -> None:
        """A ValueError where something belongs to images and the data is events, or the other way round."""
        wrong = _OF_IMAGES if events else ("event_operations",)
        for name in wrong:
            if getattr(self, name) != type(self).model_fields[name].default:
                cure = "flip, event_operations, mixup, cutmix and smoothing" if events else "rand_augment"
                there, here = ("images", "events") if events else ("events", "images")
                raise ValueError(
                    f"augmentation.{name} is for {there}, and the data is {here}; remove it, or use {cure}"
                )
