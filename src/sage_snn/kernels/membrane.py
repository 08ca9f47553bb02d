"""An LIF neuron's constants and its step in plain torch, and what may be read of a pass over time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..compat import precise


@dataclass(frozen=True)
class Membrane:
    """Constants of an LIF neuron; `reset` None means that a spike subtracts the threshold.

    Tensors take the place of numbers where constants are trained or written: tau (), threshold () or (T,).
    """

    tau: float | Tensor = 2.0
    threshold: float | Tensor = 1.0
    reset: float | None = 0.0
    decay_input: bool = True
    detach_reset: bool = False

    @property
    def rest(self) -> float:
        """Membrane that decays to nothing."""
        return 0.0 if self.reset is None else self.reset

    @property
    def hard(self) -> bool:
        """Does a spike put the membrane to a value, whatever it was?"""
        return self.reset is not None

    @property
    def tensors(self) -> tuple[Tensor | None, Tensor | None]:
        """Threshold and tau, each None where it is a number."""
        threshold, tau = self.threshold, self.tau
        return threshold if isinstance(threshold, Tensor) else None, tau if isinstance(tau, Tensor) else None

    @property
    def numbers(self) -> "Membrane":
        """The same with 1 for every tensor: autograd knows only tensors that it is given by themselves."""
        threshold, tau = self.tensors
        if threshold is None and tau is None:
            return self
        return replace(
            self, threshold=self.threshold if threshold is None else 1.0, tau=self.tau if tau is None else 1.0
        )

    def at(self, t: int, threshold: Tensor | None, tau: Tensor | None) -> "Membrane":
        """That of one time step, with the tensors, if any, in place of its numbers."""
        if threshold is None and tau is None:
            return self
        own = self.threshold if threshold is None else threshold[t] if threshold.ndim else threshold
        return replace(self, threshold=own, tau=self.tau if tau is None else tau)

    @property
    def options(self) -> dict[str, Any]:
        """What the forward pass depends on, as operators take it."""
        return {"tau": self.tau, "threshold": self.threshold, "reset": self.reset, "decay_input": self.decay_input}

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

    def fires(self, charged: Tensor) -> Tensor:
        """Spikes."""
        return (charged >= self.threshold).to(charged.dtype)

    def reset_gradients(self, charged: Tensor, spike: Tensor) -> tuple[Any, Any]:
        """Derivatives of the membrane after firing: with respect to the charged membrane, and to the spike."""
        through_membrane = 1.0 if self.reset is None else 1 - spike
        if self.detach_reset:
            return through_membrane, 0.0
        return through_membrane, -self.threshold if self.reset is None else self.reset - charged

    def tau_derivative(self, charged: Tensor, v: Tensor) -> Tensor:
        """d charged / d tau, v the membrane before."""
        return (v - charged) / self.tau if self.decay_input else (v - self.rest) / self.tau / self.tau


@dataclass(frozen=True)
class Watch:
    """What is read of a pass while it runs.

    `membranes` is called with the moments (T, 4) of `moments`, with `near`; `gradients` (2,), a leaf, gets added the
    sums of squares of the gradients of spikes and of currents in backward.
    """

    membranes: Callable[[Tensor], object] | None = None
    near: float = 0.5
    gradients: Tensor | None = None


UNWATCHED = Watch()


def moments(charged: Tensor, threshold: float | Tensor, near: float) -> Tensor:
    """(T, 4) of charged membranes (T, ...): count, sum and squares of distances to the threshold, how many are near."""
    if isinstance(threshold, Tensor):
        threshold = threshold.detach().to(charged.dtype).reshape(-1, *[1] * (charged.ndim - 1))
    distance = (charged.detach() - threshold).flatten(1)
    exact = distance.to(precise(charged.device))
    count = torch.full_like(exact[:, 0], exact.shape[1])
    close = (distance.abs() < near).sum(1).to(exact.dtype)
    return torch.stack([count, exact.sum(1), exact.square().sum(1), close], 1)


def require_membrane(v: Tensor, currents: Tensor) -> None:
    """Refuse a membrane of other neurons than those of the currents (T, ...): kernels read past its end."""
    if v.shape != currents.shape[1:]:
        raise ValueError(
            f"a membrane of shape {tuple(v.shape)} does not fit currents {tuple(currents.shape)}: "
            f"it needs {tuple(currents.shape[1:])}, the same without the time steps"
        )


def require_constants(membrane: Membrane, times: int) -> None:
    """Refuse thresholds per time step that do not fit."""
    threshold = membrane.tensors[0]
    if threshold is not None and threshold.ndim and len(threshold) != times:
        raise ValueError(f"{len(threshold)} thresholds, one per time step, do not fit {times} steps")
