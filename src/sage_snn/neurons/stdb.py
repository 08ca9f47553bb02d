"""The neuron of Hybrid Training (Rathi et al., ICLR 2020) and its surrogate, which looks at the time of spikes."""

import torch
from torch import Tensor, nn

from .strict import above


class SpikeTime(nn.Module):
    """Surrogate alpha * exp(-beta * steps since the neuron's last spike), whatever the membrane.

    The last spike is one of an earlier step. A neuron that has not fired yet counts as if it had just before the first
    step, so that it learns from the beginning.
    """

    def __init__(self, alpha: float = 0.3, beta: float = 0.01) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, distance: Tensor, waited: Tensor) -> Tensor:
        """A stand-in for spikes whose derivative by the distance is the surrogate; `waited` are steps."""
        return self.alpha * torch.exp(-self.beta * waited) * distance

    def extra_repr(self) -> str:
        """For print."""
        return f"alpha={self.alpha:g}, beta={self.beta:g}"


class STDBNode(nn.Module):
    """Fires where U, before this step's input, is above the threshold; U <- leak * U + x - threshold where it fired.

    A layer so answers one step late. The reset lets no gradient pass to the spike. The surrogate acts on
    U / threshold - 1; one that is not `SpikeTime` is scaled by `gain` (PiecewiseQuadratic(1.0) gives the authors'
    0.3 * max(0, 1 - |U / threshold - 1|)). A call begins from rest and keeps nothing.
    """

    threshold: Tensor

    def __init__(self, threshold: float = 1.0, leak: float = 1.0, surrogate_function: nn.Module | None = None) -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, not {threshold}")
        self.register_buffer("threshold", torch.tensor(float(threshold)))
        self.leak = leak
        self.surrogate_function = SpikeTime() if surrogate_function is None else surrogate_function
        self.gain = 0.3

    def forward(self, x_seq: Tensor) -> Tensor:
        """Spikes (T, ...) of the currents (T, ...)."""
        # Membranes are never in half precision.
        u = torch.zeros_like(x_seq[0], dtype=torch.promote_types(x_seq.dtype, torch.float32))
        waited = torch.ones_like(u)
        spikes: list[Tensor] = []
        for x in x_seq:
            distance = u / self.threshold - 1
            fired = above(distance, self._stand_in(distance, waited))
            u = self.leak * u + x - self.threshold * fired.detach()
            waited = torch.where(distance > 0, 1.0, waited + 1)
            spikes.append(fired.to(x.dtype))
        return torch.stack(spikes)

    def extra_repr(self) -> str:
        """For print."""
        return f"threshold={self.threshold.item():g}, leak={self.leak:g}"

    def _stand_in(self, distance: Tensor, waited: Tensor) -> Tensor:
        if isinstance(self.surrogate_function, SpikeTime):
            return self.surrogate_function(distance, waited)
        return self.gain * self.surrogate_function(distance)
