"""Batch normalisation and leaky integrate-and-fire in one, from rest: a kernel (C++, or Triton); its twin is beside it.

x: (T*B, C, ...) with T time steps, B batch, C channels, which may lie last in memory. Between forward and backward only
x and two numbers per channel are kept, and the residual if one is added. The slope is a tensor, in the shapes of
slopes.py; backward reads it as it is *then* (see `lif.LIF`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .arguments import (
    BACKWARD,
    FORWARD,
    Constants,
    Sums,
    backward_options,
    extra_gradients,
    fake_moments,
    fake_sums,
    forward_options,
    or_nothing,
    room_for_moments,
    runs_natively,
    wants_gradients,
)
from .bits import mark_spikes
from .calls import SHAPE_CODES, function, operator, pointer, register
from .kept import STATISTICS, Kept, Momentum, keeps_on, packs, room_for_words
from .membrane import UNWATCHED, Membrane, Watch, require_constants
from .norm import (
    in_precision,
    is_last,
    keep_statistics,
    precision,
    ready,
    require_channels,
    require_same_shape,
    require_several_values,
    running_statistics,
    step_sizes,
    together,
    values_of,
)
from .norm_lif_twin import norm_lif_twin
from .room import room_like
from .slopes import NeuronSlopes, require_slopes


def batch_norm_lif(
    norm: nn.BatchNorm1d | nn.BatchNorm2d,
    x: Tensor,
    slope: Tensor,
    membrane: Membrane,
    times: int,
    shape: str = "Sigmoid",
    residual: Tensor | None = None,
    watch: Watch = UNWATCHED,
) -> Tensor:
    """Spikes (T*B, C, ...) of `norm(x)`, with a residual of `norm(x) + residual`.

    A module that scales its output by a constant `factor` is known too.
    """
    mean, var, options = running_statistics(norm)
    factor = getattr(norm, "factor", None)
    weight = norm.weight if factor is None else norm.weight * factor
    options |= {"shape": shape, "residual": residual, "watch": watch}
    return norm_lif(x, weight, norm.bias, mean, var, slope, membrane, times, **options)


def norm_lif(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    slope: Tensor,
    membrane: Membrane,
    times: int,
    *,
    training: bool,
    momentum: Momentum = 0.1,
    eps: float = 1e-5,
    shape: str = "Sigmoid",
    residual: Tensor | None = None,
    watch: Watch = UNWATCHED,
) -> Tensor:
    """Spikes (T*B, C, ...) in the precision of x; arguments up to `running_var` and by name as in `F.batch_norm`.

    The residual (T*B, C, ...) is added to what has been normalised.
    """
    require_slopes(slope, (times, x.shape[0] // times, *x.shape[1:]))
    require_constants(membrane, times)
    require_channels(x, weight, bias, running_mean, running_var)
    require_same_shape(x, residual)
    if not x.numel() or not runs_natively(x, slope, shape):
        return norm_lif_twin(
            *(x, weight, bias, running_mean, running_var, slope, membrane, times, training, momentum, eps, shape),
            *(residual, watch),
        )
    if training:
        require_several_values(x)
        statistics = None, None
    else:
        statistics = running_mean, running_var
    inputs = x, weight, bias, *statistics, residual
    threshold, tau = membrane.tensors
    near = None if watch.membranes is None else watch.near
    running = (running_mean, running_var) if training else (None, None)
    kept = Kept(packs(x, together(x)), momentum, *running) if keeps_on(x) else None
    made: Any
    if wants_gradients(x, weight, bias, residual, slope, threshold, tau, watch.gradients):
        extras = threshold, tau, watch.gradients, near, kept
        made = NativeNormLIF.apply(*inputs, slope, membrane.numbers, shape, times, eps, *extras)
    else:
        options = forward_options(membrane.numbers, threshold, tau, near)
        made = _made(inputs, kept, times=times, eps=eps, **options)
    spikes, mean, var, seen = made
    mark_spikes(spikes, None if kept is None else kept.words)
    if training and kept is None:
        keep_statistics(x, mean, var, running_mean, running_var, momentum)
    if watch.membranes is not None:
        watch.membranes(seen)
    return spikes


def _made(inputs: tuple[Any, ...], kept: Kept | None, **options: Any) -> tuple[Tensor, ...]:
    """Spikes, mean, variance and moments by the operator, and what is kept if anything is."""
    if kept is None:
        return operator("norm_lif", inputs[0])(*inputs, **options)
    told = *inputs, *kept.statistics
    *made, words = torch.ops.sage_snn.norm_lif_kept(*told, packs=kept.packs, **kept.options, **options)
    kept.words = words if kept.packs else None
    return tuple(made)


class NativeNormLIF(torch.autograd.Function):
    """Spikes, mean and biased variance of each channel; with a mean and a variance given, those are used."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        given_mean: Tensor | None,
        given_var: Tensor | None,
        residual: Tensor | None,
        slope: Tensor,
        membrane: Membrane,
        shape: str,
        times: int,
        eps: float,
        threshold: Tensor | None,
        tau: Tensor | None,
        gradients: Tensor | None,
        near: float | None,
        kept: Kept | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of x's positions, all time steps."""
        ctx.set_materialize_grads(False)  # of three outputs that have none
        inputs = (x, weight, bias, given_mean, given_var, residual)
        options = forward_options(membrane, threshold, tau, near)
        spikes, mean, var, seen = _made(inputs, kept, times=times, eps=eps, **options)
        ctx.mark_non_differentiable(mean, var, seen)
        ctx.save_for_backward(x, weight, bias, mean, var, residual, threshold, tau)
        # On the context, not saved: a saved slope could not be written before backward.
        ctx.slope, ctx.membrane, ctx.shape = slope, membrane, shape
        ctx.times, ctx.eps, ctx.training = times, eps, given_mean is None
        return spikes, mean, var, seen

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_spikes: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight, bias, residual, slope, threshold and tau; sums of squares."""
        *inputs, threshold, tau = ctx.saved_tensors
        weight, bias, residual = inputs[1], inputs[2], inputs[5]
        wants_residual, wants_slope, wants = *ctx.needs_input_grad[5:7], ctx.needs_input_grad[11:14]
        grads = operator("norm_lif_backward", grad_spikes)(
            *(grad_spikes, *inputs, ctx.slope),
            times=ctx.times,
            eps=ctx.eps,
            training=ctx.training,
            shape=ctx.shape,
            **backward_options(ctx.membrane, threshold, tau, wants_slope, wants),
        )
        return (
            grads[0],
            None if weight is None else in_precision(grads[1], weight.dtype),
            None if bias is None else in_precision(grads[2], bias.dtype),
            *(None, None),
            grads[3].to(residual.dtype) if wants_residual else None,
            grads[4] if wants_slope else None,
            *(None, None, None, None),
            *extra_gradients(grads[5:], threshold, wants),
            *(None, None),
        )


def _norm_lif(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    residual: Tensor | None,
    *,
    times: int,
    eps: float,
    near: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, channels, constants = precision(x), x.shape[1], Constants(times, **options)
    *sizes, last = step_sizes(x, times)
    values, gain, offset = values_of(x, dtype, last), ready(weight, dtype), ready(bias, dtype)
    added = None if residual is None else values_of(residual, dtype, last)
    # New tensors also when given: backward needs them as they are now.
    used = [values.new_empty(channels) if t is None else t.to(dtype, copy=True).contiguous() for t in (mean, var)]
    spikes = room_like(values)
    seen = room_for_moments(x, times, near)
    function("sage_norm_lif", dtype)(
        *(values.data_ptr(), pointer(gain), pointer(offset), used[0].data_ptr(), used[1].data_ptr()),
        *(pointer(added), spikes.data_ptr(), *sizes, last, eps, mean is None),
        *(*constants.arguments, near or 0.0, pointer(seen), torch.get_num_threads()),
    )
    return in_precision(spikes, x.dtype), used[0], used[1], or_nothing(seen, x)


def _norm_lif_backward(
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
    dtype, channels = precision(x), x.shape[1]
    *sizes, last = step_sizes(x, times)
    constants, sums = Constants(times, **options), Sums(times, **options)
    values, gain, offset = values_of(x, dtype, last), ready(weight, dtype), ready(bias, dtype)
    of_spikes = values_of(grad_spikes, dtype, last)
    slopes = NeuronSlopes(slope, sizes, (1, 3, 2) if last else (1, 2, 3), dtype)
    added = None if residual is None else values_of(residual, dtype, last)
    grad_added = None if added is None else room_like(added)
    grad_x, grad_weight, grad_bias = room_like(values), values.new_empty(channels), values.new_empty(channels)
    function("sage_norm_lif_backward", dtype)(
        *(values.data_ptr(), pointer(gain), pointer(offset), mean.data_ptr(), var.data_ptr(), pointer(added)),
        *(of_spikes.data_ptr(), *slopes.arguments, grad_x.data_ptr(), grad_weight.data_ptr(), grad_bias.data_ptr()),
        *(pointer(grad_added), *sums.arguments, *sizes, last, eps, training),
        *(*constants.arguments, constants.detach_reset, SHAPE_CODES[shape], torch.get_num_threads()),
    )
    of_residual = x.new_empty(0) if grad_added is None else in_precision(grad_added, x.dtype)
    return in_precision(grad_x, x.dtype), grad_weight, grad_bias, of_residual, *sums.results(slope)


def _fake_norm_lif(
    x: Tensor, *_: Any, times: int, near: float | None = None, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, seen = precision(x), fake_moments(x, times, near)
    return _like(x), x.new_empty(x.shape[1], dtype=dtype), x.new_empty(x.shape[1], dtype=dtype), seen


def _fake_norm_lif_kept(x: Tensor, *_: Any, packs: bool, **options: Any) -> tuple[Tensor, ...]:
    return *_fake_norm_lif(x, **options), room_for_words(x, packs)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(values_of(x, x.dtype, is_last(x)))


def _fake_norm_lif_backward(grad_spikes: Tensor, x: Tensor, *others: Any, **options: Any) -> tuple[Tensor, ...]:
    _, _, mean, _, residual, slope = others
    of_residual = x.new_empty(0) if residual is None else _like(x)
    return _like(x), torch.empty_like(mean), torch.empty_like(mean), of_residual, *fake_sums(slope, **options)


_INPUTS = "Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, Tensor? residual"
register(
    f"norm_lif({_INPUTS}, *, int times, float eps, {FORWARD}) -> (Tensor, Tensor, Tensor, Tensor)",
    _norm_lif,
    _fake_norm_lif,
    "norm_lif",
)
register(
    f"norm_lif_kept({_INPUTS}, {STATISTICS}, *, float momentum, bool packs, int times, float eps, {FORWARD}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    None,
    _fake_norm_lif_kept,
    "norm_lif",
)
register(
    "norm_lif_backward(Tensor grad_spikes, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, "
    "Tensor? residual, Tensor slope, *, int times, float eps, bool training, "
    f"{BACKWARD}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _norm_lif_backward,
    _fake_norm_lif_backward,
    "norm_lif",
)
