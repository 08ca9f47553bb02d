"""Networks that a recipe can name; sizes of images and classes come from the data."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from .fields import blaming
from .parts import Family, Kind

if TYPE_CHECKING:
    from torch import nn


class ModelPart(Kind):
    """A network."""

    @property
    def is_spiking(self) -> bool:
        """Or an ANN, which is trained to be converted?"""
        return True


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
    attention_scale: float = Field(default=0.125, gt=0)

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


class QKFormerPart(ModelPart):
    """QKFormer in its CIFAR form; `dim` is the width of the last stage, `depth` counts the blocks of all three."""

    name: Literal["qkformer"] = "qkformer"
    depth: int = Field(default=4, ge=1)
    dim: int = Field(default=384, ge=8)
    stage_heads: int = Field(default=8, ge=1)  # of every stage
    time_steps: int = Field(default=4, ge=1)
    mlp_ratio: float = Field(default=4.0, gt=0)

    @model_validator(mode="after")
    def _stages_fit(self) -> "QKFormerPart":
        if self.depth < 3:
            raise ValueError(f"depth ({self.depth}) must be at least 3, a block for each stage")
        if self.dim % 8 or self.dim // 4 % self.stage_heads:
            raise ValueError(f"stage_heads ({self.stage_heads}) must divide a quarter, and 8 all, of dim ({self.dim})")
        return self

    @property
    def title(self) -> str:
        """Depth and width in the way its paper names them."""
        return f"QKFormer, HST-{self.depth}-{self.dim}"

    @blaming("model")
    def build(self, *, classes: int, size: int, channels: int) -> "nn.Module":
        """The network for square images of this size."""
        from ..models import qkformer

        sizes = self.model_dump(exclude={"name", "stage_heads"})
        return qkformer(**sizes, heads=self.stage_heads, num_classes=classes, image_size=size, in_channels=channels)


class SpikingResformerPart(ModelPart):
    """SpikingResformer of a published size, with heads of any width."""

    name: Literal["spikingresformer"] = "spikingresformer"
    size: Literal["ti", "s", "m", "l"] = "ti"
    head_width: int = Field(default=64, ge=1)
    time_steps: int = Field(default=4, ge=1)
    form: Literal["cifar", "imagenet"] = "cifar"

    @property
    def title(self) -> str:
        """The name of the size in its paper, and the width of a head where it is another."""
        narrow = "" if self.head_width == 64 else f", heads of {self.head_width}"
        return f"SpikingResformer-{self.size.capitalize()}{narrow}"

    @blaming("model")
    def build(self, *, classes: int, size: int, channels: int) -> "nn.Module":
        """The network for square images of this size."""
        from ..models import spikingresformer

        options = self.model_dump(exclude={"name"})
        return spikingresformer(**options, num_classes=classes, image_size=size, in_channels=channels)


class ConvolutionalPart(ModelPart):
    """A convolutional network of the systems that spiking transformers are compared with.

    `neuron` is whose neuron it fires with; "relu" and "qcfs" make it an ANN, which sees an image once, whatever T is.
    """

    network: ClassVar[str]
    time_steps: int = Field(default=4, ge=1)
    width: float = Field(default=1.0, gt=0)
    neuron: Literal["lif", "tdbn", "tet", "diet", "stdb", "rate", "half_rate", "relu", "qcfs"] = "lif"
    norm: Literal["own", "batch", "threshold", "none"] = "own"
    levels: int = Field(default=4, ge=1)  # of qcfs
    encoding: Literal["analog", "poisson"] = "analog"

    @property
    def is_spiking(self) -> bool:
        """Or an ANN?"""
        return self.neuron not in ("relu", "qcfs")

    @property
    def title(self) -> str:
        """The name that papers have for it, and the width where it is another."""
        return self.network if self.width == 1 else f"{self.network} x{self.width:g}"

    @blaming("model")
    def build(self, *, classes: int, size: int, channels: int) -> "nn.Module":
        """The network for square images of this size."""
        from .. import models
        from ..conversion.qcfs import QCFS
        from ..encoding import SignedPoisson
        from ..models.systems import NEURONS, Neuron, norm_of

        neuron = NEURONS.get(self.neuron) or Neuron(lambda: QCFS(self.levels), is_spiking=False)
        options: dict[str, Any] = {"activation": neuron.make, "width": self.width}
        options |= self.model_dump(include={"dropout"})
        if self.norm != "own":
            options["norm"] = norm_of(self.norm, neuron)
        if self.encoding == "poisson":
            options["encoding"] = SignedPoisson()
        sizes = {"num_classes": classes, "image_size": size, "in_channels": channels}
        steps = self.time_steps if self.is_spiking else 1
        return getattr(models, self.model_dump()["name"])(time_steps=steps, **sizes, **options)

    @model_validator(mode="after")
    def _fits_together(self) -> "ConvolutionalPart":
        if self.encoding == "poisson" and not self.is_spiking:
            raise ValueError(f"an ANN ({self.neuron}) reads images as they are; set encoding: analog")
        return self


class ResNet19Part(ConvolutionalPart):
    """ResNet-19 of STBP-tdBN and TET."""

    network: ClassVar[str] = "ResNet-19"
    name: Literal["resnet19"] = "resnet19"


class ResNet20Part(ConvolutionalPart):
    """The CIFAR form with 16, 32 and 64 channels."""

    network: ClassVar[str] = "ResNet-20"
    name: Literal["resnet20"] = "resnet20"


class WideResNet20Part(ConvolutionalPart):
    """What Diet-SNN calls ResNet-20."""

    network: ClassVar[str] = "ResNet-20 of Diet-SNN"
    name: Literal["resnet20_wide"] = "resnet20_wide"


class VGG11Part(ConvolutionalPart):
    """VGG-11 of Hybrid Training."""

    network: ClassVar[str] = "VGG-11"
    name: Literal["vgg11"] = "vgg11"
    dropout: float = Field(default=0.0, ge=0, lt=1)


class VGG16Part(ConvolutionalPart):
    """Thirteen convolutions and hidden layers of 4096."""

    network: ClassVar[str] = "VGG-16"
    name: Literal["vgg16"] = "vgg16"
    dropout: float = Field(default=0.0, ge=0, lt=1)


AnyModel = (
    SpikformerPart
    | QKFormerPart
    | SpikingResformerPart
    | ResNet19Part
    | ResNet20Part
    | WideResNet20Part
    | VGG11Part
    | VGG16Part
)
MODELS = Family(AnyModel, default="spikformer", tag="name")
