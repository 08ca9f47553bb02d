# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportOptionalSubscript=false
"""Batch normalisation without a neuron, a tile at a time: values, sums of gradients, gradients."""

import triton
import triton.language as tl

from .channel_sums import correction_of, store_channel_sums
from .fire import affine_of, current_at
from .tiles import SIZES, channels_of, sizes_of, tile_of


@triton.jit(do_not_specialize=SIZES)
def normalise_kernel(
    x,
    normal,
    mean,
    var,
    weight,
    bias,
    outer,
    channels,
    inner,
    eps,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Normalised values."""
    positions, all_channels, together, _ = sizes_of(outer, channels, inner, UNIT, LAST)
    channel = channels_of(tl.program_id(1), ROWS, LANES, LAST)
    place, there = tile_of(tl.program_id(0), channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
    affine = affine_of(mean, var, weight, bias, channel, all_channels, eps)
    tl.store(normal + place, current_at(x, None, affine, place, there), mask=there)


@triton.jit(do_not_specialize=[*SIZES, "each"])
def add_kernel(
    x,
    grad,
    mean,
    sums,
    outer,
    channels,
    inner,
    each,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Sums of the gradient, and of its product with x - mean, (splits, 2, channels)."""
    split, block = tl.program_id(0), tl.program_id(1)
    positions, all_channels, together, _ = sizes_of(outer, channels, inner, UNIT, LAST)
    channel = channels_of(block, ROWS, LANES, LAST)
    shift = tl.load(mean + channel, mask=channel < all_channels, other=0.0)
    plain = tl.zeros((ROWS, LANES), tl.float32)
    with_x = tl.zeros((ROWS, LANES), tl.float32)
    for tile in range(split * each, tl.minimum(split * each + each, tl.cdiv(positions, ROWS if LAST else LANES))):
        place, there = tile_of(tile, channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
        own = tl.load(grad + place, mask=there, other=0.0).to(tl.float32)
        plain += own
        with_x += own * (tl.load(x + place, mask=there, other=0.0).to(tl.float32) - shift)
    store_channel_sums(sums + split * 2 * all_channels, plain, with_x, channel, all_channels, LAST)


@triton.jit(do_not_specialize=SIZES)
def finish_kernel(
    x,
    grad,
    grad_x,
    mean,
    var,
    weight,
    level,
    tilt,
    outer,
    channels,
    inner,
    eps,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Gradient of x."""
    positions, all_channels, together, _ = sizes_of(outer, channels, inner, UNIT, LAST)
    channel = channels_of(tl.program_id(1), ROWS, LANES, LAST)
    place, there = tile_of(tl.program_id(0), channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
    affine = affine_of(mean, var, weight, None, channel, all_channels, eps)
    correction = correction_of(level, tilt, channel, all_channels)
    own = tl.load(grad + place, mask=there, other=0.0).to(tl.float32)
    if correction is not None:
        distance = tl.load(x + place, mask=there, other=0.0).to(tl.float32) - affine[0]
        own = own - correction[0] - distance * correction[1]
    tl.store(grad_x + place, own * affine[1], mask=there)
