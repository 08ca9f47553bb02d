# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
"""Sums of a normalisation's gradients per channel: what programs leave, and what is made of it."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch
from .moments import CHANNELS, SPLITS, partial_at
from .tiles import Tiles


@triton.jit
def store_channel_sums(to, plain, with_x, channel, channels, LAST: tl.constexpr):
    """Sums of a tile over its positions, (2, channels) at `to`."""
    AXIS: tl.constexpr = 0 if LAST else 1
    known = channel < channels
    tl.store(to + channel, tl.sum(plain, AXIS, keep_dims=True), mask=known)
    tl.store(to + channels + channel, tl.sum(with_x, AXIS, keep_dims=True), mask=known)


@triton.jit
def correction_of(level, tilt, channel, channels):
    """What the statistics of a batch take from the gradient, per channel; None where they were given."""
    if level is None:
        correction = None
    else:
        known = channel < channels
        correction = (
            tl.load(level + channel, mask=known, other=0.0),
            tl.load(tilt + channel, mask=known, other=0.0),
        )
    return correction


@triton.jit(do_not_specialize=["splits", "channels", "count"])
def settle_back_kernel(
    sums,
    var,
    grad_weight,
    grad_bias,
    level,
    tilt,
    splits,
    channels,
    count,
    eps,
    SPLITS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Gradients of weight and bias, and what the batch's statistics take from that of x."""
    channel = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    plain = tl.zeros((1, CHANNELS), tl.float64)
    with_x = tl.zeros((1, CHANNELS), tl.float64)
    for first in range(0, splits, SPLITS):
        at, there, _ = partial_at(sums, first, splits, channel, channels, 2, SPLITS)
        plain += tl.sum(tl.load(at, mask=there, other=0.0).to(tl.float64), 0, keep_dims=True)
        with_x += tl.sum(tl.load(at + channels, mask=there, other=0.0).to(tl.float64), 0, keep_dims=True)
    known, number = channel < channels, tl.cast(count, tl.float64)
    inverse = 1 / (tl.load(var + channel, mask=known, other=1.0).to(tl.float64) + eps)
    tl.store(grad_weight + channel, with_x * tl.sqrt(inverse), mask=known)
    tl.store(grad_bias + channel, plain, mask=known)
    tl.store(level + channel, plain / number, mask=known)
    tl.store(tilt + channel, with_x * inverse / number, mask=known)


def room_for_channel_sums(x: Tensor, tiles: Tiles) -> Tensor:
    """(splits, 2, channels)."""
    return x.new_empty(tiles.splits, 2, tiles.channels, dtype=torch.float32)


def settled(sums: Tensor, var: Tensor, tiles: Tiles, times: int, eps: float) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Gradients of weight and bias, and `level` and `tilt`, by which that of x differs where x was measured."""
    grad_weight, grad_bias, level, tilt = results = [torch.empty_like(var) for _ in range(4)]
    launch(
        *(settle_back_kernel, (triton.cdiv(tiles.channels, CHANNELS),), sums, var, *results),
        *(tiles.splits, tiles.channels, tiles.positions * times, eps),
        SPLITS=SPLITS,
        CHANNELS=CHANNELS,
    )
    return grad_weight, grad_bias, {"level": level, "tilt": tilt}
