"""Spikes whose surrogate slope is a tensor, and the two ways such a slope is kept: written, or learnt.

The shapes are those of SpikingJelly's fast path and its rectangle, by its names: Sigmoid, ATan, PiecewiseQuadratic,
PiecewiseExp, SoftSign, SuperSpike, Erf, Rect.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .compat import is_in_backward, precise
from .kernels.derivatives import DERIVATIVES, slope_derivative

SHAPES = tuple(DERIVATIVES)
Slope = Callable[[], Tensor]

# The smooth step that each shape is the derivative of, from 0 to 1; SuperSpike is that of none.
PRIMITIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Sigmoid": lambda x, slope: torch.sigmoid(slope * x),
    "ATan": lambda x, slope: torch.atan(math.pi / 2 * slope * x) / math.pi + 0.5,
    "PiecewiseQuadratic": lambda x, slope: _quadratic_step((slope * x).clamp(-1, 1)),
    "PiecewiseExp": lambda x, slope: 0.5 + 0.5 * x.sign() * (1 - torch.exp(-slope * x.abs())),
    "SoftSign": lambda x, slope: 0.5 + 0.5 * slope * x / (1 + slope * x.abs()),
    "Erf": lambda x, slope: 0.5 * torch.erfc(-slope * x),
    "Rect": lambda x, slope: (slope * x + 0.5).clamp(0, 1),
}


def _quadratic_step(x: Tensor) -> Tensor:
    return 0.5 + x - 0.5 * x * x.abs()


def peak(shape: str) -> float:
    """Height at the threshold of a shape with slope 1; it grows in proportion to the slope."""
    return float(DERIVATIVES[shape](torch.zeros(()), torch.ones(())))


def slope_of_width(width: Tensor, shape: str) -> Tensor:
    """The slope that makes a shape as high at the threshold as the rectangle of this width and area 1."""
    return 1 / (width * peak(shape))


@torch.library.custom_op("sage_snn::frozen", mutates_args=())
def frozen(slope: Tensor) -> Tensor:
    """A copy, by an operator that no compiler sees through."""
    return slope.clone()


@frozen.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(slope: Tensor) -> Tensor:
    return torch.empty_like(slope)


class WrittenSlope:
    """A slope that a controller writes. Each call freezes the current value for one forward pass and its backward.

    `live` gives the tensor itself: then backward uses what was written after the forward pass (same-step control).
    """

    _frozen: Tensor | None = None

    def __init__(self, value: float, *, live: bool = False, device: torch.device | str = "cpu") -> None:
        # Not a buffer: `model.half()` must not round it, and it must not enter the state dict.
        self.tensor = torch.tensor(value, dtype=precise(device), device=device)
        self.live = live

    def __call__(self) -> Tensor:
        """The slope for one forward pass."""
        if self.live:
            return self.tensor
        if not torch.compiler.is_dynamo_compiling():
            return self.tensor.clone()
        # A compiler would copy in the backward pass, where alone the slope is used, and by then it may be another: as
        # an attribute the copy is a result of the forward pass.
        self._frozen = copy = frozen(self.tensor)
        return copy


class OwnSlope(WrittenSlope):
    """A node's own slope while no policy gives it one, in a tensor that stays where it is.

    A graph that was captured before a policy was attached reads it, and follows when the policy writes there.
    """

    def __init__(self, value: float, device: torch.device) -> None:
        self.value, self.live = value, False
        self.tensor = torch.full((), value, dtype=precise(device), device=device)  # a copy would wait for the device

    def rest(self, value: float | None = None) -> None:
        """Write the node's own value again, or another from now on."""
        if value != self.value:
            self.value = self.value if value is None else value
            self.tensor.fill_(self.value)


class ChannelSlopes(WrittenSlope):
    """Slopes for runs of neighbouring channels, as many as values are written; all of it `repeats` times.

    A node's channels may be several heads, `repeats` 3 where query, key and value are one node's. What is handed out
    broadcasts over (T, B, C, N), or over (T, B, N, C) where the channels lie last.
    """

    def __init__(
        self,
        value: float,
        *,
        live: bool = False,
        device: torch.device | str = "cpu",
        repeats: int = 1,
        channels_last: bool = False,
    ) -> None:
        super().__init__(value, live=live, device=device)
        self.repeats, self.axis = repeats, 3 if channels_last else 2
        self._written: Tensor = self.tensor.reshape(1)
        self._channels = 0

    def begin(self, shape: tuple[int, ...]) -> Tensor:
        """The slopes for one forward pass over currents of this shape."""
        if shape[self.axis] != self._channels:
            self._channels = shape[self.axis]
            self.tensor = self.spread(self._written)
        return self()

    def spread(self, values: Tensor) -> Tensor:
        """Values (P,) laid out over the channels; as they are before the first pass has shown how many there are."""
        self._written = values
        if not self._channels:
            return values
        runs = self.repeats * len(values)
        if self._channels % runs:
            raise ValueError(
                f"slopes ({len(values)},), {self.repeats} times, do not fit the {self._channels} channels of a node; "
                "describe the block with Block(heads=..., by_head=[...])"
            )
        laid_out = values.repeat_interleave(self._channels // runs).repeat(self.repeats)
        return laid_out.reshape(1, 1, -1, 1) if self.axis == 2 else laid_out.reshape(1, 1, 1, -1)


class LearntSlope:
    """A positive, trainable slope: `ratio * exp(parameter)`. The parameter belongs to the policy, not to the model."""

    def __init__(self, parameter: nn.Parameter, ratio: float = 1.0) -> None:
        self.parameter = parameter
        self.ratio = ratio

    def __call__(self) -> Tensor:
        """The slope, with its gradient."""
        return self.parameter.exp() * self.ratio


def log_slope(value: float, steps: int | None = None) -> nn.Parameter:
    """Parameter of a learnt slope that starts at `value`: one, or one per time step."""
    if not value > 0:
        raise ValueError(f"a slope must be positive, not {value}")
    return nn.Parameter(torch.full(() if steps is None else (steps,), math.log(value)))


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, slope: Tensor, shape: str) -> Tensor:
        return (x >= 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.slope, ctx.shape = inputs  # a saved slope could not be written before backward
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        (x,) = ctx.saved_tensors
        slope: Tensor = ctx.slope
        grad_x = grad * DERIVATIVES[ctx.shape](x, slope)
        grad_slope = None
        if ctx.needs_input_grad[1]:
            grad_slope = (grad * slope_derivative(ctx.shape, x, slope)).sum().to(slope)
        return grad_x, grad_slope, None


def spike(x: Tensor, slope: Tensor, shape: str = "Sigmoid") -> Tensor:
    """1 where x >= 0, else 0; backward uses the derivative of `shape` with the given slope, a tensor ()."""
    if shape not in DERIVATIVES:
        raise ValueError(f"unknown surrogate shape {shape!r}; known are {', '.join(SHAPES)}")
    return _Spike.apply(x, slope, shape)  # pyright: ignore[reportReturnType]


class _Mixed(_Spike):
    @staticmethod
    def forward(x: Tensor, slope: Tensor, shape: str, smooth: Tensor) -> Tensor:  # pyright: ignore
        return torch.where(smooth, PRIMITIVES[shape](x, slope).to(x.dtype), (x >= 0).to(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _Spike.setup_context(ctx, inputs[:3], output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (*_Spike.backward(ctx, *grad_outputs), None)


def mixed_spike(x: Tensor, slope: Tensor, shape: str, smooth: Tensor) -> Tensor:
    """Spikes, and the smooth step in their place where `smooth` says so; backward is that of the smooth step."""
    return _Mixed.apply(x, slope, shape, smooth)  # pyright: ignore[reportReturnType]


class TensorSurrogate(nn.Module):
    """Takes the place of a SpikingJelly surrogate object and fires with a tensor slope."""

    def __init__(self, shape: str, slope: Slope) -> None:
        super().__init__()
        self.shape = shape
        self.slope = slope
        self.spiking = True

    @property
    def alpha(self) -> Tensor:
        """The slope, under SpikingJelly's name."""
        return self.slope().detach()

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of the distance to the threshold."""
        return spike(x, self.slope(), self.shape)


class Masks:
    """True with probability `share`, from a generator of their own."""

    def __init__(self, share: float, seed: int, device: torch.device | str = "cpu") -> None:
        self.share = share
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self, like: Tensor) -> Tensor:
        """One of the shape of a tensor."""
        drawn = torch.rand(like.shape, generator=self.generator, device=self.generator.device)
        return (drawn < self.share).to(like.device)


class MixedSurrogate(TensorSurrogate):
    """Fires smoothly where a mask says so, in training; spikes only in eval mode."""

    def __init__(self, shape: str, slope: Slope, masks: Masks) -> None:
        super().__init__(shape, slope)
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        """Spikes and smooth values of the distance to the threshold."""
        if not self.training:
            return super().forward(x)
        if not torch.compiler.is_compiling() and is_in_backward():
            raise RuntimeError(
                "the replay of activation checkpointing would draw other masks than the first pass; "
                "train without checkpointing"
            )
        return mixed_spike(x, self.slope(), self.shape, self.masks.draw(x))
