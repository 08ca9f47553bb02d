"""Networks that a recipe can name; sizes of images and classes come from the data."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from .fields import blaming
from .parts import Family, Kind

if TYPE_CHECKING:
    from torch import nn


class ModelPart(Kind):
    """A network."""


class SpikformerPart(ModelPart):
    """The official Spikformer of any size."""

    name: Literal["spikformer"] = "spikformer"
    depth: int = Field(default=4, ge=1)
    dim: int = Field(default=384, ge=8)
    heads: int = Field(default=12, ge=1)
    time_steps: int = Field(default=4, ge=1)
    patch_size: Literal[1, 2, 4, 8, 16] = 4
    mlp_ratio: float = Field(default=4.0, gt=0)
    form: Literal["cifar", "imagenet"] = "cifar"

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "SpikformerPart":
        if self.dim % self.heads or self.dim % 8:
            raise ValueError(f"heads ({self.heads}) and 8 must divide dim ({self.dim})")
        return self

    @property
    def title(self) -> str:
        """Depth and width in the way papers name them."""
        return f"Spikformer-{self.depth}-{self.dim}"

    @blaming("model")
    def build(self, *, classes: int, size: int, channels: int) -> "nn.Module":
        """The network for square images of this size."""
        from ..models import spikformer

        sizes = self.model_dump(exclude={"name"})
        return spikformer(**sizes, num_classes=classes, image_size=size, in_channels=channels)


AnyModel = SpikformerPart
MODELS = Family(AnyModel, default="spikformer", tag="name")
