"""DS-ATGO: thresholds that follow the membranes, and surrogates whose width follows the thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..control import Group, Membrane, Tap, require_open
from ..surrogate import slope_of_width
from .per_node import PerNode
from .policy import chosen_groups, chosen_nodes, may_look, ranks, time_steps_of

LOWEST = 0.05  # a layer whose membranes are all far below zero would else fire always


class DS_ATGO(PerNode):  # noqa: N801 (its published name)
    """Thresholds at mean + deviation of the membranes, per node and time step (Jiang et al., 2026), and widths by them.

    Threshold: a running average, written between steps, of mean + deviation of the charged membrane over neurons and
    images. Width of the rectangle: `width * (1 + tanh(threshold - first threshold))`; a node of another shape gets the
    slope that makes it as high. Changes the forward pass: thresholds belong to the network, are in its state dict, and
    stay with it after `remove()`. All nodes, or those of the groups that are named.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        momentum: of the running average of the threshold.
        width: of the rectangle at the first threshold.
        blocks: the groups whose nodes are meant, in place of all nodes.
        groups: the same by its general name; pass one of the two.
        time_steps: T, where the model does not say it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        momentum: float = 0.1,
        width: float = 1.0,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
        time_steps: int | None = None,
    ) -> None:
        if not (0 <= momentum <= 1 and width > 0):
            raise ValueError(f"momentum is from 0 to 1 and width positive, not {momentum} and {width}")
        nodes: list[Any] = chosen_nodes(model, blocks, groups)
        chosen = chosen_groups(model, blocks, groups)
        require_open(nodes, "its threshold")
        steps = time_steps or time_steps_of(model)
        starts = [first_thresholds(node, steps) for node in nodes]
        self._taps: list[Tap] = []
        super().__init__(model, nodes, chosen, momentum=momentum, width=width, time_steps=steps)
        self.momentum, self.width, self.time_steps = momentum, width, steps
        self._first = self._bases.new_tensor([[node.v_threshold] for node in nodes])
        for node, start in zip(nodes, starts, strict=True):
            node.set_constants(threshold=start.to(self._bases), time_constant=node.time_constant)
        self._taps = [
            Tap(Membrane(node), _Sums(), self._device, times=4 * steps, give_up=self.remove) for node in nodes
        ]
        self._write_widths()

    @property
    def thresholds(self) -> Tensor:
        """Of each node in each time step (nodes, T)."""
        nodes: list[Any] = self._nodes.nodes
        return torch.stack([node.threshold.detach().to(self._bases) for node in nodes])

    @torch.no_grad()
    def step(self) -> None:
        """Move the thresholds toward what the passes since the last step have shown, and the widths with them."""
        super().step()
        sums = torch.stack([tap.sums.to(self._bases) for tap in self._taps])
        has_read = any(tap.has_read for tap in self._taps)
        if ranks() > 1:
            dist.all_reduce(sums)
            has_read = not may_look(sums.device, self._taken) or bool(sums[:, -1].any())
        if not has_read:
            raise RuntimeError("step() before any forward pass: run the model in training mode with gradients first")
        now = self.thresholds
        seen = now + seen_above(sums[:, :-1].unflatten(1, (self.time_steps, 4)))
        moved = ((1 - self.momentum) * now + self.momentum * seen).clamp_min(LOWEST)
        nodes: list[Any] = self._nodes.nodes
        for node, value in zip(nodes, torch.where(moved.isfinite(), moved, now), strict=True):
            node.threshold.copy_(value)
        for tap in self._taps:
            tap.clear()
        self._write_widths()

    def _write_widths(self) -> None:
        widths = self.width * (1 + torch.tanh(self.thresholds - self._first))
        each = zip(widths, self._nodes.shapes(), strict=True)
        self._write(torch.stack([slope_of_width(width, shape) for width, shape in each]))

    def describe(self) -> str:
        """The rule, and that the forward pass changes, besides what every policy tells."""
        low, high = float(self.thresholds.min()), float(self.thresholds.max())
        rule = f"thresholds {low:.3g} to {high:.3g}, one per node and time step, momentum {self.momentum:g}"
        return "\n".join([super().describe(), f"  {rule}", *(f"  {line}" for line in self.remarks(0))])

    def remarks(self, steps: int) -> list[str]:
        """That the deployed network differs."""
        kept = "the thresholds are the network's own, in its state dict, and stay with it"
        return [f"changes the forward pass: {kept}, so the deployed network differs"]

    def remove(self) -> None:
        """Stop reading and take the slopes off; thresholds stay with the network."""
        for tap in self._taps:
            tap.remove()
        super().remove()

    def _relative_slopes(self) -> list[str]:
        return []  # heights, whatever the base


def seen_above(moments: Tensor) -> Tensor:
    """Mean + deviation of the charged membrane, counted from the threshold: of moments (..., 4), NaN without any."""
    count, total, squares, _ = moments.unbind(-1)
    mean = total / count
    return mean + (squares / count - mean.square()).clamp_min(0).sqrt()


def first_thresholds(node: Any, steps: int) -> Tensor:
    """Those that a network was trained with before, or the one that the node was built with: (T,)."""
    start = torch.tensor(node.v_threshold) if node.threshold is None else node.threshold.detach()
    if start.ndim and len(start) != steps:
        raise ValueError(
            f"the network has {len(start)} thresholds per node, one per time step, and trains with {steps} steps; "
            "load weights that were trained with as many"
        )
    return start.expand(steps).clone()


@dataclass(frozen=True)
class _Sums:
    """The moments themselves, added up over passes."""

    def rows_read(self, moments: Tensor) -> int:
        return 1

    def __call__(self, moments: Tensor) -> Tensor:
        return moments.flatten()
