# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""Back through time for one tile after the other; the charged membranes are computed anew from the currents.

Up to `KEPT` steps they stay in registers, beyond that they pass through a scratch buffer. With a normalisation before
the neuron two passes are made: one adds up what its gradients need, per channel, and one writes the gradient of x.
"""

import triton
import triton.language as tl

from .channel_sums import correction_of, store_channel_sums
from .fire import affine_of, current_at, start_of
from .membrane import after, charge, constant_at, derivative, grad_of_spike, past_reset, tau_derivative
from .tiles import SIZES, channels_of, sizes_of, tile_of

KEPT_STEPS, KINDS_OF_SUMS = 8, 5
KEPT = tl.constexpr(KEPT_STEPS)
SLOPE_SIZES = ["slope_step", "second", "third", "stride0", "stride1", "stride2"]
KINDS = tl.constexpr(KINDS_OF_SUMS)  # over neurons: of slope, threshold, tau, squares of spikes, squares of currents


@triton.jit
def slope_places(place, second, third, stride0, stride1, stride2, EACH: tl.constexpr):
    """Where the slopes of neurons lie, which broadcast over the three axes of a step in memory; 0 if all share one."""
    if EACH:
        line = place // third
        places = line // second * stride0 + line % second * stride1 + place % third * stride2
    else:
        places = 0
    return places


@triton.jit
def slope_at(slopes, t, step, places, there, EACH: tl.constexpr):
    """The slope of a step, or those of its neurons."""
    own = slopes + t * step
    return (tl.load(own + places, mask=there, other=1.0) if EACH else tl.load(own)).to(tl.float32)


@triton.jit
def step_back(
    h,
    v,
    grad_v,
    of_spike,
    slope,
    tau,
    threshold,
    reset,
    sums,
    row,
    T: tl.constexpr,
    SHAPE: tl.constexpr,
    HARD: tl.constexpr,
    DECAYS: tl.constexpr,
    DETACHES: tl.constexpr,
    WANTS: tl.constexpr,
):
    """Gradients of the current and of the membrane before, v, from those of the spike and of the membrane after."""
    distance = h - threshold
    blame = grad_of_spike(of_spike, h, grad_v, threshold, reset, HARD, DETACHES) * derivative(distance, slope, SHAPE)
    grad = blame + past_reset(grad_v, h, threshold, HARD)
    leak = grad / tau
    current = leak if DECAYS else grad
    if WANTS[0]:  # all shapes are f(slope * distance)
        tl.store(sums + row, tl.sum(blame * distance / slope))
    if WANTS[1]:
        of_threshold = blame if HARD else blame + tl.where(h >= threshold, grad_v, 0.0)
        tl.store(sums + T + row, -tl.sum(of_threshold))
        tl.store(sums + 2 * T + row, tl.sum(grad * tau_derivative(h, v, tau, reset, DECAYS)))
    if WANTS[2]:
        tl.store(sums + 3 * T + row, tl.sum(of_spike * of_spike))
        tl.store(sums + 4 * T + row, tl.sum(current * current))
    return current, grad - leak


@triton.jit
def undo(
    t,
    membranes,
    carried,
    tensors,
    at,
    there,
    affine,
    correction,
    slope,
    neuron,
    T: tl.constexpr,
    SHAPE: tl.constexpr,
    HARD: tl.constexpr,
    DECAYS: tl.constexpr,
    DETACHES: tl.constexpr,
    WANTS: tl.constexpr,
):
    """One step of a tile: what is carried, (gradient of the membrane, two sums per channel), one step further back.

    `membranes` are the charged ones, those of the step before, and those before all steps.
    """
    h, previous, first = membranes
    x, grad_spikes, grad_x, grad_residual, sums, row = tensors
    tau, threshold, thresholds, threshold_step, reset = neuron
    grad_v, plain, with_x = carried
    v = first
    if WANTS[1]:
        earlier = constant_at(threshold, thresholds, tl.maximum(t - 1, 0), threshold_step)
        v = tl.where(t > 0, after(previous, earlier, reset, HARD), first)
    of_spike = tl.zeros_like(h)
    if grad_spikes is not None:
        of_spike = tl.load(grad_spikes + at, mask=there, other=0.0).to(tl.float32)
    own_threshold = constant_at(threshold, thresholds, t, threshold_step)
    current, grad_v = step_back(
        *(h, v, grad_v, of_spike, slope, tau, own_threshold, reset, sums, row + t),
        *(T, SHAPE, HARD, DECAYS, DETACHES, WANTS),
    )
    if grad_residual is not None:
        tl.store(grad_residual + at, current, mask=there)
    if affine is None:
        tl.store(grad_x + at, current, mask=there)
    else:
        distance = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - affine[0]
        plain += current
        with_x += current * distance
        if grad_x is not None:
            if correction is not None:
                current = current - correction[0] - distance * correction[1]
            tl.store(grad_x + at, current * affine[1], mask=there)
    return grad_v, plain, with_x


@triton.jit(do_not_specialize=[*SIZES, "each", "threshold_step", *SLOPE_SIZES])
def back_kernel(
    x,
    grad_spikes,
    grad_last,
    slopes,
    start,
    residual,
    mean,
    var,
    weight,
    bias,
    level,
    tilt,
    thresholds,
    time_constant,
    grad_x,
    grad_start,
    grad_residual,
    channel_sums,
    sums,
    scratch,
    outer,
    channels,
    inner,
    each,
    threshold_step,
    slope_step,
    second,
    third,
    stride0,
    stride1,
    stride2,
    tau,
    threshold,
    reset,
    eps,
    T: tl.constexpr,
    SHAPE: tl.constexpr,
    HARD: tl.constexpr,
    DECAYS: tl.constexpr,
    DETACHES: tl.constexpr,
    EACH_SLOPE: tl.constexpr,
    ONE_START: tl.constexpr,
    WANTS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Gradients of what charges the neurons of `each` tiles, and of the membranes that they started from.

    Null is what is not asked for; `level` and `tilt` are what the statistics of a batch take from the gradient.
    """
    split, block = tl.program_id(0), tl.program_id(1)
    positions, all_channels, together, size = sizes_of(outer, channels, inner, UNIT, LAST)
    channel = channels_of(block, ROWS, LANES, LAST)
    affine = affine_of(mean, var, weight, bias, channel, all_channels, eps)
    correction = correction_of(level, tilt, channel, all_channels)
    own_tau = constant_at(tau, time_constant, 0, 0)
    options: tl.constexpr = (T, SHAPE, HARD, DECAYS, DETACHES, WANTS)
    neuron = own_tau, threshold, thresholds, threshold_step, reset
    plain = tl.zeros((ROWS, LANES), tl.float32)
    with_x = tl.zeros((ROWS, LANES), tl.float32)
    for tile in range(split * each, tl.minimum(split * each + each, tl.cdiv(positions, ROWS if LAST else LANES))):
        place, there = tile_of(tile, channel, positions, all_channels, together, ROWS, LANES, LAST, INDEX)
        places = slope_places(place, second, third, stride0, stride1, stride2, EACH_SLOPE)
        row = (tile * tl.num_programs(1) + block) * KINDS * T
        tensors = x, grad_spikes, grad_x, grad_residual, sums, row
        first = start_of(start, reset, place, there, ONE_START)
        grad_v = tl.zeros((ROWS, LANES), tl.float32)
        if grad_last is not None:
            grad_v = tl.load(grad_last + place, mask=there, other=0.0).to(tl.float32)
        carried = grad_v, plain, with_x
        v = first
        if T <= KEPT:
            held = (v,)  # what comes after are charged membranes
            for t in tl.static_range(T):
                at = t * size + place
                h = charge(current_at(x, residual, affine, at, there), v, own_tau, reset, DECAYS)
                v = after(h, constant_at(threshold, thresholds, t, threshold_step), reset, HARD)
                held = held + (h,)  # noqa: RUF005 -- Triton knows no star here
            for t in tl.static_range(T - 1, -1, -1):
                at = t * size + place
                slope = slope_at(slopes, t, slope_step, places, there, EACH_SLOPE)
                membranes = held[t + 1], held[t], first
                carried = undo(t, membranes, carried, tensors, at, there, affine, correction, slope, neuron, *options)
        else:
            for t in range(T):
                at = t * size + place
                h = charge(current_at(x, residual, affine, at, there), v, own_tau, reset, DECAYS)
                v = after(h, constant_at(threshold, thresholds, t, threshold_step), reset, HARD)
                tl.store(scratch + at, h, mask=there)
            tl.debug_barrier()  # other threads may read what this one wrote
            for back in range(T):
                t = T - 1 - back
                at = t * size + place
                slope = slope_at(slopes, t, slope_step, places, there, EACH_SLOPE)
                h = tl.load(scratch + at, mask=there, other=0.0)
                previous = tl.load(scratch + tl.maximum(t - 1, 0) * size + place, mask=there, other=0.0)
                membranes = h, previous, first
                carried = undo(t, membranes, carried, tensors, at, there, affine, correction, slope, neuron, *options)
        grad_v, plain, with_x = carried
        if grad_start is not None:
            tl.store(grad_start + place, grad_v, mask=there)
    if channel_sums is not None:
        store_channel_sums(channel_sums + split * 2 * all_channels, plain, with_x, channel, all_channels, LAST)
