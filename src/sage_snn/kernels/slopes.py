"""Surrogate slopes in the shapes that neurons take: () for all, (T,) one per step, (t, b, c, n) that broadcasts.

T time steps, B batch, C channels, N positions: the trailing axes of currents (T, B, C, ...), flattened.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .calls import pointer
from .layout import Layout


def extents(sizes: Sequence[int]) -> tuple[int, int, int, int]:
    """T, B, C, N of currents of these sizes; an axis that is not there counts as 1."""
    times, batch, channels = (*sizes[:3], 1, 1, 1)[:3]
    return times, batch, channels, math.prod(sizes[3:])


def require_slopes(slope: Tensor, sizes: Sequence[int]) -> None:
    """Refuse slopes that do not broadcast over currents of these sizes."""
    if slope.ndim == 0:
        return
    if slope.ndim == 1:
        if len(slope) != sizes[0]:
            raise ValueError(
                f"{len(slope)} slopes, one per time step, do not fit {sizes[0]} steps; use multi-step mode"
            )
        return
    full = extents(sizes)
    if slope.ndim != 4 or any(own not in (1, size) for own, size in zip(slope.shape, full, strict=True)):
        raise ValueError(
            f"slopes {tuple(slope.shape)} do not broadcast over currents (T, B, C, N) = {full}; "
            "give (), (T,), or (t, b, c, n) with each size 1 or full"
        )


def over_currents(slope: Tensor, sizes: Sequence[int]) -> Tensor:
    """Slopes (t, b, c, n) as a view that broadcasts over currents of these sizes; others as they are."""
    if slope.ndim < 4:
        return slope
    if len(sizes) < 4:
        return slope[(..., *[0] * (4 - len(sizes)))]
    trailing = sizes[3:] if slope.shape[3] > 1 else [1] * (len(sizes) - 3)
    return torch.unflatten(slope, 3, list(trailing))


def at_step(slope: Tensor, t: int, dtype: torch.dtype) -> Tensor:
    """The slope of one time step, of slopes as `over_currents` gives them; one number stays in its own precision."""
    own = part_of(slope, t)
    return own.to(dtype) if own.ndim else own


def steps_of(slope: Tensor, times: int) -> Sequence[Tensor]:
    """Views: a slope for each step by itself, () or (1, b, c, n)."""
    if slope.ndim < 4:
        return slope.expand(times).unbind()
    return [row.unsqueeze(0) for row in slope.expand(times, *slope.shape[1:]).unbind()]


def part_of(values: Tensor, t: int) -> Tensor:
    """A view of what belongs to one time step: of () or of one for all steps all of it."""
    return values if values.ndim == 0 else values[t if len(values) > 1 else 0]


def add_at(total: Tensor, t: int, change: Tensor) -> None:
    """Add to what belongs to one time step, summed over the axes that it lacks."""
    part = part_of(total, t)
    part += change.sum_to_size(part.shape).to(part)


def slope_values(slope: Tensor, times: int) -> Tensor:
    """One float64 per time step, as the C++ reads them."""
    return slope.to(torch.float64).expand(times).contiguous()


def strides_in_memory(slope: Tensor, full: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """How slopes (t, b, c, n) broadcast over (T, B, C, N): sizes of the last two axes in memory, stride of a step and
    of the three axes, 0 along one whose neurons share a slope. `axes` as in `NeuronSlopes`.
    """
    strides = [0 if size == 1 else stride for size, stride in zip(slope.shape, slope.stride(), strict=True)]
    axes = sorted(axes, key=lambda axis: full[axis] > 1)  # those of one neuron first: longer runs
    return full[axes[1]], full[axes[2]], strides[0], *(strides[axis] for axis in axes)


class NeuronSlopes:
    """Slopes as the C++ reads them, alive while it does: one per step, or one per neuron.

    `axes` are those of (T, B, C, N) without the first, from the slowest to the fastest in memory.
    """

    def __init__(self, slope: Tensor, full: Sequence[int], axes: Sequence[int], dtype: torch.dtype) -> None:
        self.steps = slope_values(slope, full[0]) if slope.ndim < 4 else None
        self.values = slope.detach().to(dtype) if slope.ndim == 4 else None
        self.layout = None
        if self.values is not None:
            self.layout = (ctypes.c_int64 * 6)(*strides_in_memory(self.values, full, axes))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Slopes of the steps, slopes of neurons, their sizes and strides; None for what is not there."""
        return pointer(self.steps), pointer(self.values), self.layout


def in_memory(slope: Tensor, sizes: Sequence[int], layout: Layout) -> tuple[Tensor, Sequence[int], Sequence[int]]:
    """Slopes for currents of these sizes (T, B, C, ...), with (T, B, C, N) and its axes as `NeuronSlopes` takes them.

    Where the memory has another order than the two usual ones, neurons are one axis and the slopes are written out.
    """
    full, trailing = extents(sizes), list(range(2, len(sizes) - 1))
    if slope.ndim < 4 or layout.order == sorted(layout.order):
        return slope, full, (1, 2, 3)
    if layout.order == [0, *trailing, 1]:
        return slope, full, (1, 3, 2)
    written = layout.flat(over_currents(slope, sizes).expand(len(slope), *sizes[1:]), slope.dtype)
    return written.view(len(slope), 1, 1, -1), (full[0], 1, 1, math.prod(sizes[1:])), (1, 2, 3)


def slopes_of_neurons(slope: Tensor, sizes: Sequence[int], layout: Layout, dtype: torch.dtype) -> NeuronSlopes:
    """For currents of these sizes (T, B, C, ...) in any order of memory."""
    return NeuronSlopes(*in_memory(slope, sizes, layout), dtype)


def slope_gradient(grads: Tensor | None, slope: Tensor) -> Tensor:
    """Gradient in the shape and precision of the slope from those of the time steps; nothing of nothing."""
    if grads is None:
        return slope.new_empty(0)
    return grads.to(slope.dtype) if slope.ndim else grads.sum().to(slope.dtype)
