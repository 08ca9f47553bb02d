"""The official Spikformer (Zhou et al., ICLR 2023), CIFAR and ImageNet forms, starting every forward pass from rest.

T time steps, B batch, C channels, H heads, N tokens, K head width. Between blocks: (T, B, C, N). With the kernels
channels lie last in memory all the way (as in torch.channels_last), which convolutions like best and makes of every
token-wise map one matrix product; without them, on a CPU, memory is in the order of the axes.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from ..kernels.bits import spikes_as_bits
from ..kernels.mix import mix
from ..layers import NormLIF, SpikeConv, SpikePool, StatelessLIF, TokenMap, in_reals
from .convolution import channels_last
from .network import SpikingNetwork

Form = Literal["cifar", "imagenet"]
Neuron = Callable[..., nn.Module]


def _conv(inputs: int, outputs: int, lif: Neuron) -> NormLIF:
    return NormLIF(SpikeConv(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), lif())


def dense(inputs: int, outputs: int, lif: Neuron, *, bias: bool = True) -> NormLIF:
    """A linear map of every token, normalised, that fires: (T, B, C, N) -> (T, B, C', N)."""
    return NormLIF(TokenMap(inputs, outputs, 1, bias=bias), nn.BatchNorm1d(outputs), lif())


class Stem(nn.Module):
    """Patch embedding: four convolutions of growing width, the last log2(patch) pooled, and a positional one."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, lif: Neuron) -> None:
        super().__init__()
        widths = [in_channels, dim // 8, dim // 4, dim // 2, dim]
        self.stages = nn.ModuleList(_conv(a, b, lif) for a, b in itertools.pairwise(widths))
        self.pool = SpikePool()
        self.pooled_stages = int(math.log2(patch_size))
        self.position = _conv(dim, dim, lif)

    def forward(self, x: Tensor, times: int | None = None) -> Tensor:
        """Events (T, B, C, height, width), or images (B, C, height, width) for `times` steps -> tokens (T, B, C, N)."""
        stages: list[Any] = list(self.stages)
        for index, stage in enumerate(stages):
            if index < 2:  # from here on every layer keeps the order; twice, as one channel alone has none to keep
                x = channels_last(x)
            x = stage(x) if index or times is None else stage.forward_static(x, times)
            if index >= len(self.stages) - self.pooled_stages:
                x = self.pool(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return (x + self.position(x)).flatten(3)


class Attention(nn.Module):
    """Spiking self-attention: scale * Q K^T V without a softmax."""

    def __init__(self, dim: int, heads: int, lif: Neuron, *, qkv_bias: bool, scale: float = 0.125) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.query = dense(dim, dim, lif, bias=qkv_bias)
        self.key = dense(dim, dim, lif, bias=qkv_bias)
        self.value = dense(dim, dim, lif, bias=qkv_bias)
        self.lif = lif(v_threshold=0.5)
        self.projection = dense(dim, dim, lif)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, N) -> (T, B, C, N)."""
        q, k, v = (part(x) for part in (self.query, self.key, self.value))
        return self.projection(self.lif(mix(q, k, v, self.heads, self.scale)))


class MLP(nn.Module):
    """Two token-wise layers with a hidden width of `ratio` times the width."""

    def __init__(self, dim: int, ratio: float, lif: Neuron) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.first, self.second = dense(dim, hidden, lif), dense(hidden, dim, lif)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, N) -> (T, B, C, N)."""
        return self.second(self.first(x))


class TransformerBlock(nn.Module):
    """x + attention(x), then x + mlp(x)."""

    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, ...) -> (T, B, C, ...)."""
        x = x + self.attention(x)
        return x + self.mlp(x)


def mean_over_tokens(x: Tensor) -> Tensor:
    """(T, B, C, N) -> (T, B, C)."""
    # Over an axis that is not the last in memory, so that the gradient lies like x.
    x = in_reals(x)
    return x.mean(-1) if x.is_contiguous() else x.transpose(2, 3).mean(2)


class Spikformer(SpikingNetwork):
    """Images (B, C, H, W) or events (T, B, C, H, W) -> logits (B, classes), averaged over time.

    Args:
        depth: blocks.
        dim: width, a multiple of `heads`.
        heads: of the attention.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        patch_size: side of a token, in pixels.
        in_channels: channels of the images or events.
        form: "cifar" or "imagenet": how the stem pools.
        mlp_ratio: width of the hidden layer of a block's MLP, in widths of the block.
        neuron: makes every spiking node; SpikingJelly's `LIFNode` gives the same network with nodes that need
            `reset_net`.
        attention_scale: what the products of query, key and value are multiplied by; the authors' 0.125 for images,
            0.25 for events.
    """

    def __init__(
        self,
        depth: int = 4,
        dim: int = 384,
        heads: int = 12,
        time_steps: int = 4,
        num_classes: int = 10,
        image_size: int = 32,
        patch_size: int = 4,
        in_channels: int = 3,
        form: Form = "cifar",
        mlp_ratio: float = 4.0,
        neuron: Neuron = StatelessLIF,
        attention_scale: float = 0.125,
    ) -> None:
        super().__init__(time_steps=time_steps, num_classes=num_classes, image_size=image_size, in_channels=in_channels)
        _check_sizes(depth, dim, heads, time_steps, num_classes, image_size, patch_size, in_channels, form)
        lif = partial(neuron, tau=2.0, detach_reset=True, step_mode="m")
        self.form, self.num_features = form, dim
        self.largest_count = 2 + 2 * depth  # the stem adds two, every block two more
        self.stem = Stem(in_channels, dim, patch_size, lif)
        attention: dict[str, Any] = {"qkv_bias": form == "cifar", "scale": attention_scale}
        self.blocks = nn.ModuleList(
            TransformerBlock(Attention(dim, heads, lif, **attention), MLP(dim, mlp_ratio, lif)) for _ in range(depth)
        )
        self.head = nn.Linear(dim, num_classes)
        self._initialise()

    def forward_features(self, x: Tensor) -> Tensor:
        """Mean over tokens after the last block, (T, B, C)."""
        x = self.start(x)
        with spikes_as_bits(x):
            x = self.stem(x, self.time_steps if x.ndim == 4 else None)
            for block in self.blocks:
                x = block(x)
        return mean_over_tokens(x)

    def _initialise(self) -> None:
        # The authors initialise nn.Linear only; in their CIFAR form the token-wise maps are nn.Linear, in their
        # ImageNet form they are convolutions and keep torch's default.
        linear = (nn.Linear, nn.Conv1d) if self.form == "cifar" else (nn.Linear,)
        for module in self.modules():
            if isinstance(module, linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def _check_sizes(
    depth: int, dim: int, heads: int, time_steps: int, classes: int, image: int, patch: int, channels: int, form: str
) -> None:
    counts = {"depth": depth, "heads": heads, "time_steps": time_steps, "num_classes": classes, "in_channels": channels}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if form not in ("cifar", "imagenet"):
        raise ValueError(f"form must be 'cifar' or 'imagenet', not {form!r}")
    if dim % 8:
        raise ValueError(f"dim must be a multiple of 8 (the stem starts with an eighth of it), not {dim}")
    if dim % heads:
        raise ValueError(f"{heads} heads do not divide a width of {dim}; choose heads from the divisors of dim")
    if patch not in (1, 2, 4, 8, 16):
        raise ValueError(f"patch_size must be 1, 2, 4, 8 or 16, not {patch}")
    if image < patch:
        raise ValueError(f"an image of {image} pixels is smaller than a patch of {patch}")
