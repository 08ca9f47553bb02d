"""What the operators with an LIF neuron tell their kernels, and what is made of the sums that those leave.

Tensors go as they are: reading one here would wait for the device. Sums stay in float32 within a tile, which leaves
them at a place of its own; torch adds up the tiles in float64, always in the same order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments import or_nothing
from ..slopes import slope_gradient, strides_in_memory
from .back import KEPT_STEPS, KINDS_OF_SUMS
from .tiles import Tiles

Wants = tuple[bool, bool, bool]  # sums of the slope, of threshold and tau, of squares


def constants_of(
    *,
    tau: float,
    threshold: float,
    reset: float | None,
    decay_input: bool,
    thresholds: Tensor | None = None,
    time_constant: Tensor | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Constants of a membrane; other options are passed over."""
    return {
        "tau": tau,
        "threshold": threshold,
        "reset": reset or 0.0,
        "thresholds": thresholds,
        "threshold_step": thresholds.stride(0) if thresholds is not None and thresholds.ndim else 0,
        "time_constant": time_constant,
        "HARD": reset is not None,
        "DECAYS": decay_input,
    }


def backward_of(
    *,
    detach_reset: bool,
    wants_slope: bool,
    wants_constants: bool = False,
    wants_squares: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """The same for backward, with what is asked for."""
    wants = wants_slope, wants_constants, wants_squares
    return constants_of(**options) | {"DETACHES": detach_reset, "WANTS": wants}


def slopes_of(slope: Tensor, full: Sequence[int], axes: Sequence[int], x: Tensor) -> dict[str, Any]:
    """Slopes for currents of the sizes (T, B, C, N), whose `axes` without the first are those of memory."""
    second, third, step, *strides = (1, 1, slope.stride(0) if slope.ndim else 0, 0, 0, 0)
    if slope.ndim == 4:
        second, third, step, *strides = strides_in_memory(slope, full, axes)
    return {
        "slopes": slope.detach().to(x.device),
        "slope_step": step,
        "second": second,
        "third": third,
        **{f"stride{axis}": stride for axis, stride in enumerate(strides)},
        "EACH_SLOPE": slope.ndim == 4,
    }


def room_for_moments(x: Tensor, tiles: Tiles, times: int, near: float | None) -> Tensor | None:
    """(tiles, T, 4), if somebody asks."""
    return None if near is None else x.new_empty(tiles.count * tiles.blocks, times, 4, dtype=torch.float32)


def moments(seen: Tensor | None, x: Tensor) -> Tensor:
    """(T, 4), or nothing."""
    return or_nothing(None if seen is None else seen.sum(0, dtype=torch.float64), x)


def tiles_to_add(tiles: Tiles, times: int) -> Tiles:
    """Those of a backward pass that adds up channels too: beside many kept membranes registers would not suffice."""
    return tiles.halved() if KEPT_STEPS // 2 < times <= KEPT_STEPS else tiles


def room_for_sums(x: Tensor, tiles: Tiles, times: int, wants: Wants) -> Tensor | None:
    """(tiles, kinds, T), if somebody asks; kinds that nobody asks for are never written, nor read."""
    if not any(wants):
        return None
    return x.new_empty(tiles.count * tiles.blocks, KINDS_OF_SUMS, times, dtype=torch.float32)


def room_for_membranes(x: Tensor, times: int) -> Tensor | None:
    """Like x, where there are too many time steps for registers."""
    return None if times <= KEPT_STEPS else torch.empty_like(x, dtype=torch.float32)


def sums_of(sums: Tensor | None, slope: Tensor, wants: Wants, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slope's gradient in its shape, those of thresholds (T) and tau, and sums of squares (2)."""
    of_slope = constants = squares = None
    if sums is not None:
        total = sums.sum(0, dtype=torch.float64)
        of_slope = total[0] if wants[0] else None
        constants = torch.cat([total[1], total[2].sum(0, keepdim=True)]) if wants[1] else None
        squares = total[3:].sum(1) if wants[2] else None
    return slope_gradient(of_slope, slope), or_nothing(constants, x), or_nothing(squares, x)
