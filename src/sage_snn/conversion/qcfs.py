"""The activation of Bu et al. (ICLR 2022): an ANN with it loses nothing on average when its neurons begin to spike."""

import torch
from torch import Tensor, nn


class QCFS(nn.Module):
    """Quantised clip: `threshold * clip(floor(levels * x / threshold + 1/2) / levels, 0, 1)`, threshold trained.

    The gradient passes the rounding as if it were not there, inside the clip, and reaches the threshold as well.

    Args:
        levels: steps of the staircase.
        threshold: where it ends, to begin with.
    """

    def __init__(self, levels: int = 8, threshold: float = 8.0) -> None:
        super().__init__()
        if levels < 1:
            raise ValueError(f"levels must be at least 1, not {levels}")
        if not threshold > 0:
            raise ValueError(f"threshold must be positive, not {threshold}")
        self.levels = levels
        self.threshold = nn.Parameter(torch.tensor(float(threshold)))

    def forward(self, x: Tensor) -> Tensor:
        """One of `levels + 1` values from 0 to the threshold."""
        share = (x / self.threshold).clamp(0, 1) * self.levels + 0.5
        rounded = share + (share.floor() - share).detach()
        return rounded / self.levels * self.threshold

    def extra_repr(self) -> str:
        """For print."""
        return f"levels={self.levels}"
