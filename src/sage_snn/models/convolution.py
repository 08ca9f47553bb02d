"""What convolutional networks are made of: a convolution, the neuron after it, the normalisation between, a width."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import SpikeConv, StatelessLIF

Activation = Callable[[], nn.Module]
Norm = Callable[..., nn.Module]  # (channels, branches=1)

LIF: Activation = partial(StatelessLIF, tau=2.0, decay_input=False, detach_reset=True, step_mode="m")


def batch_norm(channels: int, branches: int = 1) -> nn.Module:
    """Plain batch normalisation, however many branches are added up after it."""
    return nn.BatchNorm2d(channels)


def no_norm(channels: int, branches: int = 1) -> nn.Module:
    """For networks without normalisation."""
    return nn.Identity()


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without a bias that keeps the size of the image, or divides it by the stride."""
    kind = Pointwise if size == 1 else SpikeConv
    return kind(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Pointwise(nn.Conv2d):
    """A convolution of size 1 that leaves pixels out before it works, not while it does.

    oneDNN writes past its memory in the backward pass of a strided one of few channels that lie last (its issue 6035).
    """

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H / stride, W / stride)."""
        rows, columns = self.stride
        return F.conv2d(input[..., ::rows, ::columns], self.weight, self.bias)


def channels_last(x: Tensor) -> Tensor:
    """The same values, (..., C, H, W), in the memory order that convolutions like best, on CPUs and on tensor cores."""
    return x.movedim(-3, -1).contiguous().movedim(-1, -3)


def scaled(channels: Sequence[int], width: float) -> list[int]:
    """Channels times the width factor; at least one is left of each."""
    if not width > 0:
        raise ValueError(f"width must be positive, not {width}")
    return [max(1, round(count * width)) for count in channels]


def keep_size(network: nn.Module) -> None:
    """First weights that neither shrink nor grow what passes (He et al., 2015), where no normalisation does it."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
