"""ResNet-19, ours and the same network of SpikingJelly's layers."""

from dataclasses import dataclass

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn

from ..models import resnet19
from .contestants import random_data


@dataclass(frozen=True)
class ResNetSize:
    """A network and a batch."""

    width: float
    batch: int
    time_steps: int = 4
    image: int = 32

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}, T={self.time_steps}, {self.image} pixels"

    @property
    def network(self) -> str:
        """Its name, without the batch."""
        return f"ResNet-19 of width {self.width:g}"

    def data(self) -> tuple[Tensor, Tensor]:
        """Random images and labels."""
        return random_data(self.batch, self.image)

    def ours(self) -> nn.Module:
        """Our network."""
        torch.manual_seed(0)
        return resnet19(width=self.width, time_steps=self.time_steps, image_size=self.image)

    def theirs(self) -> nn.Module:
        """SpikingJelly has no ResNet-19: its layers in multi-step mode, as its own residual networks have them."""
        torch.manual_seed(0)
        return SpikingJellyResNet19(self.width, self.time_steps)


class SpikingJellyResNet19(nn.Module):
    """Images (B, 3, H, W) -> logits of every time step (T, B, 10)."""

    def __init__(self, width: float, time_steps: int) -> None:
        super().__init__()
        self.time_steps = time_steps
        stem, *widths, hidden = (round(width * channels) for channels in (64, 128, 256, 512, 256))
        self.stem = nn.Sequential(layer.Conv2d(3, stem, 3, padding=1, bias=False), layer.BatchNorm2d(stem), _lif())
        blocks: list[nn.Module] = []
        channels = stem
        for stage, (outputs, count) in enumerate(zip(widths, (3, 3, 2), strict=True)):
            for index in range(count):
                blocks.append(_Block(channels, outputs, stride=2 if stage and not index else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = layer.AdaptiveAvgPool2d((1, 1))
        self.hidden = nn.Sequential(layer.Linear(channels, hidden), _lif())
        self.head = layer.Linear(hidden, 10)
        functional.set_step_mode(self, "m")

    def forward(self, x: Tensor) -> Tensor:
        """The image is repeated at the input."""
        x = x.unsqueeze(0).repeat(self.time_steps, 1, 1, 1, 1)
        x = self.pool(self.blocks(self.stem(x))).flatten(2)
        return self.head(self.hidden(x))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = layer.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1, self.sn1 = layer.BatchNorm2d(outputs), _lif()
        self.conv2 = layer.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2, self.sn2 = layer.BatchNorm2d(outputs), _lif()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            short = layer.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(short, layer.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.sn1(self.bn1(self.conv1(x)))
        return self.sn2(self.bn2(self.conv2(y)) + self.shortcut(x))


def _lif() -> nn.Module:
    return neuron.LIFNode(tau=2.0, decay_input=False, surrogate_function=surrogate.Sigmoid(), detach_reset=True)
