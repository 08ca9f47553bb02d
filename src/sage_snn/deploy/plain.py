"""Twins of nodes, and of synapses that count, for other runtimes, in few operations that every runtime has."""

from typing import Any

import torch
from spikingjelly.activation_based import neuron
from torch import Tensor, nn

from ..inference import FoldedLIF, WholeSynapse
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


def counting(network: nn.Module) -> nn.Module:
    """A network fused with int8 weights, in place, with ONNX's whole-number operations in place of oneDNN's.

    Between layers run real numbers: onnxruntime adds no bytes.
    """
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, WholeSynapse):
                setattr(module, name, PlainSynapse(child))
        if isinstance(module, FoldedLIF):
            module.as_counts = False
    return network


class PlainSynapse(nn.Module):
    """Of a synapse that counts, for torch.onnx.export: ConvInteger or MatMulInteger, then scale and bias."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, synapse: WholeSynapse) -> None:
        super().__init__()
        weight, self.options = synapse.weight, synapse.options
        is_image = self.options is not None
        self.is_tokens = weight.ndim == 3
        self.register_buffer("weight", weight if is_image else weight.flatten(1).t().contiguous())
        shape = (-1, 1, 1) if is_image else (-1,)
        self.register_buffer("scale", synapse.scale.view(shape))
        self.register_buffer("bias", synapse.bias.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Counts as real numbers -> currents, as the synapse gives them."""
        counts = x.to(torch.uint8)
        if self.options is not None:
            return self._currents(self._convolution(counts))
        counts = counts.transpose(1, 2) if self.is_tokens else counts
        shape = (*counts.shape[:-1], self.weight.shape[1])
        currents = self._currents(_onnx("MatMulInteger", counts, self.weight, shape))
        return currents.transpose(1, 2) if self.is_tokens else currents

    def _convolution(self, counts: Tensor) -> Tensor:
        assert self.options is not None
        stride, padding, dilation, groups = self.options.values()
        sides = [
            (counts.shape[2 + i] + 2 * padding[i] - dilation[i] * (self.weight.shape[2 + i] - 1) - 1) // stride[i] + 1
            for i in range(2)
        ]
        places = {"strides": stride, "pads": padding * 2, "dilations": dilation, "group": groups}
        # Not len(): it would make a number of the batch, which stays open.
        return _onnx("ConvInteger", counts, self.weight, (counts.shape[0], len(self.weight), *sides), places)

    def _currents(self, sums: Tensor) -> Tensor:
        return sums.float() * self.scale + self.bias


def _onnx(
    operation: str, counts: Tensor, weight: Tensor, shape: tuple[int, ...], attributes: dict[str, Any] | None = None
) -> Tensor:
    """Whole sums (int32) of an operation that torch has none for; known to ONNX since version 10."""
    return torch.onnx.ops.symbolic(
        operation, [counts, weight], attributes or {}, dtype=torch.int32, shape=shape, version=10
    )
