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

    def __init__(self, peak: float = 2.0) -> None:
        super().__init__()
        if not peak > 0:
            raise ValueError(f"peak must be positive, not {peak}")
        self.peak = peak

    def forward(self, x: Tensor, time_steps: int) -> Tensor:
        """Spikes of all time steps."""
        if x.ndim == 5:
            return x
        generator = None if self.training else torch.Generator(x.device).manual_seed(0)
        # Not in half precision, whose few random numbers would round the probabilities.
        dtype = torch.promote_types(x.dtype, torch.float32)
        draws = torch.rand((time_steps, *x.shape), generator=generator, dtype=dtype, device=x.device)
        return (draws < x.abs() / self.peak) * x.sign()

    def extra_repr(self) -> str:
        """For print."""
        return f"peak={self.peak:g}"
