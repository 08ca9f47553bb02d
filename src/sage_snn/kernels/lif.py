"""Leaky integrate-and-fire over time, forward and backward: a kernel (C++, or Triton) and its twin in plain torch.

T time steps first: currents (T, ...), membrane (...). The slope is a tensor, in the shapes of slopes.py.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..compat import precise
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
from .calls import SHAPE_CODES, function, pointer, register
from .derivatives import DERIVATIVES, slope_derivative
from .kept import Kept, keeps_on, packs, room_for_words
from .layout import Layout
from .membrane import UNWATCHED, Membrane, Watch, moments, require_constants, require_membrane
from .path import path
from .room import room_like
from .slopes import add_at, at_step, over_currents, require_slopes, slopes_of_neurons


class LIF(torch.autograd.Function):
    """The twin: `LIF.apply(currents, v, slope, membrane, shape)` -> spikes (T, ...), the last membrane, charged ones.

    Backward reads the slope tensor that was passed in, as it is *then*: pass a copy to freeze it at its forward value
    (the default of the nodes), pass the controller's own tensor to have backward use what was written in between.
    `threshold` and `tau` take the place of the membrane's numbers, and get the gradient of the smooth function that the
    spike stands for (decision 18); `gradients` (2,) gets the sums of squares of the gradients of spikes and currents.
    """

    @staticmethod
    def forward(
        currents: Tensor,
        v: Tensor,
        slope: Tensor,
        membrane: Membrane,
        shape: str,
        threshold: Tensor | None = None,
        tau: Tensor | None = None,
        gradients: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Spikes, last membrane, and the charged membranes that backward needs."""
        spikes, charged = torch.empty_like(currents), torch.empty_like(currents, dtype=v.dtype)
        constants = _in_precision(v.dtype, threshold, tau)
        for t in range(len(currents)):
            now = membrane.at(t, *constants)
            charged[t] = h = now.charge(currents[t].to(v.dtype), v)
            spikes[t] = spike = now.fires(h)
            v = now.after(h, spike)
        return spikes, v, charged

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the charged membranes; the slope goes on the context, because saving it would forbid writing it."""
        _, v, ctx.slope, ctx.membrane, ctx.shape, threshold, tau, _ = inputs
        charged = output[2]
        ctx.mark_non_differentiable(charged)
        ctx.save_for_backward(charged, threshold, tau, None if tau is None else v)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of currents, first membrane, slope, threshold and tau; sums of squares."""
        grad_spikes, grad_v, _ = grad_outputs
        charged, threshold, tau, start = ctx.saved_tensors
        constants = _in_precision(charged.dtype, threshold, tau)
        membrane, slope, wants = ctx.membrane, over_currents(ctx.slope, charged.shape), ctx.needs_input_grad
        grad_currents = torch.empty_like(grad_spikes)
        of_slope = torch.zeros_like(slope) if wants[2] else None
        exact = precise(charged.device)
        of_threshold, of_tau = (
            torch.zeros_like(constant, dtype=exact) if constant is not None and wanted else None
            for constant, wanted in zip(constants, wants[5:7], strict=True)
        )
        for t in reversed(range(len(charged))):
            h, now, step_slope = charged[t], membrane.at(t, *constants), at_step(slope, t, charged.dtype)
            distance, spike = h - now.threshold, now.fires(h)
            through_membrane, through_spike = now.reset_gradients(h, spike)
            grad_spike = grad_spikes[t].to(h.dtype) + grad_v * through_spike
            grad_distance = grad_spike * DERIVATIVES[ctx.shape](distance, step_slope)
            grad_h = grad_distance + grad_v * through_membrane
            if of_slope is not None:
                add_at(of_slope, t, grad_spike * slope_derivative(ctx.shape, distance, step_slope))
            if of_threshold is not None:
                add_at(of_threshold, t, -grad_distance if now.hard else -grad_distance - grad_v * spike)
            if of_tau is not None:
                last = membrane.at(t - 1, *constants)
                before = last.after(charged[t - 1], last.fires(charged[t - 1])) if t else start
                of_tau += (grad_h * now.tau_derivative(h, before)).sum()
            grad_currents[t] = grad_h / now.tau if now.decay_input else grad_h
            grad_v = grad_h - grad_h / now.tau
        squares = sums_of_squares(grad_spikes, grad_currents) if wants[7] else None
        of_slope = None if of_slope is None else of_slope.view_as(ctx.slope)
        return grad_currents, grad_v, of_slope, None, None, of_threshold, of_tau, squares


class NativeLIF(torch.autograd.Function):
    """The same in C++, to the bit in the forward pass; keeps the currents, not the membranes, and the slope alike.

    `near` asks for the moments of the membranes (T, 4), the last output.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        currents: Tensor,
        v: Tensor,
        slope: Tensor,
        membrane: Membrane,
        shape: str,
        threshold: Tensor | None = None,
        tau: Tensor | None = None,
        gradients: Tensor | None = None,
        near: float | None = None,
        kept: Kept | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Spikes, last membrane and moments."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(currents, v, threshold, tau)
        ctx.slope, ctx.membrane, ctx.shape = slope, membrane, shape
        spikes, last, seen = _made(currents, v, kept, **forward_options(membrane, threshold, tau, near))
        ctx.mark_non_differentiable(seen)
        return spikes, last, seen

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_spikes: Tensor | None, grad_last: Tensor | None, _seen: Any
    ) -> tuple[Tensor | None, ...]:
        """Gradients of currents, first membrane, slope, threshold and tau; sums of squares."""
        currents, v, threshold, tau = ctx.saved_tensors
        wants_slope, wants = ctx.needs_input_grad[2], (*ctx.needs_input_grad[5:8], False, False, False)[:3]
        grads = torch.ops.sage_snn.lif_backward(
            *(grad_spikes, grad_last, currents, v, ctx.slope),
            shape=ctx.shape,
            **backward_options(ctx.membrane, threshold, tau, wants_slope, wants),
        )
        of_slope = grads[2] if wants_slope else None
        return *grads[:2], of_slope, None, None, *extra_gradients(grads[3:], threshold, wants), None, None


def _in_precision(dtype: torch.dtype, *constants: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if constant is None else constant.detach().to(dtype) for constant in constants)


def sums_of_squares(*grads: Tensor) -> Tensor:
    """One sum per tensor."""
    return torch.stack([grad.to(precise(grad.device)).square().sum() for grad in grads])


def lif(
    currents: Tensor, v: Tensor, slope: Tensor, membrane: Membrane, shape: str = "Sigmoid", watch: Watch = UNWATCHED
) -> tuple[Tensor, Tensor]:
    """Spikes (T, ...) in the currents' precision and the last membrane (...) in the precision of `v`.

    A `v` that is one value expanded to its shape (all strides 0) is kept for backward as that one value.
    """
    require_slopes(slope, currents.shape)
    require_constants(membrane, len(currents))
    require_membrane(v, currents)
    if not currents.numel() or not _takes(v) or not runs_natively(currents, slope, shape):
        return lif_twin(currents, v, slope, membrane, shape, watch)
    threshold, tau = membrane.tensors
    near = None if watch.membranes is None else watch.near
    kept = Kept(packs(currents, v.numel())) if keeps_on(currents) else None
    made: Any
    if wants_gradients(currents, v, slope, threshold, tau, watch.gradients):
        extras = threshold, tau, watch.gradients, near, kept
        made = NativeLIF.apply(currents, v, slope, membrane.numbers, shape, *extras)
    else:
        made = _made(currents, v, kept, **forward_options(membrane.numbers, threshold, tau, near))
    if watch.membranes is not None:
        watch.membranes(made[2])
    mark_spikes(made[0], None if kept is None else kept.words)
    return made[:2]


def _made(currents: Tensor, v: Tensor, kept: Kept | None, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Spikes, last membrane and moments by the operator, and bits if they are kept."""
    if kept is None or not kept.packs:
        return torch.ops.sage_snn.lif(currents, v, **options)
    spikes, last, seen, kept.words = torch.ops.sage_snn.lif_packed(currents, v, **options)
    return spikes, last, seen


def _takes(v: Tensor) -> bool:
    """Whether a kernel keeps membranes in this precision: that of float64 is for the C++."""
    return v.dtype == torch.float32 or (v.dtype == torch.float64 and path(v) == "C++")


def lif_twin(
    currents: Tensor, v: Tensor, slope: Tensor, membrane: Membrane, shape: str, watch: Watch
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    extras = *membrane.tensors, watch.gradients
    spikes, last, charged = LIF.apply(currents, v, slope, membrane.numbers, shape, *extras)  # pyright: ignore
    if watch.membranes is not None:
        watch.membranes(moments(charged, membrane.threshold, watch.near))
    return spikes, last


def _lif(currents: Tensor, v: Tensor, *, near: float | None = None, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    layout, constants = Layout.of(currents), Constants(len(currents), **options)
    x, (start, step) = layout.flat(currents, v.dtype), layout.start(v)
    spikes, last = room_like(x), x.new_empty(x.shape[1:])
    seen = room_for_moments(x, len(x), near)
    function("sage_lif", v.dtype)(
        *(x.data_ptr(), start.data_ptr(), step, spikes.data_ptr(), last.data_ptr(), len(x), v.numel()),
        *(*constants.arguments, near or 0.0, pointer(seen), torch.get_num_threads()),
    )
    return layout.back(spikes.to(currents.dtype)), layout.back(last), or_nothing(seen, x)


def _lif_backward(
    grad_spikes: Tensor | None,
    grad_last: Tensor | None,
    currents: Tensor,
    v: Tensor,
    slope: Tensor,
    *,
    shape: str,
    **options: Any,
) -> tuple[Tensor, ...]:
    layout, constants, sums = Layout.of(currents), Constants(len(currents), **options), Sums(len(currents), **options)
    x, (start, step) = layout.flat(currents, v.dtype), layout.start(v)
    of_spikes, of_last = (None if g is None else layout.flat(g, v.dtype) for g in (grad_spikes, grad_last))
    slopes = slopes_of_neurons(slope, currents.shape, layout, v.dtype)
    grad_x, grad_v = room_like(x), x.new_empty(x.shape[1:])
    function("sage_lif_backward", v.dtype)(
        *(x.data_ptr(), start.data_ptr(), step, pointer(of_spikes), pointer(of_last), *slopes.arguments),
        *(grad_x.data_ptr(), grad_v.data_ptr(), *sums.arguments, len(x), v.numel()),
        *(*constants.arguments, constants.detach_reset, SHAPE_CODES[shape], torch.get_num_threads()),
    )
    return layout.back(grad_x.to(currents.dtype)), layout.back(grad_v), *sums.results(slope)


def _fake_lif(currents: Tensor, v: Tensor, *, near: float | None = None, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return *_fake_pair(currents, v), fake_moments(currents, len(currents), near)


def _fake_lif_packed(currents: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return *_fake_lif(currents, v, **options), room_for_words(currents, packs=True)


def _fake_pair(currents: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors like the currents and the membrane, laid out as the kernel does."""
    layout = Layout.of(currents)
    flat = torch.empty_like(layout.flat(currents, currents.dtype))
    return layout.back(flat), layout.back(flat.new_empty(flat.shape[1:], dtype=v.dtype))


def _fake_lif_backward(
    grad_spikes: Tensor | None, grad_last: Tensor | None, currents: Tensor, v: Tensor, slope: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    return *_fake_pair(currents, v), *fake_sums(slope, len(currents), **options)


register(f"lif(Tensor currents, Tensor v, *, {FORWARD}) -> (Tensor, Tensor, Tensor)", _lif, _fake_lif, "lif")
register(
    f"lif_packed(Tensor currents, Tensor v, *, {FORWARD}) -> (Tensor, Tensor, Tensor, Tensor)",
    None,
    _fake_lif_packed,
    "lif",
)
register(
    "lif_backward(Tensor? grad_spikes, Tensor? grad_last, Tensor currents, Tensor v, Tensor slope, *, "
    f"{BACKWARD}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _lif_backward,
    _fake_lif_backward,
    "lif",
)
