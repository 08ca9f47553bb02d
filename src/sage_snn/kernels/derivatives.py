"""Derivatives of the surrogate shapes with a tensor slope; the names are SpikingJelly's.

Each takes the distance to the threshold and the slope and gives the stand-in for d spike / d distance.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def sigmoid(x: Tensor, slope: Tensor) -> Tensor:
    """slope * s * (1 - s) with s = sigmoid(slope * x); slope / 4 at the threshold."""
    s = torch.sigmoid(slope * x)
    return (1 - s) * s * slope


def arctan(x: Tensor, slope: Tensor) -> Tensor:
    """slope / 2 / (1 + (pi / 2 * slope * x)^2)."""
    return slope / 2 / (1 + (math.pi / 2 * slope * x).square())


def piecewise_quadratic(x: Tensor, slope: Tensor) -> Tensor:
    """A triangle of height slope and half-width 1 / slope."""
    return (slope - slope.square() * x.abs()).clamp_min(0)


def piecewise_exp(x: Tensor, slope: Tensor) -> Tensor:
    """slope / 2 * exp(-slope * |x|)."""
    return slope / 2 * torch.exp(-slope * x.abs())


def soft_sign(x: Tensor, slope: Tensor) -> Tensor:
    """1 / (2 * slope * (1 / slope + |x|)^2)."""
    return 1 / (2 * slope * (1 / slope + x.abs()).square())


def super_spike(x: Tensor, slope: Tensor) -> Tensor:
    """slope / (1 + |x|)^2."""
    return slope / (1 + x.abs()).square()


def erf(x: Tensor, slope: Tensor) -> Tensor:
    """slope / sqrt(pi) * exp(-(slope * x)^2)."""
    return slope / math.sqrt(math.pi) * torch.exp(-(slope * x).square())


def rect(x: Tensor, slope: Tensor) -> Tensor:
    """A rectangle of height slope and half-width 1 / (2 * slope)."""
    return slope * (x.abs() < 0.5 / slope).to(x.dtype)


DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Sigmoid": sigmoid,
    "ATan": arctan,
    "PiecewiseQuadratic": piecewise_quadratic,
    "PiecewiseExp": piecewise_exp,
    "SoftSign": soft_sign,
    "SuperSpike": super_spike,
    "Erf": erf,
    "Rect": rect,
}


def slope_derivative(shape: str, x: Tensor, slope: Tensor) -> Tensor:
    """d spike / d slope, the spike treated as the smooth function whose derivative the shape is (decision 18)."""
    if shape == "SuperSpike":  # the only shape that is slope * f(x) and not f(slope * x)
        return x / (1 + x.abs())
    return DERIVATIVES[shape](x, slope) * x / slope
