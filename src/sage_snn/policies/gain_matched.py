"""Slopes under which gradients keep their size from layer to layer."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, group_nodes, require_open
from .per_node import PerNode
from .policy import BASE, chosen_groups, may_look, ranks


class GainMatched(PerNode):
    """Each node's slope such that the gradient leaves it as long as it came.

    Gain: length of the gradient of a node's currents over that of its spikes, over micro-batches and ranks. After each
    step `log slope <- log slope - rate * log gain`, kept between `low` and `high` (for a node whose own slope is 4;
    another gets the same share of its own). A node that no gradient reached keeps its slope.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        rate: how far a slope moves in one step, on a logarithmic scale.
        low: smallest slope.
        high: largest slope.
        blocks: the groups whose nodes are meant, in place of all nodes.
        groups: the same by its general name; pass one of the two.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rate: float = 0.05,
        low: float = 1.0,
        high: float = 16.0,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        if not (rate >= 0 and 0 < low <= BASE <= high):
            raise ValueError(f"rate must be >= 0 and 0 < low <= 4 <= high, not {rate}, {low} and {high}")
        groups = chosen_groups(model, blocks, groups)
        nodes = group_nodes(groups)
        require_open(nodes, "its gradients")
        super().__init__(model, nodes, groups, rate=rate, low=low, high=high)
        self.rate, self.low, self.high = rate, low, high
        self._gains = torch.full_like(self._bases, torch.nan)
        for node in self._open_nodes:
            node.gradients = torch.zeros(2, dtype=precise(self._device), device=self._device, requires_grad=True)
        self._write(self._bases)

    @property
    def gains(self) -> Tensor:
        """Of each node in the last step (nodes,); NaN before the first, and where no gradient came."""
        return self._gains.clone()

    @torch.no_grad()
    def step(self) -> None:
        """Read what the backward passes since the last step left, and write the slopes of the next one."""
        super().step()
        sums = self._read()
        self._gains = (sums[:, 1] / sums[:, 0]).sqrt()
        moved = self._written * self._gains ** (-self.rate)
        moved = torch.where(moved.isfinite() & (self._gains > 0), moved, self._written)
        self._write(moved.clamp(self.low * self._bases / BASE, self.high * self._bases / BASE))

    def _read(self) -> Tensor:
        """Two sums of squares per node (nodes, 2), of all ranks; the nodes' own begin anew."""
        grads = [node.gradients.grad for node in self._open_nodes]
        nothing = self._bases.new_zeros(2)
        sums = torch.stack([nothing if grad is None else grad.to(nothing) for grad in grads])
        have_come = any(grad is not None for grad in grads)
        if ranks() > 1:
            sums = torch.cat([sums, sums.new_full((1, 2), float(have_come))])
            dist.all_reduce(sums)
            have_come, sums = not may_look(sums.device, self._taken) or bool(sums[-1].any()), sums[:-1]
        if not have_come:
            raise RuntimeError("step() before any backward pass: call it after loss.backward()")
        for node in self._open_nodes:
            node.gradients.grad = None
        return sums

    @property
    def _why_not_captured(self) -> str:
        return "gradients at nodes are not handed over there; use another policy"

    @property
    def _open_nodes(self) -> list[Any]:
        return self._nodes.nodes

    def describe(self) -> str:
        """A line per node with its slope and gain, besides what every policy tells."""
        lines = [super().describe(), f"  rate {self.rate:g}, slopes between {self.low:g} and {self.high:g}"]
        gains = ", ".join(f"{slope:.3g} ({gain:.3g})" for slope, gain in zip(self._written, self._gains, strict=True))
        return "\n".join([*lines, f"  slope (and gain) of each node: {gains}"])

    def remove(self) -> None:
        """Stop reading gradients and give the slopes back."""
        if self._is_attached:
            for node in self._open_nodes:
                node.gradients = None
        super().remove()
