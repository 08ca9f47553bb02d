"""Images as spikes, for networks that take nothing else.

T time steps, B batch, C channels.
"""

import torch
from torch import Tensor, nn


class SignedPoisson(nn.Module):
    """Images (B, C, H, W) -> spikes (T, B, C, H, W) of -1, 0 and 1, with probability min(|x| / peak, 1).

    Events (T, B, C, H, W) pass unchanged. In training the draws come from torch's global generator; in eval mode from
    one that begins anew in every call, so that an evaluation repeats.
    """

    def __init__(self, time_steps: int, peak: float = 2.0) -> None:
        super().__init__()
        if time_steps < 1:
            raise ValueError(f"time_steps must be at least 1, not {time_steps}")
        if not peak > 0:
            raise ValueError(f"peak must be positive, not {peak}")
        self.time_steps, self.peak = time_steps, peak

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of all time steps."""
        if x.ndim == 5:
            return x
        generator = None if self.training else torch.Generator(x.device).manual_seed(0)
        # Not in half precision, whose few random numbers would round the probabilities.
        dtype = torch.promote_types(x.dtype, torch.float32)
        draws = torch.rand((self.time_steps, *x.shape), generator=generator, dtype=dtype, device=x.device)
        return (draws < x.abs() / self.peak) * x.sign()

    def extra_repr(self) -> str:
        """For print."""
        return f"time_steps={self.time_steps}, peak={self.peak:g}"
