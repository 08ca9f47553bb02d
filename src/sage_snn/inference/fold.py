"""Units of a network with the normalisation folded into the weights.

T time steps, B batch, C channels.
"""

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..compat import entries
from ..kernels.counts import fire
from ..kernels.packed import Packed
from ..kernels.path import path
from ..layers import SpikeConv, ThresholdNorm, TokenMap
from ..neurons import LIFNode


class FoldedLIF(nn.Module):
    """Synapse with the normalisation folded in, and LIF: (T, B, C, ...) -> spikes (T, B, C', ...).

    `as_counts`: spikes are bytes, for synapses that count.
    """

    def __init__(self, synapse: nn.Module, lif: nn.Module) -> None:
        super().__init__()
        self.synapse, self.lif, self.as_counts = synapse, lif, False

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Spikes of all time steps; the residual (T, B, C', ...) is added to the currents."""
        currents = self.synapse(x.flatten(0, 1)).unflatten(0, (len(x), -1))
        return self._fire(currents if residual is None else currents + residual, len(x))

    def forward_static(self, x: Tensor, times: int) -> Tensor:
        """The same for an input (B, C, ...) that does not change over time: its synapses work once."""
        return self._fire(self.synapse(x).unsqueeze(0), times)

    def _fire(self, currents: Tensor, times: int) -> Tensor:
        """By a kernel that starts from rest and keeps no membrane, where it can; else by the node itself."""
        node: Any = self.lif
        if self._has_kernel(currents):
            spikes = fire(currents, node.membrane(currents.device), times, as_counts=self.as_counts)
            return node(spikes, fired=True)
        spikes = node(currents.expand(times, *currents.shape[1:]))
        return spikes.to(torch.uint8) if self.as_counts else spikes

    def _has_kernel(self, currents: Tensor) -> bool:
        wants_gradient = torch.is_grad_enabled() and currents.requires_grad
        is_ours = isinstance(self.lif, LIFNode) and self.lif.why_not_fused() is None
        return is_ours and path(currents) == "C++" and not wants_gradient


class FoldedMap(nn.Module):
    """Synapse with the normalisation folded in, without a neuron: (T, B, C, ...) -> currents (T, B, C', ...)."""

    def __init__(self, synapse: nn.Module) -> None:
        super().__init__()
        self.synapse = synapse

    def forward(self, x: Tensor) -> Tensor:
        """Currents of all time steps."""
        return self.synapse(x.flatten(0, 1)).unflatten(0, (len(x), -1))

    def forward_static(self, x: Tensor, times: int) -> Tensor:
        """The same for an input (B, C, ...) that does not change over time: its synapses work once."""
        currents = self.synapse(x)
        return currents.expand(times, *currents.shape)


def fold(network: nn.Module) -> None:
    """Fold every unit of synapse and normalisation, with a LIF or without, in place.

    Also every convolution or linear layer that a BatchNorm follows in a sequential container, such as SpikingJelly's.
    """
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if all(hasattr(child, part) for part in ("synapse", "norm")):
                setattr(parent, name, _folded_unit(child))
        if isinstance(parent, nn.Sequential):
            _fold_sequence(parent)


def _folded_unit(unit: Any) -> nn.Module:
    synapse = _folded(unit.synapse, unit.norm)
    return FoldedLIF(synapse, unit.lif) if hasattr(unit, "lif") else FoldedMap(synapse)


def _fold_sequence(container: nn.Sequential) -> None:
    for first, second in pairwise(list(entries(container))):
        layer, norm = entries(container)[first], entries(container)[second]
        foldable = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
        if foldable and isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(container, first, _folded(layer, norm))
            setattr(container, second, nn.Identity())


def _folded(layer: nn.Module, norm: Any) -> nn.Module:
    """The layer with the normalisation in its weights; those stay as they are, so what kernels pack of them is kept."""
    folded = layer if isinstance(norm, nn.Identity) else _with_norm(layer, norm)
    if isinstance(folded, SpikeConv | TokenMap):
        folded.packed = Packed()
    return folded


def _with_norm(layer: nn.Module, norm: Any) -> nn.Module:
    if isinstance(norm, ThresholdNorm):  # its factor is its own: into a copy of the weight with it
        norm = copy.deepcopy(norm)
        norm.weight.data.mul_(norm.factor)
    fold: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
    return fold(layer.eval(), norm.eval())
