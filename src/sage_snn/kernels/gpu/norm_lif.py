# pyright: reportUnknownVariableType=false
"""Batch normalisation and LIF in one on a device: the operators of `kernels/norm_lif.py` in Triton.

In training forward measures, puts the moments together and fires; backward goes through time twice, once to add up what
the gradients of a normalisation need, and once to write.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kept import room_for_words
from ..norm import ready, step_sizes, values_of
from .arguments import (
    backward_of,
    constants_of,
    moments,
    room_for_membranes,
    room_for_moments,
    room_for_sums,
    slopes_of,
    sums_of,
    tiles_to_add,
)
from .back import back_kernel
from .cases import CASES
from .channel_sums import room_for_channel_sums, settled
from .fire import fire_kernel
from .forms import forms_of
from .launch import launch
from .moments import measured
from .tiles import Tiles
from .variants import Variant

FROM_REST: dict[str, Any] = {"start": None, "ONE_START": False}
NOTHING: dict[str, Any] = dict.fromkeys(
    ["grad_last", "grad_start", "grad_x", "grad_residual", "channel_sums", "level", "tilt", "sums"]
)


def norm_lif(*inputs: Tensor | None, **options: Any) -> tuple[Tensor, ...]:
    """Spikes, mean and variance of each channel, moments."""
    return norm_lif_kept(*inputs, None, None, None, momentum=0.0, packs=False, **options)[:4]  # pyright: ignore


def norm_lif_kept(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    share: Tensor | None,
    *,
    momentum: float,
    packs: bool,
    times: int,
    eps: float,
    near: float | None = None,
    **options: Any,
) -> tuple[Tensor, ...]:
    """The same and the spikes as bits, if they are to be packed; running statistics are moved."""
    _, *sizes, last = step_sizes(x, times)
    values, tiles = values_of(x, x.dtype, last), Tiles.of(*sizes, last=last)
    if mean is None or var is None:
        mean, var = measured(values, tiles, times, running_mean, running_var, share, momentum)
    else:  # new tensors: backward needs them as they are now
        mean, var = (t.to(torch.float32, copy=True).contiguous() for t in (mean, var))
    spikes, seen = torch.empty_like(values), room_for_moments(values, tiles, times, near)
    words = room_for_words(values, packs)
    launch(
        *(fire_kernel, (tiles.count, tiles.blocks), values, spikes),
        last=None,
        seen=seen,
        bits=words.view(torch.uint8) if packs else None,
        near=near or 0.0,
        T=times,
        **_normal(weight, bias, mean, var, residual, eps, last),
        **FROM_REST,
        **constants_of(**options),
        **tiles.arguments,
    )
    return spikes, mean, var, moments(seen, x), words


def norm_lif_backward(
    grad_spikes: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    residual: Tensor | None,
    slope: Tensor,
    *,
    times: int,
    eps: float,
    training: bool,
    shape: str,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Gradients of x, weight, bias, residual and slope; sums for the constants, and of squares."""
    *full, last = step_sizes(x, times)
    values, chosen, tiles = values_of(x, x.dtype, last), backward_of(**options), Tiles.of(*full[1:], last=last)
    adding = tiles_to_add(tiles, times)
    of_spikes, grad_x = values_of(grad_spikes, grad_spikes.dtype, last), torch.empty_like(values)
    results: dict[str, Any] = {
        "grad_x": grad_x,
        "grad_residual": None if residual is None else torch.empty_like(values),
    }
    sums, of_channels = room_for_sums(x, adding, times, chosen["WANTS"]), room_for_channel_sums(x, adding)
    shared: dict[str, Any] = {
        "scratch": room_for_membranes(values, times),
        "T": times,
        "SHAPE": shape,
        **_normal(weight, bias, mean, var, residual, eps, last),
        **FROM_REST,
        **slopes_of(slope, full, (1, 3, 2) if last else (1, 2, 3), x),
        **chosen,
    }
    added: dict[str, Any] = {"channel_sums": of_channels, "sums": sums, "each": adding.each, **adding.arguments}
    grid = adding.splits, adding.blocks
    launch(back_kernel, grid, values, of_spikes, **NOTHING | shared | added | ({} if training else results))
    grad_weight, grad_bias, correction = settled(of_channels, var, adding, times, eps)
    if training:
        written: dict[str, Any] = {"each": 1, **tiles.arguments, **results, **correction}
        shared["WANTS"] = False, False, False
        launch(back_kernel, (tiles.count, tiles.blocks), values, of_spikes, **NOTHING | shared | written)
    of_residual = results["grad_residual"]
    of_residual = x.new_empty(0) if of_residual is None else of_residual
    return grad_x, grad_weight, grad_bias, of_residual, *sums_of(sums, slope, chosen["WANTS"], x)


def _normal(
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    residual: Tensor | None,
    eps: float,
    last: bool,
) -> dict[str, Any]:
    """What is done to x before it charges membranes."""
    gain, offset = (None if t is None else ready(t, t.dtype) for t in (weight, bias))
    added = None if residual is None else values_of(residual, residual.dtype, last)
    return {"weight": gain, "bias": offset, "mean": mean, "var": var, "residual": added, "eps": eps}


def variants() -> Iterator[Variant]:
    """The forms of the kernels."""
    for number, case in enumerate(CASES):
        x = torch.empty(case.times * 16, 64, 32, 32, dtype=case.dtype, device="meta")
        for last in (False, True):
            values = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
            name = f"{case}, {'channels last' if last else 'planes'}"
            per_channel = [torch.empty(64, device="meta")] * 4
            residual = values if number % 2 else None
            options: dict[str, Any] = {"times": case.times, "eps": 1e-5}
            inputs = values, *per_channel[:2], None, None, residual
            yield from forms_of(name, partial(norm_lif, *inputs, **options, **case.forward), forward=True)
            kept: dict[str, Any] = {"momentum": 0.1, "packs": True}
            inputs = *inputs, *per_channel[:2], None
            keeping = partial(norm_lif_kept, *inputs, **kept, **options, **case.forward)
            yield from forms_of(f"{name}, kept", keeping, forward=True)
            inputs = values, values, *per_channel, residual, case.slope(64)
            options |= {"training": last or case.times != 4}
            yield from forms_of(name, partial(norm_lif_backward, *inputs, **options, **case.backward), forward=False)
