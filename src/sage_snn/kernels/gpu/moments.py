# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
"""Mean and variance of every channel: sums of programs, each about a centre of its own, and one that joins them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch
from .membrane import constant_at
from .tiles import SIZES, Tiles, channels_of, sizes_of, tile_of

CHANNELS, SPLITS = 16, 64  # of a tile of partial sums


@triton.jit(do_not_specialize=[*SIZES, "each"])
def measure_kernel(
    x,
    found,
    outer,
    channels,
    inner,
    each,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """A program's centre of each channel, the mean of its first tile, and sums of x - centre and of its square.

    They are (splits, 3, channels); near the mean nothing cancels in float32.
    """
    split, block = tl.program_id(0), tl.program_id(1)
    AXIS: tl.constexpr = 0 if LAST else 1
    positions, all_channels, together, size = sizes_of(outer, channels, inner, UNIT, LAST)
    channel = channels_of(block, ROWS, LANES, LAST)
    place, there = tile_of(split * each, channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
    values = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    count = tl.sum(there.to(tl.float32), AXIS, keep_dims=True)
    centre = tl.div_rn(tl.sum(values, AXIS, keep_dims=True), tl.maximum(count, 1.0))
    first = tl.zeros((ROWS, LANES), tl.float32)
    second = tl.zeros((ROWS, LANES), tl.float32)
    for tile in range(split * each, tl.minimum(split * each + each, tl.cdiv(positions, ROWS if LAST else LANES))):
        place, there = tile_of(tile, channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
        for t in range(T):
            values = tl.load(x + t * size + place, mask=there, other=0.0).to(tl.float32)
            distance = tl.where(there, values - centre, 0.0)
            first += distance
            second += distance * distance
    row, known = found + split * 3 * all_channels + channel, channel < all_channels
    tl.store(row, centre, mask=known)
    tl.store(row + all_channels, tl.sum(first, AXIS, keep_dims=True), mask=known)
    tl.store(row + 2 * all_channels, tl.sum(second, AXIS, keep_dims=True), mask=known)


@triton.jit
def partial_at(found, first, splits, channel, channels, KINDS: tl.constexpr, SPLITS: tl.constexpr):
    """Where the first of `KINDS` sums of so many splits lie, and which are there, (SPLITS, channels)."""
    split = (first + tl.arange(0, SPLITS))[:, None]
    return found + split * KINDS * channels + channel, (split < splits) & (channel < channels), split


@triton.jit(do_not_specialize=["splits", "channels", "width", "positions", "times"])
def settle_kernel(
    found,
    mean,
    var,
    running_mean,
    running_var,
    share,
    splits,
    channels,
    width,
    positions,
    times,
    momentum,
    SPLITS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Mean and biased variance, in float64 until they are stored; a split has `width` positions, the last what is left.

    With d = x - centre and m = mean - centre, the sum of (x - mean)^2 is that of d^2 - 2 m d + m^2. Running statistics
    move towards the mean and the unbiased variance by the momentum, or by `share`.
    """
    channel = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    total = tl.zeros((1, CHANNELS), tl.float64)
    for first in range(0, splits, SPLITS):
        at, there, split = partial_at(found, first, splits, channel, channels, 3, SPLITS)
        count = (tl.minimum(width, positions - split * width) * times).to(tl.float64)
        centre = tl.load(at, mask=there, other=0.0).to(tl.float64)
        plain = tl.load(at + channels, mask=there, other=0.0).to(tl.float64)
        total += tl.sum(tl.where(there, centre * count + plain, 0.0), 0, keep_dims=True)
    everything = tl.cast(positions, tl.float64) * times
    average = total / everything
    squares = tl.zeros((1, CHANNELS), tl.float64)
    for first in range(0, splits, SPLITS):
        at, there, split = partial_at(found, first, splits, channel, channels, 3, SPLITS)
        count = (tl.minimum(width, positions - split * width) * times).to(tl.float64)
        shift = average - tl.load(at, mask=there, other=0.0).to(tl.float64)
        plain = tl.load(at + channels, mask=there, other=0.0).to(tl.float64)
        squared = tl.load(at + 2 * channels, mask=there, other=0.0).to(tl.float64)
        about_mean = squared - 2 * shift * plain + count * shift * shift
        squares += tl.sum(tl.where(there, about_mean, 0.0), 0, keep_dims=True)
    squares = tl.where(squares < 0, 0.0, squares)  # NaN stays NaN
    known = channel < channels
    tl.store(mean + channel, average, mask=known)
    tl.store(var + channel, squares / everything, mask=known)
    if running_mean is not None:
        moved = constant_at(momentum, share, 0, 0)
        move(running_mean + channel, average, moved, known)
        move(running_var + channel, squares / (everything - 1), moved, known)


@triton.jit
def move(running, value, share, known):
    """Running statistics, by a share of the way towards a value."""
    before = tl.load(running, mask=known, other=0.0).to(tl.float64)
    tl.store(running, before + share * (value - before), mask=known)


def measured(
    x: Tensor,
    tiles: Tiles,
    times: int,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    share: Tensor | None,
    momentum: float,
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel of x, `times` steps of tiles, float32; running ones are moved."""
    found = x.new_empty(tiles.splits, 3, tiles.channels, dtype=torch.float32)
    mean, var = (x.new_empty(tiles.channels, dtype=torch.float32) for _ in range(2))
    grid, sizes = (tiles.splits, tiles.blocks), tiles.arguments
    launch(measure_kernel, grid, x, found, each=tiles.each, T=times, **sizes)
    width = tiles.each * tiles.shape[not tiles.is_last]
    launch(
        *(settle_kernel, (triton.cdiv(tiles.channels, CHANNELS),), found, mean, var),
        *((running_mean, running_var, share) if running_var is not None else (None, None, None)),
        *(tiles.splits, tiles.channels, width, tiles.positions, times, momentum),
        SPLITS=SPLITS,
        CHANNELS=CHANNELS,
    )
    return mean, var
