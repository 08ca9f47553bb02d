"""The neuron of Diet-SNN (Rathi and Roy, 2020): threshold and leak are trained with the weights."""

import torch
from spikingjelly.activation_based import surrogate
from torch import Tensor, nn

from .strict import above


class DietLIF(nn.Module):
    """U <- leak * U + x, fires where U is above the threshold, U <- U - threshold where it fired; spikes are 0 or 1.

    The surrogate acts on U / threshold - 1 and is scaled by `gain`: 0.3 * max(0, 1 - |U / threshold - 1|). The reset
    lets gradients reach the threshold, not the spike. A call begins from rest and keeps nothing.
    """

    def __init__(self, threshold: float = 1.0, leak: float = 1.0) -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, not {threshold}")
        self.threshold = nn.Parameter(torch.tensor(float(threshold)))
        self.leak = nn.Parameter(torch.tensor(float(leak)))
        self.surrogate_function = surrogate.PiecewiseQuadratic(1.0)
        self.gain = 0.3

    def forward(self, x_seq: Tensor) -> Tensor:
        """Spikes (T, ...) of the currents (T, ...)."""
        # Membranes are never in half precision.
        u = torch.zeros_like(x_seq[0], dtype=torch.promote_types(x_seq.dtype, torch.float32))
        spikes: list[Tensor] = []
        for x in x_seq:
            u = self.leak * u + x
            distance = u / self.threshold - 1
            fired = above(distance, self.gain * self.surrogate_function(distance))
            u = u - self.threshold * fired.detach()
            spikes.append(fired.to(x.dtype))
        return torch.stack(spikes)

    def extra_repr(self) -> str:
        """For print."""
        return f"threshold={self.threshold.item():g}, leak={self.leak.item():g}, gain={self.gain:g}"
