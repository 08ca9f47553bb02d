"""Leaky integrate-and-fire over time, forward and backward, in plain torch.

T time steps first: currents (T, ...), membrane (...). The slope is a tensor: () for all steps, (T,) one per step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .derivatives import DERIVATIVES, slope_derivative


@dataclass(frozen=True)
class Membrane:
    """Constants of an LIF neuron; `reset` None means that a spike subtracts the threshold."""

    tau: float = 2.0
    threshold: float = 1.0
    reset: float | None = 0.0
    decay_input: bool = True
    detach_reset: bool = False

    def charge(self, current: Tensor, v: Tensor) -> Tensor:
        """Membrane before firing."""
        rest = 0.0 if self.reset is None else self.reset
        if self.decay_input:
            return v + (current - (v - rest)) / self.tau
        return v - (v - rest) / self.tau + current

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
    """`LIF.apply(currents, v, slope, membrane, shape)` -> spikes (T, ...) and the last membrane.

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


def lif(
    currents: Tensor, v: Tensor, slope: Tensor, membrane: Membrane, shape: str = "Sigmoid"
) -> tuple[Tensor, Tensor]:
    """Spikes (T, ...) in the currents' precision and the last membrane (...) in the precision of `v`."""
    if slope.ndim and len(slope) != len(currents):
        raise ValueError(
            f"{len(slope)} slopes, one per time step, do not fit {len(currents)} steps; use multi-step mode"
        )
    spikes, last, _ = LIF.apply(currents, v, slope, membrane, shape)  # pyright: ignore[reportGeneralTypeIssues]
    return spikes, last
