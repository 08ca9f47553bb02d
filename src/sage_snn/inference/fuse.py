"""The deployment form of a network: batch normalisation folded into the weights, nothing left that training needs."""

from typing import Any, Literal

from spikingjelly.activation_based import neuron
from torch import nn

from ..control import copied, is_node, unwrapped
from ..kernels.counts import MOST
from ..neurons import DietLIF, STDBNode
from .fold import FoldedLIF, FoldedMap, fold
from .whole import WholeSynapse

Weights = Literal["float32", "int8"]
_ONE_HIGH = (neuron.BaseNode, DietLIF, STDBNode)  # nodes whose spikes are 0 or 1


class FuseError(ValueError):
    """A network that cannot have the form that was asked for; the message says why."""


def fuse(model: nn.Module, weights: Weights = "float32") -> nn.Module:
    """A copy for inference that gives the same spikes up to rounding; the model itself is not touched.

    Folds every synapse-norm-LIF unit of our networks, and every convolution or linear layer that a BatchNorm follows in
    a sequential container, such as SpikingJelly's. With "int8" synapses count in whole numbers: spikes and their sums
    are bytes, which is exact, and weights are rounded to int8; the first layer, which sees the image, membranes and
    head stay in float32. For networks of this package on a CPU; others are refused.

    On a CPU weights are kept in the order of the kernels too. Load others by `load_state_dict`, or write to them by
    torch's operations: what is written through `weight.data` is not seen.

    Args:
        model: the trained network.
        weights: "float32" or "int8".
    """
    if weights not in ("float32", "int8"):
        raise FuseError(f"weights are 'float32' or 'int8', not {weights!r}")
    network = unwrapped(model)
    if weights == "int8":
        _require_whole_numbers(network)
    (fused,) = copied(network)
    fused.eval()
    fold(fused)
    if weights == "int8":
        _count(fused.float())
    return fused.requires_grad_(False)


def _count(network: nn.Module) -> None:
    """Turn every synapse but the first into one that counts, and let nodes before them fire bytes."""
    units: list[Any] = [unit for unit in network.modules() if isinstance(unit, FoldedLIF | FoldedMap)]
    for unit in units[1:]:
        unit.synapse = WholeSynapse(unit.synapse)
    for parent in network.modules():
        children = dict(parent.named_children())
        multiplied = {"query", "key", "value"} if {"query", "key"} <= children.keys() else set[str]()
        for name, child in children.items():
            if isinstance(child, FoldedLIF):  # attention multiplies its spikes as real numbers
                child.as_counts = name not in multiplied


def _require_whole_numbers(network: nn.Module) -> None:
    """Refuse networks whose synapses see, or might see, anything but counts."""
    kind, largest = type(network).__name__, getattr(network, "largest_count", None)
    if largest is None:
        raise FuseError(
            f"int8 is for this package's networks, whose activations are known to be whole numbers; of {kind} that is "
            "not known: use weights='float32'"
        )
    if largest > MOST:
        raise FuseError(
            f"this {kind} adds up to {largest} spikes in one number, more than the {MOST} that int8 inference counts "
            "exactly: use weights='float32', or fewer blocks"
        )
    if any(parameter.device.type != "cpu" for parameter in network.parameters()):
        raise FuseError("int8 inference runs on CPUs: call .cpu() on the network first")
    for name, module in network.named_modules():
        own = getattr(module, "lif", module if is_node(module) else None)
        if own is not None and not isinstance(own, _ONE_HIGH):
            raise FuseError(
                f"{name} fires through {type(own).__name__}, whose outputs are not 0 or 1, so nothing is counted in "
                "whole numbers: use weights='float32'"
            )
        if isinstance(module, nn.AvgPool2d):
            raise FuseError(
                f"{name} averages spikes, and fractions are not whole numbers: use weights='float32', or a network "
                "without average pooling"
            )
