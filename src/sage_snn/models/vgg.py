"""Chains of convolutions of the systems that spiking transformers are compared with (after Simonyan and Zisserman).

T time steps, B batch, C channels.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..kernels.bits import spikes_as_bits
from ..layers import NormLIF, SpikeLinear
from .convolution import LIF, Activation, Norm, batch_norm, channels_last, conv, keep_size, no_norm, scaled
from .network import SpikingNetwork

Layer = int | Literal["pool"]


class VGG(SpikingNetwork):
    """Convolutions and average pooling as `layers` say, two hidden spiking layers, head.

    `activation` makes each neuron: another one makes another network of the same weights, such as the ANN that is
    converted. `dropout` acts before the hidden layers, with one mask for all time steps of a batch.

    Args:
        layers: channels of each convolution, and where it pools.
        hidden: width of the two hidden layers.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        in_channels: channels of the images or events.
        width: times the published numbers of channels.
        dropout: before the hidden layers.
        activation: makes every neuron, or an activation of the ANN of the same weights.
        norm: makes the normalisation after a synapse.
        encoding: makes spikes of images; without it every time step sees the image itself.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        hidden: int,
        *,
        time_steps: int = 4,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        width: float = 1.0,
        dropout: float = 0.0,
        activation: Activation = LIF,
        norm: Norm = batch_norm,
        encoding: nn.Module | None = None,
    ) -> None:
        sizes: dict[str, Any] = {"time_steps": time_steps, "num_classes": num_classes, "image_size": image_size}
        super().__init__(**sizes, in_channels=in_channels, encoding=encoding)
        self.layers, channels, side = nn.ModuleList(), in_channels, image_size
        for layer in layers:
            if layer == "pool":
                self.layers.append(nn.AvgPool2d(2))
                side //= 2
            else:
                (outputs,) = scaled([layer], width)
                self.layers.append(NormLIF(conv(channels, outputs), norm(outputs), activation()))
                channels = outputs
        if side < 1:
            raise ValueError(f"an image of {image_size} pixels is too small for {list(layers).count('pool')} poolings")
        (features,) = scaled([hidden], width)
        self.first, self.first_lif = SpikeLinear(channels * side**2, features), activation()
        self.second, self.second_lif = SpikeLinear(features, features), activation()
        self.dropout, self.num_features = dropout, features
        self.head = nn.Linear(features, num_classes)
        if norm is no_norm:
            keep_size(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Spikes of the second hidden layer, (T, B, C)."""
        x = channels_last(self.start(x))
        with spikes_as_bits(x):
            for index, layer in enumerate(self.layers):
                if isinstance(layer, nn.AvgPool2d):
                    x = layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
                else:
                    unit: Any = layer
                    x = unit(x) if index or x.ndim == 5 else unit.forward_static(x, self.time_steps)
                    x = channels_last(x)  # again, as one channel alone has no order to keep
            x = self.first_lif(self.first(self._drop(x.flatten(2))))
            return self.second_lif(self.second(self._drop(x)))

    def _drop(self, x: Tensor) -> Tensor:
        if not self.dropout or not self.training:
            return x
        return x * nn.functional.dropout(torch.ones_like(x[0]), self.dropout)


_VGG11: list[Layer] = [64, "pool", 128, 256, 256, "pool", 512, 512, 512, "pool", 512, 512]
_VGG16: list[Layer] = [
    64,
    64,
    "pool",
    128,
    128,
    "pool",
    256,
    256,
    256,
    "pool",
    512,
    512,
    512,
    "pool",
    512,
    512,
    512,
    "pool",
]


def vgg11(**options: Any) -> VGG:
    """As Hybrid Training trains it: nine convolutions, hidden layers of 1024, no normalisation; 21 M parameters.

    Args:
        **options: of `VGG`: dropout, time_steps, num_classes, image_size, in_channels, width, activation, norm,
            encoding.
    """
    return VGG(_VGG11, 1024, **(dict[str, Any](norm=no_norm) | options))


def vgg16(**options: Any) -> VGG:
    """Thirteen convolutions, hidden layers of 4096: 33.6 M parameters for 10 classes.

    Args:
        **options: of `VGG`: dropout, time_steps, num_classes, image_size, in_channels, width, activation, norm,
            encoding.
    """
    return VGG(_VGG16, 4096, **options)
