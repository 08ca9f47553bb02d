"""Layers that networks are made of: synapse, normalisation and neuron; synapses of spikes; pooling of spikes.

T time steps, B batch, C channels, N tokens.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .compat import forward_hooks, has_input_hooks
from .kernels.arguments import why_not_native
from .kernels.events import event_conv, event_map
from .kernels.norm import batch_norm, plain_norm, running_statistics
from .kernels.norm_lif import batch_norm_lif
from .kernels.packed import Packed
from .kernels.path import why_twin
from .kernels.pool import spike_pool
from .neurons import LIFNode

StatelessLIF = partial(LIFNode, carry_state=False)


class ThresholdNorm(nn.BatchNorm2d):
    """Threshold-dependent batch normalisation (tdBN; Zheng et al., AAAI 2021), statistics over time and batch.

    What leaves it is scaled by the constant `threshold / sqrt(branches)`, for a node of that threshold that so many
    branches lead to. A factor of its own, not folded into the first weight: learning rate and decay act as without it.
    """

    def __init__(self, channels: int, threshold: float = 1.0, branches: int = 1) -> None:
        super().__init__(channels)
        self.factor = threshold / math.sqrt(branches)

    def forward(self, input: Tensor) -> Tensor:
        """(T*B, C, H, W) -> (T*B, C, H, W)."""
        mean, var, options = running_statistics(self)
        return plain_norm(input, mean, var, self.weight * self.factor, self.bias, **options)


def why_not_plain(norm: nn.Module) -> str | None:
    """None if a kernel may do the work of this normalisation, else the reason."""
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, ThresholdNorm):
        return f"{type(norm).__name__} is not a plain BatchNorm"
    return "the BatchNorm has hooks" if forward_hooks(norm) or has_input_hooks(norm) else None


def in_order(x: Tensor) -> Tensor:
    """What torch's own normalisation is given: on a CPU in the order of the axes, or it loses digits."""
    return x.contiguous() if x.device.type == "cpu" else x


def in_reals(x: Tensor) -> Tensor:
    """Counts in bytes as floating point; anything else as it is."""
    return x if x.is_floating_point() else x.float()


class NormLIF(nn.Module):
    """Synapse, batch normalisation and LIF: (T, B, C, ...) -> spikes (T, B, C', ...)."""

    def __init__(self, synapse: nn.Module, norm: nn.Module, lif: nn.Module) -> None:
        super().__init__()
        self.synapse, self.norm, self.lif = synapse, norm, lif

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Spikes of all time steps; the residual (T, B, C', ...) is added to what has been normalised."""
        return self.fire(self.synapse(x.flatten(0, 1)), len(x), residual)

    def forward_static(self, x: Tensor, times: int) -> Tensor:
        """The same for an input (B, C, ...) that does not change over time: its synapses work once."""
        return self.fire(torch.cat([self.synapse(x)] * times), times)

    def fire(self, currents: Tensor, times: int, residual: Tensor | None = None) -> Tensor:
        """Spikes (T, B, C', ...) of the synapses' output (T*B, C', ...)."""
        if self.why_not_fused(currents) is None:
            node: Any = self.lif
            sizes = times, currents.shape[0] // times, *currents.shape[1:]
            slope, membrane, shape = node.dynamics(currents, sizes)
            added = None if residual is None else residual.flatten(0, 1)
            norm: Any = self.norm
            spikes = batch_norm_lif(norm, currents, slope, membrane, times, shape, added, node.watch)
            return self.lif(spikes.unflatten(0, (times, -1)), fired=True)
        normal = self.norm(in_order(currents)).unflatten(0, (times, -1))
        return self.lif(normal if residual is None else normal + residual)

    def why_not_fused(self, x: Tensor | None = None) -> str | None:
        """None if normalisation and neuron run in one kernel, else the reason."""
        if not isinstance(self.lif, LIFNode):
            return f"{type(self.lif).__name__} is not our LIFNode"
        own = why_not_plain(self.norm) or self.lif.why_not_fused()
        return own or (why_twin() if x is None else why_not_native(x))


class NormMap(nn.Module):
    """Synapse and batch normalisation without a neuron, for sums of branches: (T, B, C, ...) -> (T, B, C', ...)."""

    def __init__(self, synapse: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.synapse, self.norm = synapse, norm

    def forward(self, x: Tensor) -> Tensor:
        """Currents of all time steps."""
        return self._normal(self.synapse(x.flatten(0, 1)), len(x))

    def forward_static(self, x: Tensor, times: int) -> Tensor:
        """The same for an input (B, C, ...) that does not change over time: its synapses work once."""
        return self._normal(torch.cat([self.synapse(x)] * times), times)

    def _normal(self, currents: Tensor, times: int) -> Tensor:
        norm: Any = self.norm
        normal = norm(in_order(currents)) if why_not_plain(norm) else batch_norm(norm, currents)
        return normal.unflatten(0, (times, -1))


class SpikeConv(nn.Conv2d):
    """nn.Conv2d, of 3 x 3 by the event-driven kernel where its input is sparse enough."""

    packed: Packed | None = None  # in a network for inference, whose weights stay as they are

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._has_kernel:
            return super()._conv_forward(input, weight, bias)
        return event_conv(input, weight, bias, self.stride[0], self.packed)

    @property
    def _has_kernel(self) -> bool:
        shape = (self.kernel_size, self.padding, self.dilation, self.groups, self.padding_mode)
        return shape == ((3, 3), (1, 1), (1, 1), 1, "zeros") and self.stride in ((1, 1), (2, 2))


class TokenMap(nn.Conv1d):
    """A linear map of every token: a convolution of width 1, computed as a matrix product, event-driven if sparse.

    Not on a CPU in the order of the axes, where the convolution is as fast and results are kept to the bit.
    """

    packed: Packed | None = None  # as in SpikeConv

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(T*B, C, N) -> (T*B, C', N), in the memory order of x."""
        return super().forward(x) if x.is_contiguous() and x.device.type == "cpu" else self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """The same as a matrix product: one in all where channels lie last, else one for each image."""
        weight = self.weight.squeeze(-1)
        if not x.is_contiguous():
            return event_map(x.transpose(1, 2), weight, self.bias, self.packed).transpose(1, 2)
        each = weight.expand(len(x), -1, -1)
        return each @ x if self.bias is None else torch.baddbmm(self.bias.view(1, -1, 1), each, x)


class SpikeLinear(nn.Linear):
    """nn.Linear, by events where its input is sparse enough."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., C) -> (..., C')."""
        return event_map(input, self.weight, self.bias)


class SpikePool(nn.MaxPool2d):
    """nn.MaxPool2d(3, stride=2, padding=1), by the kernel where it can run."""

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, (H + 1) // 2, (W + 1) // 2), in the memory order of the input."""
        return spike_pool(input)
