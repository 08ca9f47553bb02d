"""Residual networks of the systems that spiking transformers are compared with.

T time steps, B batch, C channels. The shortcut is added before the second neuron of a block.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from ..kernels.bits import spikes_as_bits
from ..layers import NormLIF, NormMap, in_reals
from .convolution import LIF, Activation, Norm, batch_norm, channels_last, conv, keep_size, no_norm, scaled
from .network import SpikingNetwork


class BasicBlock(nn.Module):
    """Two convolutions, and a shortcut by a convolution of size 1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation, norm: Norm) -> None:
        super().__init__()
        self.first = NormLIF(conv(inputs, outputs, stride=stride), norm(outputs), activation())
        self.second = NormLIF(conv(outputs, outputs), norm(outputs, branches=2), activation())
        changes = stride > 1 or inputs != outputs
        short = NormMap(conv(inputs, outputs, 1, stride), norm(outputs, branches=2)) if changes else nn.Identity()
        self.shortcut = short

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, H, W) -> (T, B, C', H', W')."""
        return self.second(self.first(x), self.shortcut(x))


class ResNet(SpikingNetwork):
    """Stem, stages of basic blocks (the second and later ones halve the image), mean over pixels, head.

    `stem` and `widths` are channels, `blocks` numbers of blocks per stage; `hidden` puts a spiking layer before the
    head, `pooled_stem` halves the image after the stem, `flat` gives the head all pixels in place of their mean.
    `activation` makes each neuron: another one makes another network of
    the same weights, such as the ANN that is converted.

    Args:
        stem: channels of the first convolutions.
        widths: channels of each stage.
        blocks: of each stage.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        in_channels: channels of the images or events.
        width: times the published numbers of channels.
        hidden: width of a spiking layer before the head.
        pooled_stem: halve the image after the stem.
        flat: the head sees all pixels.
        activation: makes every neuron, or an activation of the ANN of the same weights.
        norm: makes the normalisation after a synapse.
        encoding: makes spikes of images; without it every time step sees the image itself.
    """

    def __init__(
        self,
        stem: Sequence[int],
        widths: Sequence[int],
        blocks: Sequence[int],
        *,
        time_steps: int = 4,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        width: float = 1.0,
        hidden: int | None = None,
        pooled_stem: bool = False,
        flat: bool = False,
        activation: Activation = LIF,
        norm: Norm = batch_norm,
        encoding: nn.Module | None = None,
    ) -> None:
        sizes: dict[str, Any] = {"time_steps": time_steps, "num_classes": num_classes, "image_size": image_size}
        super().__init__(**sizes, in_channels=in_channels, encoding=encoding)
        stem, widths = scaled(stem, width), scaled(widths, width)
        first = pairwise([in_channels, *stem])
        self.stem = nn.ModuleList(NormLIF(conv(a, b), norm(b), activation()) for a, b in first)
        self.pool = nn.AvgPool2d(2) if pooled_stem else nn.Identity()
        self.stages, channels = nn.ModuleList(), stem[-1]
        for stage, (outputs, count) in enumerate(zip(widths, blocks, strict=True)):
            layers: list[nn.Module] = []
            for index in range(count):
                stride = 2 if stage and not index else 1
                layers.append(BasicBlock(channels, outputs, stride, activation, norm))
                channels = outputs
            self.stages.append(nn.Sequential(*layers))
        halvings = len(widths) - 1 + pooled_stem
        if not image_size >> halvings:
            raise ValueError(f"an image of {image_size} pixels is too small to be halved {halvings} times")
        channels *= (image_size >> halvings) ** 2 if flat else 1
        self.flat, self.hidden, self.lif = flat, None, None
        if hidden is not None:
            (features,) = scaled([hidden], width)
            self.hidden, self.lif, channels = nn.Linear(channels, features), activation(), features
        self.num_features = channels
        self.head = nn.Linear(channels, num_classes)
        if norm is no_norm:
            keep_size(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Of the last stage, or the spikes of the hidden layer, (T, B, C)."""
        x = channels_last(self.start(x))
        with spikes_as_bits(x):
            stem: list[Any] = list(self.stem)
            for index, unit in enumerate(stem):
                x = unit(x) if index or x.ndim == 5 else unit.forward_static(x, self.time_steps)
                x = channels_last(x)  # again, as one channel alone has no order to keep
            x = self.pool(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            for stage in self.stages:
                x = stage(x)
            x = in_reals(x)
            x = x.flatten(2) if self.flat else x.mean((3, 4))
            return x if self.hidden is None or self.lif is None else self.lif(self.hidden(x))


def resnet19(**options: Any) -> ResNet:
    """ResNet-19 of STBP-tdBN and TET: 12,630,858 parameters for 10 classes.

    Args:
        **options: of `ResNet`: time_steps, num_classes, image_size, in_channels, width, activation, norm, encoding.
    """
    return ResNet([64], [128, 256, 512], [3, 3, 2], hidden=256, **options)


def resnet20(**options: Any) -> ResNet:
    """The CIFAR form with 16, 32 and 64 channels: 272,474 parameters for 10 classes.

    Args:
        **options: of `ResNet`: time_steps, num_classes, image_size, in_channels, width, activation, norm, encoding.
    """
    return ResNet([16], [16, 32, 64], [3, 3, 3], **options)


def resnet20_wide(**options: Any) -> ResNet:
    """What Diet-SNN calls ResNet-20: three convolutions of 64 channels and [2, 2, 2, 2] blocks, no normalisation.

    Args:
        **options: of `ResNet`: time_steps, num_classes, image_size, in_channels, width, activation, norm, encoding.
    """
    form: dict[str, Any] = {"pooled_stem": True, "flat": True, "norm": no_norm}
    return ResNet([64, 64, 64], [64, 128, 256, 512], [2, 2, 2, 2], **(form | options))
