# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
"""Neurons over all time steps, a tile a program: currents, or what is still to be normalised, to spikes."""

import triton
import triton.language as tl

from .bits import store_bits
from .membrane import after, charge, constant_at
from .tiles import SIZES, channels_of, sizes_of, tile_of


@triton.jit
def affine_of(mean, var, weight, bias, channel, channels, eps):
    """What normalises, per channel: (x - shift) * gain + offset; None where nothing does."""
    if mean is None:
        affine = None
    else:
        known = channel < channels
        shift = tl.load(mean + channel, mask=known, other=0.0)
        gain = tl.div_rn(1.0, tl.sqrt_rn(tl.load(var + channel, mask=known, other=1.0) + eps))
        offset = 0.0
        if weight is not None:
            gain = gain * tl.load(weight + channel, mask=known, other=1.0).to(tl.float32)
        if bias is not None:
            offset = tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
        affine = shift, gain, offset
    return affine


@triton.jit
def current_at(x, residual, affine, at, there):
    """What charges the membranes of a tile at one step."""
    current = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if affine is not None:
        current = (current - affine[0]) * affine[1] + affine[2]
    if residual is not None:
        current += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
    return current


@triton.jit
def start_of(start, rest, place, there, ONE_START: tl.constexpr):
    """Membranes before the first step: at rest, or given, each or one for all."""
    if start is None:
        v = tl.full(place.shape, rest, tl.float32)
    elif ONE_START:
        v = tl.full(place.shape, tl.load(start), tl.float32)
    else:
        v = tl.load(start + place, mask=there, other=0.0)
    return v


@triton.jit(do_not_specialize=[*SIZES, "threshold_step"])
def fire_kernel(
    x,
    spikes,
    start,
    last,
    residual,
    mean,
    var,
    weight,
    bias,
    thresholds,
    time_constant,
    seen,
    bits,
    outer,
    channels,
    inner,
    threshold_step,
    tau,
    threshold,
    reset,
    eps,
    near,
    T: tl.constexpr,
    HARD: tl.constexpr,
    DECAYS: tl.constexpr,
    ONE_START: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Spikes (T, step), the last membrane; of every program the moments (T, 4) of its membranes, and spikes as bits,
    if asked for."""
    tile, block = tl.program_id(0), tl.program_id(1)
    positions, all_channels, together, size = sizes_of(outer, channels, inner, UNIT, LAST)
    channel = channels_of(block, ROWS, LANES, LAST)
    place, there = tile_of(tile, channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
    affine = affine_of(mean, var, weight, bias, channel, all_channels, eps)
    own_tau = constant_at(tau, time_constant, 0, 0)
    v = start_of(start, reset, place, there, ONE_START)
    if bits is not None:  # a tile of bytes, each of eight neighbours
        tl.static_assert(UNIT % 8 == 0)
        eighths, groups, near_by, bytes_of_step = sizes_of(outer, channels, inner, UNIT // 8, LAST)
        group = channels_of(block, ROWS, LANES // 8, LAST)
        byte, is_byte = tile_of(tile, group, eighths, groups, near_by, ROWS, LANES // 8, LAST, INDEX)
    for t in range(T):
        at = t * size + place
        own_threshold = constant_at(threshold, thresholds, t, threshold_step)
        h = charge(current_at(x, residual, affine, at, there), v, own_tau, reset, DECAYS)
        tl.store(spikes + at, tl.where(h >= own_threshold, 1.0, 0.0), mask=there)
        if bits is not None:
            store_bits(bits, h >= own_threshold, t * bytes_of_step + byte, is_byte)
        v = after(h, own_threshold, reset, HARD)
        if seen is not None:
            row = seen + ((tile * tl.num_programs(1) + block) * T + t) * 4
            distance = tl.where(there, h - own_threshold, 0.0)
            tl.store(row, tl.sum(there.to(tl.float32)))
            tl.store(row + 1, tl.sum(distance))
            tl.store(row + 2, tl.sum(distance * distance))
            tl.store(row + 3, tl.sum((there & (tl.abs(distance) < near)).to(tl.float32)))
    if last is not None:
        tl.store(last + place, v, mask=there)
