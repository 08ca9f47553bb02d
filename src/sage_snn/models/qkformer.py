"""QKFormer (Zhou et al., NeurIPS 2024) in its CIFAR form: three stages, the image halved between them.

T time steps, B batch, C channels, H heads, N tokens, K head width. Memory lies as in the Spikformer. Two things differ
from the authors' code: there the projection's node of the last stage takes time steps and images for one long sequence
(T*B steps), so that its membranes pass from image to image, and no result stays the same in another batch; here it
keeps time steps and images apart, like all other nodes. And events may have any number of time steps.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from ..kernels.bits import spikes_as_bits
from ..layers import NormLIF, NormMap, SpikePool, StatelessLIF
from .convolution import channels_last, conv
from .network import SpikingNetwork
from .spikformer import MLP, Attention, Neuron, TransformerBlock, dense, mean_over_tokens


def _unit(inputs: int, outputs: int, lif: Neuron, size: int = 3, stride: int = 1) -> NormLIF:
    return NormLIF(conv(inputs, outputs, size, stride), nn.BatchNorm2d(outputs), lif())


class Embedding(nn.Module):
    """Patches of one pixel: two convolutions, the second with a shortcut that fires as well."""

    def __init__(self, in_channels: int, dim: int, lif: Neuron) -> None:
        super().__init__()
        self.first, self.second = _unit(in_channels, dim // 2, lif), _unit(dim // 2, dim, lif)
        self.shortcut = _unit(dim // 2, dim, lif, size=1)

    def forward(self, x: Tensor, times: int | None = None) -> Tensor:
        """Events (T, B, C, height, width), or images (B, C, height, width) for `times` steps -> sums of spikes."""
        x = channels_last(x)
        x = channels_last(self.first(x) if times is None else self.first.forward_static(x, times))
        return self.second(x) + self.shortcut(x)


class Downsampling(nn.Module):
    """Twice the channels and half the image, pooled before the neuron; the shortcut fires as well."""

    def __init__(self, inputs: int, outputs: int, lif: Neuron) -> None:
        super().__init__()
        self.first = _unit(inputs, outputs, lif)
        self.second = NormMap(conv(outputs, outputs), nn.BatchNorm2d(outputs))
        self.pool, self.lif = SpikePool(), lif()
        self.shortcut = _unit(inputs, outputs, lif, size=1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, height, width) -> sums of spikes (T, B, C', height / 2, width / 2), rounded up."""
        currents = self.second(self.first(x))
        pooled = self.pool(currents.flatten(0, 1)).unflatten(0, currents.shape[:2])
        return self.lif(pooled) + self.shortcut(x)


class TokenAttention(nn.Module):
    """Token Q-K attention: a head's query says which tokens pass, and there the key does; no map of N x N is formed."""

    def __init__(self, dim: int, heads: int, lif: Neuron) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = dense(dim, dim, lif, bias=False), dense(dim, dim, lif, bias=False)
        self.lif = lif(v_threshold=0.5)
        self.projection = dense(dim, dim, lif)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C, N) -> (T, B, C, N)."""
        q, k = (part(x).unflatten(2, (self.heads, -1)) for part in (self.query, self.key))
        passes = self.lif(q.movedim(-1, 2).sum(-1).movedim(2, -1))  # (T, B, H, N), heads last in memory
        return self.projection((k * passes.unsqueeze(3)).flatten(2, 3))


class QKFormer(SpikingNetwork):
    """Images (B, C, H, W) or events (T, B, C, H, W) -> logits (B, classes), averaged over time.

    A block of token attention at a quarter of the width, one at half of it, and the other `depth` - 2 of spiking
    self-attention at the whole.

    Args:
        depth: blocks.
        dim: width of the last stage.
        heads: of the attention.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        in_channels: channels of the images or events.
        mlp_ratio: width of the hidden layer of a block's MLP, in widths of the block.
        neuron: makes every spiking node; SpikingJelly's `LIFNode` gives the same network with nodes that need
            `reset_net`.
    """

    def __init__(
        self,
        depth: int = 4,
        dim: int = 384,
        heads: int = 8,
        time_steps: int = 4,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        mlp_ratio: float = 4.0,
        neuron: Neuron = StatelessLIF,
    ) -> None:
        super().__init__(time_steps=time_steps, num_classes=num_classes, image_size=image_size, in_channels=in_channels)
        sizes = {"heads": heads, "time_steps": time_steps, "num_classes": num_classes, "in_channels": in_channels}
        _check_sizes(depth, dim, image_size, sizes)
        lif = partial(neuron, tau=2.0, detach_reset=True, step_mode="m")
        self.num_features = dim
        self.largest_count = 2 + 2 * (depth - 2)  # as in a Spikformer; a stage begins anew
        self.embeddings, self.stages, inputs = nn.ModuleList(), nn.ModuleList(), in_channels
        for width, count in ((dim // 4, 1), (dim // 2, 1), (dim, depth - 2)):
            self.embeddings.append((Downsampling if self.stages else Embedding)(inputs, width, lif))
            blocks: list[nn.Module] = []
            for _ in range(count):
                is_last = width == dim
                attention = Attention(dim, heads, lif, qkv_bias=False) if is_last else TokenAttention(width, heads, lif)
                blocks.append(TransformerBlock(attention, MLP(width, mlp_ratio, lif)))
            self.stages.append(nn.Sequential(*blocks))
            inputs = width
        self.head = nn.Linear(dim, num_classes)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward_features(self, x: Tensor) -> Tensor:
        """Mean over tokens after the last block, (T, B, C)."""
        x = self.start(x)
        with spikes_as_bits(x):
            first: Any = self.embeddings[0]
            x = first(x, self.time_steps if x.ndim == 4 else None)
            for index, stage in enumerate(self.stages):
                x = self.embeddings[index](x) if index else x
                x = stage(x.flatten(3)).unflatten(3, x.shape[3:])
        return mean_over_tokens(x.flatten(3))


def qkformer(
    depth: int = 4,
    dim: int = 384,
    heads: int = 8,
    time_steps: int = 4,
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    **options: Any,
) -> QKFormer:
    """QKFormer's CIFAR form; as it stands HST-4-384, 6,706,234 parameters. Further options: `mlp_ratio`, `neuron`.

    Args:
        depth: blocks.
        dim: width of the last stage.
        heads: of the attention.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        in_channels: channels of the images or events.
        **options: `mlp_ratio` and `neuron` of `QKFormer`.
    """
    return QKFormer(depth, dim, heads, time_steps, num_classes, image_size, in_channels, **options)


def _check_sizes(depth: int, dim: int, image_size: int, counts: dict[str, int]) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if depth < 3:
        raise ValueError(f"depth must be at least 3, a block for each of the three stages, not {depth}")
    if dim < 8 or dim % 8:
        raise ValueError(f"dim must be a multiple of 8 (the network starts with an eighth of it), not {dim}")
    heads = counts["heads"]
    if dim // 4 % heads:
        raise ValueError(
            f"{heads} heads do not divide the first stage's width of {dim // 4}, a quarter of dim; "
            f"choose heads from the divisors of {dim // 4}, or another dim"
        )
    if image_size < 4:
        raise ValueError(f"an image of {image_size} pixels is too small to be halved twice; it needs at least 4")
