"""The neuron of converted networks: its rate times the height of its spikes is the activation of an ANN."""

import torch
from spikingjelly.activation_based import base, surrogate
from torch import Tensor

from ..replay import Starts


class RateIF(base.MemoryModule):
    """Integrate and fire from `start * threshold`, soft reset, a spike as high as the threshold.

    Biases, normalisation and shortcuts of the ANN stay right, because rate times height approximates its activation.
    `threshold` is a buffer under the name that `QCFS` trains it by: loading the ANN's weights is the conversion.
    Multi-step calls, (T, ...) -> (T, ...), begin from the start and keep nothing; single steps need `reset_net`.
    """

    threshold: Tensor

    def __init__(self, threshold: float = 1.0, start: float = 0.0, step_mode: str = "m") -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, not {threshold}")
        self.register_buffer("threshold", torch.tensor(float(threshold)))
        self.register_memory("v", None)
        self.start, self.step_mode = start, step_mode
        self.surrogate_function = surrogate.Sigmoid()
        self.starts = Starts()

    def single_step_forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Spikes (...) of the currents (...) of one time step."""
        v = self.starts.begin(self.v, training=self.training, every_step=True)
        spikes, self.v = self._fire(x, self._at_start(x) if v is None else v)
        return spikes

    def multi_step_forward(self, x_seq: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Spikes (T, ...) of the currents (T, ...)."""
        v, spikes = self._at_start(x_seq[0]), list[Tensor]()
        for x in x_seq:
            fired, v = self._fire(x, v)
            spikes.append(fired)
        return torch.stack(spikes)

    def reset(self) -> None:
        """Back to the start."""
        super().reset()
        self.starts.clear()

    def extra_repr(self) -> str:
        """For print."""
        return f"threshold={self.threshold.item():g}, start={self.start:g}, step_mode={self.step_mode}"

    def _at_start(self, x: Tensor) -> Tensor:
        """The first membrane, never in half precision."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.zeros_like(x, dtype=dtype) + self.start * self.threshold

    def _fire(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Spikes in the precision of the currents, and the membrane after them."""
        charged = v + x
        heights = self.surrogate_function(charged - self.threshold) * self.threshold
        return heights.to(x.dtype), charged - heights
