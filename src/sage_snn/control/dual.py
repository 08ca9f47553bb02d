"""Query and key of dual spike self-attention (SpikingResformer): spikes of pixels ask patches of real numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import Attention


@dataclass(eq=False)
class DualAttention(Attention):
    """The two operands of a map that the network forms and fires: spikes of N pixels, real numbers of M patches.

    The output of `key` holds, head by head, keys and then values. The map is scaled by 1 / sqrt(rate * K) with a rate
    per head, a tensor `rate` of `keeper` that moves while training: it is read when `fired`, which fires the map, has
    done so, and is then the rate of this pass. Given to a signal as (q, k / sqrt(rate * K), 1).
    """

    fired: nn.Module | None = None
    keeper: nn.Module | None = None
    rate: str = "rate"

    def modules(self) -> dict[str, nn.Module]:
        """Whose outputs are the operands, and the node of the map, whose spikes only say that it is there."""
        assert self.fired is not None
        return super().modules() | {"map": self.fired}

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, float]:
        """(q, k, 1), q as (T, B, H, N, K) and k as (T, B, H, M, K)."""
        q, (k, _) = self.split(outputs["query"]), self._by_head(outputs["key"]).chunk(2, dim=-1)
        with torch.no_grad():
            return q, k * self._scales(q).view(-1, 1, 1), 1.0

    def _by_head(self, x: Tensor) -> Tensor:
        """(T, B, C, height, width) -> (T, B, H, M, C / H)."""
        return x.flatten(-2).unflatten(-2, (self.heads, -1)).transpose(-1, -2)

    def _scales(self, q: Tensor) -> Tensor:
        rates: Tensor = getattr(self.keeper, self.rate)
        rates = rates.flatten()
        # A head that never fired has an empty map, whatever its scale.
        return (torch.where(rates > 0, rates, 1) * q.shape[-1]).rsqrt()
