"""Twins of nodes for other runtimes: the forward pass of all time steps, in few operations that every runtime has."""

import torch
from spikingjelly.activation_based import neuron
from torch import Tensor, nn

from ..neurons import DietLIF, LIFNode, RateIF, STDBNode


def plain(node: nn.Module) -> nn.Module | None:
    """The twin of a node that takes all time steps at once; None if it has none."""
    if isinstance(node, DietLIF):
        return PlainDiet(node)
    if isinstance(node, STDBNode):
        return PlainSTDB(node)
    if getattr(node, "step_mode", None) != "m":
        return None
    if isinstance(node, RateIF):
        return PlainRate(node)
    # A subclass may have other dynamics.
    if isinstance(node, neuron.LIFNode) and type(node) in (neuron.LIFNode, LIFNode):
        return PlainLIF(node)
    return None


class PlainLIF(nn.Module):
    """Of an LIF node that starts from rest."""

    def __init__(self, node: neuron.LIFNode) -> None:
        super().__init__()
        self.reset, self.decay_input = node.v_reset, node.decay_input
        self.threshold, self.tau = node.constants if isinstance(node, LIFNode) else (node.v_threshold, node.tau)

    def forward(self, currents: Tensor) -> Tensor:
        """Currents (T, ...) -> spikes (T, ...), to the bit those of the node."""
        rest = self.reset or 0.0
        v = torch.full_like(currents[0], rest)
        thresholds = self.threshold if isinstance(self.threshold, list) else [self.threshold] * len(currents)
        spikes: list[Tensor] = []
        for current, threshold in zip(currents.unbind(), thresholds, strict=True):
            above_rest = v - rest if rest else v
            charged = v + (current - above_rest) / self.tau if self.decay_input else v - above_rest / self.tau + current
            fires = charged >= threshold
            spikes.append(fires.to(charged.dtype))
            v = charged - spikes[-1] * threshold if self.reset is None else torch.where(fires, rest, charged)
        return torch.stack(spikes)


class PlainRate(nn.Module):
    """Of a node that integrates and fires as high as its threshold."""

    def __init__(self, node: RateIF) -> None:
        super().__init__()
        self.threshold, self.start = node.threshold.item(), node.start

    def forward(self, currents: Tensor) -> Tensor:
        """Currents (T, ...) -> spikes (T, ...), to the bit those of the node."""
        v = torch.full_like(currents[0], self.start * self.threshold)
        spikes: list[Tensor] = []
        for current in currents.unbind():
            charged = v + current
            spikes.append((charged - self.threshold >= 0).to(charged.dtype) * self.threshold)
            v = charged - spikes[-1]
        return torch.stack(spikes)


class PlainDiet(nn.Module):
    """Of Diet-SNN's node."""

    def __init__(self, node: DietLIF) -> None:
        super().__init__()
        self.threshold, self.leak = node.threshold.item(), node.leak.item()

    def forward(self, currents: Tensor) -> Tensor:
        """Currents (T, ...) -> spikes (T, ...), to the bit those of the node."""
        u = torch.zeros_like(currents[0])
        spikes: list[Tensor] = []
        for current in currents.unbind():
            u = self.leak * u + current
            spikes.append((u / self.threshold - 1 > 0).to(u.dtype))
            u = u - self.threshold * spikes[-1]
        return torch.stack(spikes)


class PlainSTDB(nn.Module):
    """Of Hybrid Training's node."""

    def __init__(self, node: STDBNode) -> None:
        super().__init__()
        self.threshold, self.leak = node.threshold.item(), node.leak

    def forward(self, currents: Tensor) -> Tensor:
        """Currents (T, ...) -> spikes (T, ...), to the bit those of the node."""
        u = torch.zeros_like(currents[0])
        spikes: list[Tensor] = []
        for current in currents.unbind():
            spikes.append((u / self.threshold - 1 > 0).to(u.dtype))
            u = self.leak * u + current - self.threshold * spikes[-1]
        return torch.stack(spikes)
