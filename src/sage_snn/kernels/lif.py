"""Leaky integrate-and-fire over time, forward and backward: a C++ kernel and its twin in plain torch.

T time steps first: currents (T, ...), membrane (...). The slope is a tensor: () for all steps, (T,) one per step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .calls import SHAPE_CODES, SUFFIX, function, inverse, memory_order, pointer, register
from .derivatives import DERIVATIVES, slope_derivative
from .path import path


@dataclass(frozen=True)
class Membrane:
    """Constants of an LIF neuron; `reset` None means that a spike subtracts the threshold."""

    tau: float = 2.0
    threshold: float = 1.0
    reset: float | None = 0.0
    decay_input: bool = True
    detach_reset: bool = False

    @property
    def rest(self) -> float:
        """Membrane that decays to nothing."""
        return 0.0 if self.reset is None else self.reset

    @property
    def options(self) -> dict[str, Any]:
        """What the forward pass depends on, as operators take it."""
        return {"tau": self.tau, "threshold": self.threshold, "reset": self.reset, "decay_input": self.decay_input}

    @property
    def arguments(self) -> tuple[float, float, float, bool, bool]:
        """The same as the C++ takes it: tau, threshold, reset, whether it is hard, whether the input decays."""
        return self.tau, self.threshold, self.reset or 0.0, self.reset is not None, self.decay_input

    def charge(self, current: Tensor, v: Tensor) -> Tensor:
        """Membrane before firing."""
        if self.decay_input:
            return v + (current - (v - self.rest)) / self.tau
        return v - (v - self.rest) / self.tau + current

    def after(self, charged: Tensor, spike: Tensor) -> Tensor:
        """Membrane after firing."""
        if self.reset is None:
            return charged - spike * self.threshold
        return spike * self.reset + (1 - spike) * charged

    def reset_gradients(self, charged: Tensor, spike: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Derivatives of the membrane after firing: with respect to the charged membrane, and to the spike."""
        through_membrane = 1.0 if self.reset is None else 1 - spike
        if self.detach_reset:
            return through_membrane, 0.0
        return through_membrane, -self.threshold if self.reset is None else self.reset - charged


class LIF(torch.autograd.Function):
    """The twin: `LIF.apply(currents, v, slope, membrane, shape)` -> spikes (T, ...) and the last membrane.

    Backward reads the slope tensor that was passed in, as it is *then*: pass a copy to freeze it at its forward value
    (the default of the nodes), pass the controller's own tensor to have backward use what was written in between.
    """

    @staticmethod
    def forward(currents: Tensor, v: Tensor, slope: Tensor, membrane: Membrane, shape: str) -> tuple[Tensor, ...]:
        """Spikes, last membrane, and the charged membranes that backward needs."""
        spikes, charged = torch.empty_like(currents), torch.empty_like(currents, dtype=v.dtype)
        for t in range(len(currents)):
            charged[t] = h = membrane.charge(currents[t].to(v.dtype), v)
            spike = (h >= membrane.threshold).to(v.dtype)
            v = membrane.after(h, spike)
            spikes[t] = spike
        return spikes, v, charged

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the charged membranes; the slope goes on the context, because saving it would forbid writing it."""
        _, _, slope, membrane, shape = inputs
        charged = output[2]
        ctx.mark_non_differentiable(charged)
        ctx.save_for_backward(charged)
        ctx.slope, ctx.membrane, ctx.shape = slope, membrane, shape

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of currents, first membrane and slope."""
        grad_spikes, grad_v, _ = grad_outputs
        (charged,) = ctx.saved_tensors
        membrane: Membrane = ctx.membrane
        slope: Tensor = ctx.slope
        derivative = DERIVATIVES[ctx.shape]
        grad_currents = torch.empty_like(grad_spikes)
        grad_slope = torch.zeros_like(slope) if ctx.needs_input_grad[2] else None
        for t in reversed(range(len(charged))):
            h = charged[t]
            distance, spike = h - membrane.threshold, (h >= membrane.threshold).to(h.dtype)
            through_membrane, through_spike = membrane.reset_gradients(h, spike)
            grad_spike = grad_spikes[t].to(h.dtype) + grad_v * through_spike
            step_slope = slope[t] if slope.ndim else slope
            grad_h = grad_spike * derivative(distance, step_slope) + grad_v * through_membrane
            grad_currents[t] = grad_h / membrane.tau if membrane.decay_input else grad_h
            grad_v = grad_h - grad_h / membrane.tau
            if grad_slope is not None:
                change = (grad_spike * slope_derivative(ctx.shape, distance, step_slope)).sum()
                grad_slope[t if slope.ndim else ()] += change.to(grad_slope)
        return grad_currents, grad_v, grad_slope, None, None


class NativeLIF(torch.autograd.Function):
    """The same in C++, to the bit in the forward pass; keeps the currents, not the membranes, and the slope alike."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, currents: Tensor, v: Tensor, slope: Tensor, membrane: Membrane, shape: str
    ) -> tuple[Tensor, Tensor]:
        """Spikes and last membrane."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(currents, v)
        ctx.slope, ctx.membrane, ctx.shape = slope, membrane, shape
        return torch.ops.sage_snn.lif(currents, v, **membrane.options)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_spikes: Tensor | None, grad_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Gradients of currents, first membrane and slope."""
        currents, v = ctx.saved_tensors
        membrane: Membrane = ctx.membrane
        wants_slope = ctx.needs_input_grad[2]
        grads = torch.ops.sage_snn.lif_backward(
            *(grad_spikes, grad_last, currents, v, ctx.slope),
            **membrane.options,
            detach_reset=membrane.detach_reset,
            shape=ctx.shape,
            wants_slope=wants_slope,
        )
        return grads[0], grads[1], grads[2] if wants_slope else None, None, None


def lif(
    currents: Tensor, v: Tensor, slope: Tensor, membrane: Membrane, shape: str = "Sigmoid"
) -> tuple[Tensor, Tensor]:
    """Spikes (T, ...) in the currents' precision and the last membrane (...) in the precision of `v`.

    A `v` that is one value expanded to its shape (all strides 0) is kept for backward as that one value.
    """
    require_slopes(slope, len(currents))
    if v.dtype not in SUFFIX or not v.numel() or not len(currents) or not runs_natively(currents, shape):
        spikes, last, _ = LIF.apply(currents, v, slope, membrane, shape)  # pyright: ignore[reportGeneralTypeIssues]
        return spikes, last
    if torch.is_grad_enabled() and (currents.requires_grad or v.requires_grad or slope.requires_grad):
        return NativeLIF.apply(currents, v, slope, membrane, shape)  # pyright: ignore[reportReturnType]
    return torch.ops.sage_snn.lif(currents, v, **membrane.options)


def runs_natively(x: Tensor, shape: str) -> bool:
    """Whether the C++ takes this tensor and surrogate shape."""
    return path(x) == "C++" and x.is_floating_point() and shape in SHAPE_CODES


def require_slopes(slope: Tensor, times: int) -> None:
    """Refuse a slope per time step that does not fit."""
    if slope.ndim and len(slope) != times:
        raise ValueError(f"{len(slope)} slopes, one per time step, do not fit {times} steps; use multi-step mode")


def slope_values(slope: Tensor, times: int) -> Tensor:
    """One float64 per time step, as the C++ reads them."""
    return slope.detach().to(torch.float64).expand(times).contiguous()


MEMBRANE = "float tau, float threshold, float? reset, bool decay_input"
BACKWARD = f"{MEMBRANE}, bool detach_reset, str shape, bool wants_slope"


@dataclass(frozen=True)
class _Layout:
    """The order in memory of the axes of a membrane (...); neurons do not meet, so any will do, the same for all."""

    order: list[int]

    @classmethod
    def of(cls, currents: Tensor) -> "_Layout":
        return cls([axis - 1 for axis in memory_order(currents) if axis])

    def flat(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Currents (T, ...) or a membrane (...), contiguous in this order."""
        steps = tensor.ndim - len(self.order)
        return tensor.detach().to(dtype).permute(*range(steps), *(axis + steps for axis in self.order)).contiguous()

    def back(self, tensor: Tensor) -> Tensor:
        """The axes of what was made flat in their own order."""
        steps = tensor.ndim - len(self.order)
        return tensor.permute(*range(steps), *(axis + steps for axis in inverse(self.order)))

    def start(self, v: Tensor) -> tuple[Tensor, int]:
        """The membrane to start from, and the distance of its values: 0 if all are one."""
        return (v, 0) if not any(v.stride()) else (self.flat(v, v.dtype), 1)


def _lif(currents: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    layout = _Layout.of(currents)
    x, (start, step) = layout.flat(currents, v.dtype), layout.start(v)
    spikes, last = torch.empty_like(x), x.new_empty(x.shape[1:])
    function("sage_lif", v.dtype)(
        *(x.data_ptr(), start.data_ptr(), step, spikes.data_ptr(), last.data_ptr(), len(x), v.numel()),
        *(*Membrane(**options).arguments, torch.get_num_threads()),
    )
    return layout.back(spikes.to(currents.dtype)), layout.back(last)


def _lif_backward(
    grad_spikes: Tensor | None,
    grad_last: Tensor | None,
    currents: Tensor,
    v: Tensor,
    slope: Tensor,
    *,
    shape: str,
    wants_slope: bool,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    membrane = Membrane(**options)
    layout = _Layout.of(currents)
    x, (start, step) = layout.flat(currents, v.dtype), layout.start(v)
    of_spikes, of_last = (None if g is None else layout.flat(g, v.dtype) for g in (grad_spikes, grad_last))
    slopes = slope_values(slope, len(x))
    grad_x, grad_v = torch.empty_like(x), x.new_empty(x.shape[1:])
    grad_slope = torch.empty_like(slopes) if wants_slope else None
    function("sage_lif_backward", v.dtype)(
        *(x.data_ptr(), start.data_ptr(), step, pointer(of_spikes), pointer(of_last), slopes.data_ptr()),
        *(grad_x.data_ptr(), grad_v.data_ptr(), pointer(grad_slope), len(x), v.numel()),
        *(*membrane.arguments, membrane.detach_reset, SHAPE_CODES[shape], torch.get_num_threads()),
    )
    return layout.back(grad_x.to(currents.dtype)), layout.back(grad_v), slope_gradient(grad_slope, slope)


def slope_gradient(grads: Tensor | None, slope: Tensor) -> Tensor:
    """Gradient in the shape and precision of the slope from those of the time steps; nothing of nothing."""
    if grads is None:
        return slope.new_empty(0)
    return grads.to(slope.dtype) if slope.ndim else grads.sum().to(slope.dtype)


def _fake_lif(currents: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    return _fake_pair(currents, v)


def _fake_pair(currents: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors like the currents and the membrane, laid out as the kernel does."""
    layout = _Layout.of(currents)
    flat = torch.empty_like(layout.flat(currents, currents.dtype))
    return layout.back(flat), layout.back(flat.new_empty(flat.shape[1:], dtype=v.dtype))


def _fake_lif_backward(
    grad_spikes: Tensor | None, grad_last: Tensor | None, currents: Tensor, v: Tensor, slope: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad_slope = slope.new_empty(slope.shape if options["wants_slope"] else 0)
    return *_fake_pair(currents, v), grad_slope


register(f"lif(Tensor currents, Tensor v, *, {MEMBRANE}) -> (Tensor, Tensor)", _lif, _fake_lif)
register(
    "lif_backward(Tensor? grad_spikes, Tensor? grad_last, Tensor currents, Tensor v, Tensor slope, *, "
    f"{BACKWARD}) -> (Tensor, Tensor, Tensor)",
    _lif_backward,
    _fake_lif_backward,
)
