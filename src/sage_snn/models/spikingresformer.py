"""SpikingResformer (Shi et al., CVPR 2024): stages like a ResNet's, and attention between two scales of an image.

T time steps, B batch, C channels, H heads, N pixels, M patches, K head width. Between layers run real numbers, from
which every layer fires first (membrane shortcuts).
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from spikingjelly.activation_based import surrogate
from torch import Tensor, nn

from ..kernels.bits import spikes_as_bits
from ..layers import NormLIF, NormMap, SpikePool, StatelessLIF
from .convolution import channels_last, conv
from .network import SpikingNetwork
from .spikformer import Form, Neuron, TransformerBlock

Size = Literal["ti", "s", "m", "l"]
HEADS: dict[str, tuple[int, ...]] = {"ti": (1, 3, 6), "s": (1, 4, 8), "m": (1, 6, 12), "l": (2, 8, 16)}
PATCHES = (4, 2, 1)  # pixels that a key stands for, in each direction, by stage


def _map(inputs: int, outputs: int, size: int = 1, stride: int = 1) -> NormMap:
    return NormMap(conv(inputs, outputs, size, stride), nn.BatchNorm2d(outputs))


class FiringProduct(nn.Module):
    """Spikes times real numbers, scaled by how often the spikes come, and fired.

    A sum over J products with spikes of a rate r is divided by sqrt(r J), with each head's own rate: an average over
    training in which the last pass has the weight 1 - `momentum`.
    """

    rate: Tensor

    def __init__(self, heads: int, lif: Neuron, momentum: float = 0.999) -> None:
        super().__init__()
        self.momentum, self.lif = momentum, lif()
        self.register_buffer("rate", torch.zeros(heads))

    def forward(self, spikes: Tensor, values: Tensor) -> Tensor:
        """Spikes (T, B, H, N, J) and values (T, B, H, J, P) -> spikes (T, B, H, N, P)."""
        if self.training:
            self._follow(spikes.detach())
        # Where nothing ever fired the product is 0, whatever its scale; with a rate of 0 it would be 0 times infinity.
        rate = torch.where(self.rate > 0, self.rate, 1)
        scale = (rate * spikes.shape[-1]).rsqrt().view(-1, 1, 1)
        return self.lif((spikes @ values) * scale)

    @torch.no_grad()
    def _follow(self, spikes: Tensor) -> None:
        seen = spikes.mean((0, 1, 3, 4), dtype=self.rate.dtype)
        before = torch.where((self.rate == 0).all(), seen, self.rate)  # the first pass is the first average
        self.rate.copy_(before * self.momentum + seen * (1 - self.momentum))


class DualAttention(nn.Module):
    """Dual spike self-attention: every pixel's spikes ask patches, whose keys and values are real numbers."""

    def __init__(self, heads: int, head_width: int, patch: int, lif: Neuron) -> None:
        super().__init__()
        dim = heads * head_width
        self.heads = heads
        self.query = lif()
        self.key_value = NormMap(nn.Conv2d(dim, 2 * dim, patch, stride=patch, bias=False), nn.BatchNorm2d(2 * dim))
        self.map, self.mixed = FiringProduct(heads, lif), FiringProduct(heads, lif)
        self.projection = _map(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, height, width) -> (T, B, C, height, width)."""
        spikes = self.query(x)
        q, (k, v) = self._tokens(spikes), self._tokens(self.key_value(spikes)).chunk(2, dim=-1)
        mixed = self.mixed(self.map(q, k.transpose(-1, -2)), v)
        # Channels of all heads together, last in memory.
        return self.projection(mixed.transpose(2, 3).flatten(3).transpose(2, 3).unflatten(3, x.shape[3:]))

    def _tokens(self, x: Tensor) -> Tensor:
        """(T, B, C, height, width) -> (T, B, H, N, C / H)."""
        return x.flatten(3).unflatten(2, (self.heads, -1)).transpose(-1, -2).contiguous()


class GroupwiseMLP(nn.Module):
    """Group-wise spiking feed-forward: four times the width, there a convolution in groups with its own shortcut."""

    def __init__(self, dim: int, group: int, lif: Neuron) -> None:
        super().__init__()
        hidden = 4 * dim
        mix = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden // group, bias=False)
        self.up = nn.Sequential(lif(), _map(dim, hidden))
        self.inner = lif()
        self.mix = NormLIF(mix, nn.BatchNorm2d(hidden), lif())
        self.down = _map(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, height, width) -> (T, B, C, height, width)."""
        up = self.up(x)
        return self.down(self.mix(self.inner(up), up))


def _stage(heads: int, head_width: int, depth: int, patch: int, lif: Neuron) -> nn.Sequential:
    blocks = [
        TransformerBlock(
            DualAttention(heads, head_width, patch, lif), GroupwiseMLP(heads * head_width, head_width, lif)
        )
        for _ in range(depth)
    ]
    return nn.Sequential(*blocks)


class SpikingResformer(SpikingNetwork):
    """Images (B, C, H, W) or events (T, B, C, H, W) -> logits (B, classes), averaged over time.

    A stage for each of `heads`, of so many heads; `form` "cifar" starts with a convolution at full size, "imagenet"
    with one and a pooling that leave a quarter of the side. `head_width` is the size of the groups as well.

    Args:
        heads: of each stage.
        depths: blocks of each stage.
        head_width: channels of a head, and of a group.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        in_channels: channels of the images or events.
        form: "cifar" or "imagenet".
        neuron: makes every spiking node; SpikingJelly's `LIFNode` gives the same network with nodes that need
            `reset_net`.
    """

    def __init__(
        self,
        heads: Sequence[int] = (1, 3, 6),
        depths: Sequence[int] = (1, 2, 3),
        head_width: int = 64,
        time_steps: int = 4,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        form: Form = "cifar",
        neuron: Neuron = StatelessLIF,
    ) -> None:
        super().__init__(time_steps=time_steps, num_classes=num_classes, image_size=image_size, in_channels=in_channels)
        counts = {"head_width": head_width, "time_steps": time_steps, "num_classes": num_classes}
        _check_sizes(heads, depths, image_size, form, counts | {"in_channels": in_channels})
        lif = partial(_atan, neuron)
        dims = [count * head_width for count in heads]
        is_large = form == "imagenet"
        self.form, self.num_features = form, dims[-1]
        self.stem = _map(in_channels, dims[0], 7, 2) if is_large else _map(in_channels, dims[0], 3)
        self.pool = SpikePool() if is_large else nn.Identity()
        self.downsamplings = nn.ModuleList(nn.Sequential(lif(), _map(a, b, 3, 2)) for a, b in pairwise(dims))
        stages = zip(heads, depths, PATCHES, strict=True)
        self.stages = nn.ModuleList(_stage(count, head_width, depth, patch, lif) for count, depth, patch in stages)
        self.head = nn.Linear(dims[-1], num_classes, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)

    def forward_features(self, x: Tensor) -> Tensor:
        """Mean over pixels after the last block, (T, B, C)."""
        x = channels_last(self.start(x))
        with spikes_as_bits(x):
            x = channels_last(self.stem(x) if x.ndim == 5 else self.stem.forward_static(x, self.time_steps))
            x = self.pool(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            for index, stage in enumerate(self.stages):
                x = stage(self.downsamplings[index - 1](x) if index else x)
        return x.mean((3, 4))


def spikingresformer(size: Size = "ti", form: Form = "cifar", **options: Any) -> SpikingResformer:
    """SpikingResformer of a published size: "ti", "s", "m" or "l"; as it stands the network for CIFAR.

    Further options: `heads` and `depths` by stage, `head_width`, `time_steps`, `num_classes`, `image_size`,
    `in_channels`, `neuron`.

    Args:
        size: "ti", "s", "m" or "l".
        form: "cifar" or "imagenet".
        **options: of `SpikingResformer`.
    """
    if size not in HEADS:
        raise ValueError(f"size must be one of {', '.join(HEADS)}, not {size!r}")
    published: dict[str, Any] = {"heads": HEADS[size], "form": form}
    published |= {"image_size": 224, "num_classes": 1000} if form == "imagenet" else {}
    return SpikingResformer(**(published | options))


def _atan(neuron: Neuron, **options: Any) -> nn.Module:
    """A node with a surrogate object of its own."""
    return neuron(tau=2.0, detach_reset=True, step_mode="m", surrogate_function=surrogate.ATan(), **options)


def _check_sizes(
    heads: Sequence[int], depths: Sequence[int], image_size: int, form: str, counts: dict[str, int]
) -> None:
    if not len(heads) == len(depths) == len(PATCHES):
        raise ValueError(f"heads and depths need a number for each of {len(PATCHES)} stages, not {heads} and {depths}")
    stages = {"heads of every stage": min(heads), "depths of every stage": min(depths)}
    for name, value in (stages | counts).items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if form not in ("cifar", "imagenet"):
        raise ValueError(f"form must be 'cifar' or 'imagenet', not {form!r}")
    step = 16 if form == "imagenet" else 4  # halved between stages, and after the stem; and patches of 4 pixels fit
    if image_size < step or image_size % step:
        raise ValueError(f"image_size must be a multiple of {step} in the {form} form, not {image_size}")
