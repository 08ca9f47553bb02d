# pyright: reportUnknownVariableType=false
"""Leaky integrate-and-fire over time on a device: the operators of `kernels/lif.py` in Triton."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kept import room_for_words
from ..layout import Layout
from ..slopes import in_memory
from .arguments import (
    backward_of,
    constants_of,
    moments,
    room_for_membranes,
    room_for_moments,
    room_for_sums,
    slopes_of,
    sums_of,
)
from .back import back_kernel
from .cases import CASES
from .fire import fire_kernel
from .forms import forms_of
from .launch import launch
from .tiles import Tiles
from .variants import Variant

UNNORMALISED = dict.fromkeys(["residual", "mean", "var", "weight", "bias"]) | {"eps": 0.0}
NO_GRADIENTS = dict.fromkeys(["level", "tilt", "grad_residual", "channel_sums"])


def lif(currents: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Spikes, last membrane and moments."""
    return _fired(currents, v, packs=False, **options)[:3]


def lif_packed(currents: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The same, and the spikes as bits."""
    return _fired(currents, v, packs=True, **options)


def _fired(
    currents: Tensor, v: Tensor, *, packs: bool, near: float | None = None, **options: Any
) -> tuple[Tensor, ...]:
    layout, tiles, times = Layout.of(currents), Tiles(1, 1, v.numel()), len(currents)
    x, (start, step) = layout.flat(currents, currents.dtype), layout.start(v)
    spikes, last = torch.empty_like(x), torch.empty_like(x[0], dtype=v.dtype)
    seen, words = room_for_moments(x, tiles, times, near), room_for_words(x, packs)
    launch(
        *(fire_kernel, (tiles.count, tiles.blocks), x, spikes, start, last),
        ONE_START=step == 0,
        seen=seen,
        bits=words.view(torch.uint8) if packs else None,
        near=near or 0.0,
        T=times,
        **UNNORMALISED,
        **constants_of(**options),
        **tiles.arguments,
    )
    return layout.back(spikes), layout.back(last), moments(seen, x), words


def lif_backward(
    grad_spikes: Tensor | None,
    grad_last: Tensor | None,
    currents: Tensor,
    v: Tensor,
    slope: Tensor,
    *,
    shape: str,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Gradients of currents, first membrane and slope; sums for the constants, and of squares."""
    layout, tiles, times = Layout.of(currents), Tiles(1, 1, v.numel()), len(currents)
    x, (start, step) = layout.flat(currents, currents.dtype), layout.start(v)
    of_spikes, of_last = (None if g is None else layout.flat(g, g.dtype) for g in (grad_spikes, grad_last))
    grad_x, grad_v = torch.empty_like(x), torch.empty_like(x[0], dtype=v.dtype)
    chosen = backward_of(**options)
    sums = room_for_sums(x, tiles, times, chosen["WANTS"])
    launch(
        *(back_kernel, (tiles.count, tiles.blocks), x, of_spikes, of_last),
        start=start,
        ONE_START=step == 0,
        grad_x=grad_x,
        grad_start=grad_v,
        sums=sums,
        scratch=room_for_membranes(x, times),
        each=1,
        T=times,
        SHAPE=shape,
        **slopes_of(*in_memory(slope, currents.shape, layout), x),
        **UNNORMALISED,
        **NO_GRADIENTS,
        **chosen,
        **tiles.arguments,
    )
    return layout.back(grad_x), layout.back(grad_v), *sums_of(sums, slope, chosen["WANTS"], x)


def variants() -> Iterator[Variant]:
    """The forms of the kernels."""
    for case in CASES:
        x = torch.empty(case.times, 16, 64, 64, dtype=case.dtype, device="meta")
        v, slope = torch.empty_like(x[0], dtype=torch.float32), case.slope(64)
        for run, kept in ((lif, ""), (lif_packed, ", bits")):
            yield from forms_of(f"lif, {case}{kept}", partial(run, x, v, **case.forward), forward=True)
        inputs = x, v, x, v, slope
        yield from forms_of(f"lif, {case}", partial(lif_backward, *inputs, **case.backward), forward=False)
